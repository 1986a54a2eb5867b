"""The grid (T-08): every operation and form under every transformation of JAX, against the same call without it, and
gradients against automatic differentiation of the platform xla's plain jax.numpy formula. docs/jax_transformations.md is
this grid."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, UNDIFFERENTIABLE, Arrays, Case, weights
from jax.sharding import Mesh, PartitionSpec

import ejkernel
from ejkernel import _primitive, _xla
from ejkernel._declarations import OPERATIONS
from ejkernel._functions import make_call


def on_jax(case: Case) -> dict[str, jax.Array]:
    return {name: jnp.array(x) for name, x in case.arrays.items()}


def as_numpy(tree: object) -> object:
    """Slices of these compile nothing."""
    return jax.tree.map(np.asarray, tree)


def assert_close(got: object, expected: object) -> None:
    """Two float32 evaluations of one formula."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5, equal_nan=False), got, expected)


def assert_equal(got: object, expected: object) -> None:
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def split(case: Case, arrays: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
    """Floating inputs, and the others."""
    floats = {name: arrays[name] for name in case.floats}
    return floats, {name: x for name, x in arrays.items() if name not in floats}


def gradient(case: Case, arrays: Arrays) -> dict[str, jax.Array]:
    floats, others = split(case, arrays)
    return jax.grad(lambda floats: case.loss(floats | others))(floats)


@functools.cache
def compiled_gradient(case: Case) -> Callable[[Arrays], dict[str, jax.Array]]:
    """For all columns: programs are what the time goes to."""
    return jax.jit(functools.partial(gradient, case))


def packed_means(x: jax.Array, offsets: np.ndarray, chunk_size: int | None) -> jax.Array:
    """One sequence and one chunk after the other; the platform xla's has a loop that JAX does not differentiate."""
    means, total = [], x.shape[0]
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        step = chunk_size or max(end - begin, 1)
        starts = list(range(begin, end, step)) or ([] if chunk_size else [begin])
        means += [x[at : min(at + step, end)].sum(0) / max(min(step, end - at), 1) for at in starts]
    if chunk_size:
        means += [jnp.zeros_like(x[0])] * (-(-total // chunk_size) + len(offsets) - 1 - len(means))
    return jnp.stack(means)


def blocks(mask: np.ndarray, axis: int, block: int, extent: int) -> jax.Array:
    """A number for each element instead of each block."""
    return jax.lax.slice_in_dim(jnp.repeat(mask, block, axis), 0, extent, axis=axis)


def grouped_products(inputs: Arrays, params: Mapping[str, object]) -> jax.Array:
    """One group after the other; the platform xla's is in tiles."""
    lhs, rhs = inputs["lhs"], inputs.get("rhs")
    if lhs.ndim == 4:
        return jnp.einsum("bgmk,bgnk->bgmn", lhs, rhs)
    ends = np.cumsum(inputs["group_sizes"]).tolist()
    groups = list(zip([0, *ends[:-1]], ends, strict=True))
    if rhs is None:
        return jnp.stack([lhs[begin:end].T @ inputs["d_out"][begin:end] for begin, end in groups])
    if (mask := inputs["rhs_mask"]) is not None:
        rhs = rhs * blocks(blocks(mask, 1, params["block_k"], rhs.shape[1]), 2, params["block_n"], rhs.shape[2])
    out = jnp.concatenate([lhs[begin:end] @ rhs[g] for g, (begin, end) in enumerate(groups)])
    out = jnp.pad(out, ((0, lhs.shape[0] - out.shape[0]), (0, 0)))
    if (mask := inputs["out_mask"]) is not None:
        out = out * blocks(blocks(mask, 0, params["block_m"], out.shape[0]), 1, params["block_n"], out.shape[1])
    return out if inputs["existing_out"] is None else out + inputs["existing_out"]


def packed_recurrence(case: Case, arrays: Arrays) -> list[jax.Array]:
    """One sequence after the other."""
    offsets = arrays["cu_seqlens"].tolist()
    of_tokens = {name: x for name, x in arrays.items() if name != "cu_seqlens"}
    alone = Case(case.name, case.operation, {}, case.floats, case.params)
    each = [
        formula(alone, {name: x[None, begin:end] for name, x in of_tokens.items()})
        for begin, end in zip(offsets, offsets[1:])
    ]
    return [jnp.concatenate([out[0] for out, _ in each]), jnp.concatenate([state for _, state in each])]


def formula(case: Case, arrays: Arrays) -> list[jax.Array]:
    """The floating outputs by the plain jax.numpy formula, which JAX differentiates by itself."""
    if case.operation == "mean_pooling" and "cu_seqlens" in arrays:
        return [packed_means(arrays["x"], arrays["cu_seqlens"], case.params.get("chunk_size"))]
    if case.operation == "lightning_attention" and "cu_seqlens" in arrays:
        return packed_recurrence(case, arrays)
    op = OPERATIONS[case.operation]
    call, present = make_call(op, {**arrays, **case.params})
    inputs = dict.fromkeys(op.input_names) | dict(zip(call.given, present))
    params = {param.name: param.default for param in op.params} | dict(call.params)
    if op.name in ("grouped_matmul", "transposed_grouped_matmul"):
        return [grouped_products(inputs, params)]
    # As arrays of JAX, since NumPy's cannot be indexed by what is traced.
    inputs = {name: None if x is None else jnp.asarray(x) for name, x in inputs.items()}
    results = _xla.implementation(op.name)(inputs, params)
    named = [results[name] for name in _primitive.output_names(call, present)]
    return [x for x in named if jnp.issubdtype(x.dtype, jnp.floating)]


def of_each_alone(outputs: Sequence[Any]) -> list[list[Any]]:
    """Cotangents of the outputs where one of them has any, for each of them."""
    return [
        [weights(x) if i == n else np.zeros_like(weights(x)) for i, x in enumerate(outputs)]
        for n in range(len(outputs))
    ]


@functools.cache
def by_formula(case: Case) -> tuple[list[np.ndarray], list[dict[str, np.ndarray]]]:
    """The formula's outputs, and the gradients of each of them alone, if it has any: one program for all columns."""
    floats, others = split(case, case.arrays)

    def outputs_and_gradients(floats: Arrays) -> tuple[list[jax.Array], dict[str, jax.Array]]:
        if not differentiable(case):
            return formula(case, floats | others), {}
        outputs, pullback = jax.vjp(lambda floats: formula(case, floats | others), floats)
        stacked = [np.stack(rows) for rows in zip(*of_each_alone(outputs), strict=True)]
        return outputs, jax.vmap(lambda cotangents: pullback(cotangents)[0])(stacked)

    outputs, gradients = as_numpy(jax.jit(outputs_and_gradients)(floats))
    return outputs, [{name: x[n] for name, x in gradients.items()} for n in range(len(outputs))]


# ---- the columns ----


def check_jit(case: Case) -> None:
    results = jax.jit(case.run)(case.arrays)
    assert_equal(results, case.run(on_jax(case)))
    assert_close(results, by_formula(case)[0])
    assert_close(results, case.run(case.arrays))  # NumPy's, which the other columns compare with


def check_grad(case: Case) -> None:
    _, of_outputs = by_formula(case)
    got = gradient(case, case.arrays)
    assert_close(got, {name: sum(gradients[name] for gradients in of_outputs) for name in case.floats})
    assert_equal(compiled_gradient(case)(case.arrays), got)


def check_vjp(case: Case) -> None:
    """Each output alone, the others' cotangents being zeros, or symbolically zero."""
    floats, others = split(case, case.arrays)

    @jax.jit
    def both_ways(floats: Arrays) -> tuple[list[object], list[object]]:
        outputs, pullback = jax.vjp(lambda floats: case.run(floats | others), floats)
        zeros = [pullback(cotangents)[0] for cotangents in of_each_alone(outputs)]
        output = lambda n: lambda floats: (case.run(floats | others)[n] * weights(outputs[n])).sum()
        return zeros, [jax.grad(output(n))(floats) for n in range(len(outputs))]

    with_zeros, symbolic = both_ways(floats)
    _, expected = by_formula(case)
    assert_close(with_zeros, expected)
    assert_close(symbolic, with_zeros)


def slices(x: np.ndarray, axis: int) -> np.ndarray:
    """Three different ones along a new axis."""
    scales = (1.0, 0.5, -2.0) if jnp.issubdtype(x.dtype, jnp.floating) else (1, 1, 1)
    return np.stack([(x * s).astype(x.dtype) for s in scales], axis)


InAxes = Mapping[str, int | None]


def check_mapped(case: Case, function: Callable, single: Callable, *maps: InAxes) -> None:
    """A function under vmap over these axes, all in one program, against a single slice after the other."""
    mapped = [
        {name: x if axes[name] is None else slices(x, axes[name]) for name, x in case.arrays.items()} for axes in maps
    ]

    @jax.jit
    def program(mapped: list[Arrays]) -> list[object]:
        return [jax.vmap(function, in_axes=(axes,))(arrays) for axes, arrays in zip(maps, mapped, strict=True)]

    for got, axes, arrays in zip(as_numpy(program(mapped)), maps, mapped, strict=True):
        for n in range(3):
            one = {name: x if axes[name] is None else x.take(n, axes[name]) for name, x in arrays.items()}
            assert_close(jax.tree.map(lambda x: x[n], got), single(one))


def check_vmap_every_axis(case: Case) -> None:
    """All inputs at their axis 0, 1, …; then each input alone at its last one."""
    every = [
        {name: min(axis, x.ndim) for name, x in case.arrays.items()}
        for axis in range(1 + max(x.ndim for x in case.arrays.values()))
    ]
    alone = [{name: x.ndim if name == one else None for name, x in case.arrays.items()} for one in case.arrays]
    check_mapped(case, case.run, case.run, *every, *alone)


def check_vmap_of_vmap(case: Case) -> None:
    twice = {name: slices(slices(x, 0), 0) for name, x in case.arrays.items()}
    got = as_numpy(jax.jit(jax.vmap(jax.vmap(case.run)))(twice))
    assert_close([x[2, 1] for x in got], case.run({name: x[2, 1] for name, x in twice.items()}))


def check_vmap_of_grad(case: Case) -> None:
    """Everything mapped, and the first input alone: then the others' gradients are mapped all the same."""
    everything = dict.fromkeys(case.arrays, 0)
    first = {name: 0 if name == case.floats[0] else None for name in case.arrays}
    check_mapped(case, functools.partial(gradient, case), compiled_gradient(case), everything, first)


def check_grad_of_vmap(case: Case) -> None:
    floats, others = split(case, case.arrays)
    mapped = {name: slices(x, 0) for name, x in floats.items()}
    losses = lambda mapped: jax.vmap(lambda one: case.loss(one | others))(mapped)
    total = jax.jit(jax.grad(lambda mapped: losses(mapped).sum()))(mapped)
    each = [compiled_gradient(case)({name: x[n] for name, x in mapped.items()} | others) for n in range(3)]
    assert_close(total, jax.tree.map(lambda *gradients: np.stack(gradients), *each))


def check_scan(case: Case) -> None:
    """The loss and its gradient at three points, in one loop."""
    floats, others = split(case, case.arrays)
    mapped = {name: slices(x, 0) for name, x in floats.items()}
    value_and_gradient = jax.value_and_grad if differentiable(case) else lambda loss: lambda one: (loss(one), {})

    def step(carry: jax.Array, one: Arrays) -> tuple[jax.Array, Arrays]:
        value, gradients = value_and_gradient(lambda floats: case.loss(floats | others))(one)
        return carry + value, gradients

    total, gradients = jax.jit(lambda mapped: jax.lax.scan(step, 0.0, mapped))(mapped)
    points = [{name: x[n] for name, x in mapped.items()} | others for n in range(3)]
    assert_close(total, sum(case.loss(point) for point in points))
    if differentiable(case):
        assert_close(jax.tree.map(lambda x: x[1], as_numpy(gradients)), compiled_gradient(case)(points[1]))


def check_remat(case: Case) -> None:
    """With and without what the gradient needs being saved; the number of forward calls says which."""
    floats, others = split(case, case.arrays)
    names = [f"ejkernel.{case.operation}.{output}" for output in OPERATIONS[case.operation].output_names]
    forwards = {}
    for kind, policy in (
        ("nothing", jax.checkpoint_policies.nothing_saveable),
        ("names", jax.checkpoint_policies.save_only_these_names(*names)),
    ):

        def loss(floats: Arrays) -> jax.Array:
            return jax.checkpoint(lambda floats: case.loss(floats | others), policy=policy)(floats)

        # Of value and gradient: for a gradient alone the first forward run is not needed.
        lowered = jax.jit(jax.value_and_grad(loss)).lower(floats)
        assert_close(lowered.compile()(floats)[1], compiled_gradient(case)(case.arrays))
        program = lowered.as_text()
        forwards[kind] = program.count(f"operation\\22:\\22{case.operation}\\22")
    assert forwards["names"] <= forwards["nothing"]
    if any(field.name in ("out", "lse") for field in OPERATIONS[OPERATIONS[case.operation].gradient].inputs):
        assert forwards == {"nothing": 2, "names": 1}


def check_donation(case: Case) -> None:
    expected = case.run(on_jax(case))
    donated = on_jax(case)
    # What fits no output is not donated, and JAX says so.
    fits = {(x.shape, x.dtype) for x in expected} & {(x.shape, x.dtype) for x in case.arrays.values()}
    with _nothing() if fits else pytest.warns(UserWarning):
        got = jax.jit(case.run, donate_argnums=0)(donated)
    assert_equal(got, expected)


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def check_export(case: Case) -> None:
    """To bytes and back, gradient included."""
    allowed = [jax.export.DisabledSafetyCheck.custom_call("ejkernel_cpu")]
    floats, others = split(case, case.arrays)
    transform = jax.value_and_grad if differentiable(case) else lambda loss: loss
    function = jax.jit(transform(lambda floats: case.loss(floats | others)))
    exported = jax.export.export(function, disabled_checks=allowed)(floats)
    back = jax.export.deserialize(exported.serialize())
    assert_equal(back.call(floats), function(floats))


def check_shard_map(case: Case) -> None:
    """Over 1, 2, 4 and 8 devices, each with a call of its own; the gradient through it as well, if there is one."""
    floats, others = split(case, case.arrays)
    mapped = {name: np.concatenate([slices(x, 0)] * 3)[:8] for name, x in floats.items()}
    points = [{name: x[n] for name, x in mapped.items()} | others for n in range(8)]
    for devices in (1, 2, 4, 8):
        mesh = Mesh(np.array(jax.devices()[:devices]), ("i",))

        def each(mapped: Arrays) -> jax.Array:
            return jax.vmap(lambda one: case.loss(one | others))(mapped)

        sharded = jax.shard_map(each, mesh=mesh, in_specs=PartitionSpec("i"), out_specs=PartitionSpec("i"))

        @jax.jit
        def losses_and_gradients(mapped: Arrays) -> tuple[jax.Array, object]:
            if not differentiable(case):
                return sharded(mapped), {}
            losses, pullback = jax.vjp(sharded, mapped)
            return losses, pullback(jnp.ones_like(losses))[0]

        losses, gradients = as_numpy(losses_and_gradients(mapped))
        assert_close(losses, np.stack([case.loss(point) for point in points]))
        if differentiable(case):
            assert_close({name: x[5] for name, x in gradients.items()}, compiled_gradient(case)(points[5]))


def differentiable(case: Case) -> bool:
    return OPERATIONS[case.operation].gradient is not None


def check_refused(case: Case) -> None:
    """What an operation without a gradient says; a loss that does not come from it passes by it."""
    with pytest.raises(ejkernel.Unsupported, match=f"{case.operation}: it has no derivative"):
        jax.grad(lambda x: case.loss(case.arrays | {case.floats[0]: x}))(case.arrays[case.floats[0]])
    constant = jax.grad(lambda x: x * jax.lax.stop_gradient(case.loss(case.arrays)))(2.0)
    np.testing.assert_allclose(constant, case.loss(case.arrays), rtol=1e-5)


COLUMNS = {
    "jit": check_jit,
    "grad": check_grad,
    "vjp of each output": check_vjp,
    "vmap, every axis": check_vmap_every_axis,
    "vmap of vmap": check_vmap_of_vmap,
    "vmap of grad": check_vmap_of_grad,
    "grad of vmap": check_grad_of_vmap,
    "scan": check_scan,
    "remat": check_remat,
    "donation": check_donation,
    "export, reload": check_export,
    "shard_map, 1 to 8": check_shard_map,
}


# Columns that ask for a derivative.
DERIVATIVES = ("grad", "vjp of each output", "vmap of grad", "grad of vmap", "remat")


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("case", (*CASES, *UNDIFFERENTIABLE), ids=lambda case: case.name)
def test_grid(case: Case, column: str) -> None:
    if differentiable(case) or column not in DERIVATIVES:
        COLUMNS[column](case)
    elif column == "grad":
        check_refused(case)


@pytest.mark.parametrize("case", (*CASES, *UNDIFFERENTIABLE), ids=lambda case: case.name)
def test_vmap_of_a_batch_of_one(case: Case) -> None:
    """Each input mapped alone, where the call's own batch has one entry: then every input has an extent of 1, and none is
    a broadcast for that."""
    call, arrays = make_call(OPERATIONS[case.operation], {**case.arrays, **case.params})
    batch = _primitive.described(call, _primitive.specs_of(arrays))["batch"]
    axes = {} if batch is None else batch["inputs"]
    one = dataclasses.replace(
        case, arrays={name: x.take([0], axes[name]) if name in axes else x for name, x in case.arrays.items()}
    )
    alone = [{name: 0 if name == mapped else None for name in one.arrays} for mapped in one.arrays]
    check_mapped(one, one.run, one.run, *alone)


def test_every_operation_is_in_the_grid() -> None:
    gradients = {op.gradient for op in OPERATIONS.values()}
    assert {case.operation for case in CASES} == {op.name for op in OPERATIONS.values() if op.gradient is not None}
    others = {case.operation for case in UNDIFFERENTIABLE}
    assert others == {op.name for op in OPERATIONS.values() if op.gradient is None and op.name not in gradients}


# ---- the page ----


def is_one_call(case: Case) -> bool:
    """Whether the slices of a vmap over everything are one larger call; else there is a loop over them."""
    mapped = {name: jax.ShapeDtypeStruct((3, *x.shape), x.dtype) for name, x in case.arrays.items()}
    return "scan[" not in str(jax.make_jaxpr(jax.vmap(case.run))(mapped))


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "jax_transformations.md"


def page() -> str:
    lines = [
        "# Operations under JAX's transformations",
        "",
        "Each cell is a test (`./dev pytest tests/python/test_transformations.py`), in JAX 0.10.2, the newest that "
        "serves the oldest Python, and in the newest.",
        "",
        "| | " + " | ".join((*COLUMNS, "vmap is one call")) + " |",
        "|---|" + "---|" * (len(COLUMNS) + 1),
    ]
    for case in (*CASES, *UNDIFFERENTIABLE):
        cells = ["yes" if differentiable(case) or column not in DERIVATIVES else "none" for column in COLUMNS]
        lines.append(f"| {' | '.join((case.name, *cells, 'yes' if is_one_call(case) else 'no'))} |")
    lines += [
        "",
        "Where entries of the batch are calls of their own, `vmap` makes its slices entries of one larger call; otherwise "
        "(dropout, packed forms, caches in pages, rows in groups, an input mapped that entries share, gradients of what they "
        "share) slices run one after another, by one plan.",
        "",
        "Operations of inference have no derivative (none): to differentiate an input of theirs is an error that says so.",
        "",
        "Not there:",
        "",
        "- **Forward mode** (`jvp`, `jacfwd`, `hessian`) is refused for every operation; a second derivative likewise.",
        "- **Automatic partitioning**: a jitted call on arrays that are sharded over several devices runs whole on each of "
        "them. Wrap it in `jax.shard_map`, as the grid does.",
        "",
    ]
    return "\n".join(lines)


def test_the_page_is_this_grid() -> None:
    assert PAGE.read_text() == page(), "stale: python tests/python/test_transformations.py writes it"


if __name__ == "__main__":
    PAGE.write_text(page())


def test_without_jit_calls_are_the_same():
    query = jnp.asarray(np.random.default_rng(0).standard_normal((2, 4, 2, 8)), jnp.float32)

    def loss(query, **options):
        return (ejkernel.flash_attention(query, query, query, **options).out ** 2).sum()

    functions = (loss, jax.grad(loss), jax.vmap(lambda x: loss(x[None])), functools.partial(loss, platform="xla"))
    wanted = [function(query) for function in functions]
    with jax.disable_jit():
        for function, value in zip(functions, wanted, strict=True):
            np.testing.assert_allclose(function(query), value, rtol=1e-5)
            np.testing.assert_allclose(jax.jit(function)(query), value, rtol=1e-5)
