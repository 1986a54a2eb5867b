"""The attention operations: each becomes one Problem, whose formulas run on all query rows at once, or on blocks of
them, one after the other, to bound the memory of the scores.
"""

import jax
import jax.numpy as jnp

from ejkernel._xla.attention_formula import backward_block, forward_block
from ejkernel._xla.attention_problem import ROW_AXIS, Problem, backward_inputs, lse_outside, make_problem, outside

_MAX_SCORES = 2**22  # of a head at a time


def flash_attention(inputs: dict, params: dict) -> dict:
    problem = make_problem(inputs, params)
    result = _forward(problem)
    return {"out": outside(problem, result["out"], problem.out_dtype), "lse": lse_outside(problem, result["lse"])}


def flash_attention_backward(inputs: dict, params: dict) -> dict:
    problem = make_problem(inputs, params)
    return _backward(problem, inputs, backward_inputs(problem, inputs))


def attention(inputs: dict, params: dict) -> dict:
    problem = make_problem(inputs, params)
    result = _forward(problem, with_weights=True)
    return {
        "out": outside(problem, result["out"], problem.out_dtype),
        "weights": result["weights"].astype(inputs["query"].dtype),
    }


def attention_backward(inputs: dict, params: dict) -> dict:
    problem = make_problem(inputs, params)
    recomputed = {"lse": _forward(problem)["lse"]}
    return _backward(problem, inputs, {**backward_inputs(problem, inputs), **recomputed})


def scaled_dot_product_attention(inputs: dict, params: dict) -> dict:
    return flash_attention(_flash_inputs(inputs), params)


def scaled_dot_product_attention_backward(inputs: dict, params: dict) -> dict:
    return flash_attention_backward(_flash_inputs(inputs), params)


def _flash_inputs(inputs: dict) -> dict:
    """scaled_dot_product_attention's inputs in flash_attention's words; only `query_seq_lengths` has none there."""
    return {**inputs, "seqused_k": inputs["key_value_seq_lengths"]}


def _forward(p: Problem, with_weights: bool = False) -> dict:
    return _over_rows(p, p.of_rows, lambda block: (forward_block(p, block, with_weights), {}))[0]


def _backward(p: Problem, inputs: dict, of_backward: dict) -> dict:
    of_rows, sums = _over_rows(p, {**p.of_rows, **of_backward}, lambda block: backward_block(p, block))
    gradients = {
        "query": outside(p, of_rows["query"], inputs["query"].dtype),
        "key": outside(p, sums["key"], inputs["key"].dtype),
        "value": outside(p, sums["value"], inputs["value"].dtype),
    }
    if inputs.get("bias") is not None:
        gradients["bias"] = {**sums, **of_rows}["bias"].astype(inputs["bias"].dtype)
    sinks = inputs.get("softmax_aux")
    if sinks is not None:
        d_sinks = sums["sinks"] if sinks.ndim == 2 else sums["sinks"].sum(axis=0)
        gradients["softmax_aux"] = d_sinks.astype(sinks.dtype)
    return gradients


def _over_rows(p: Problem, of_rows: dict, compute) -> tuple[dict, dict]:
    """compute(block) -> (results of its rows, sums over them), on all rows at once or block after block."""
    num_rows = of_rows["query"].shape[ROW_AXIS]
    if num_rows * p.num_keys <= _MAX_SCORES or num_rows == 1:
        return compute(of_rows)
    size = max(_MAX_SCORES // p.num_keys, 1)
    num_blocks = -(-num_rows // size)
    padded = {name: _padded_rows(name, x, num_rows, num_blocks * size) for name, x in of_rows.items()}

    def block_at(index):
        def cut(x):
            if x.shape[ROW_AXIS] == 1:  # broadcast over the rows
                return x
            return jax.lax.dynamic_slice_in_dim(x, index * size, size, ROW_AXIS)

        return jax.tree.map(cut, padded)

    def step(sums, index):
        results, share = compute(block_at(index))
        return jax.tree.map(jnp.add, sums, share), results

    def joined(results):
        """[block, batch, head, row of block, ...] to [batch, head, row, ...]."""
        results = jnp.moveaxis(results, 0, ROW_AXIS)
        return results.reshape(*results.shape[:2], num_blocks * size, results.shape[4])[:, :, :num_rows]

    shapes = jax.eval_shape(lambda: compute(block_at(0))[1])
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    sums, results = jax.lax.scan(step, nothing, jnp.arange(num_blocks))
    return jax.tree.map(joined, results), sums


def _padded_rows(name: str, x, num_rows: int, padded: int):
    """Rows that fill the last block: of no sequence, so that they see no key, and without an lse of their own."""
    fill = -jnp.inf if name == "lse" else 0

    def pad(x):
        if x.shape[ROW_AXIS] != num_rows:
            return x
        missing = (0, padded - num_rows)
        return jnp.pad(x, [missing if axis == ROW_AXIS else (0, 0) for axis in range(4)], constant_values=fill)

    return jax.tree.map(pad, x)
