"""recurrent_attention and its gradient: one token of every sequence at a time, as the formula stands.

The gradient keeps a state for every segment of about sqrt(T) tokens and makes a segment's states again on the way back.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ejkernel._xla.attention_problem import FLOATS
from ejkernel._xla.sequences import packed_spans

_PER_TOKEN = ("query", "key", "value", "g", "gk", "gv")


def recurrent_attention(inputs: dict, params: dict) -> dict:
    tokens = {name: inputs[name] for name in _PER_TOKEN}
    out, final_state = _forward(
        tokens,
        inputs["g_gamma"],
        inputs["initial_state"],
        inputs["cu_seqlens"],
        _scale(inputs, params),
        params["reverse"],
    )
    asked = params["state_dtype"]
    return {"out": out, "final_state": final_state if asked is None else final_state.astype(FLOATS[asked])}


def recurrent_attention_backward(inputs: dict, params: dict) -> dict:
    tokens = {name: inputs[name] for name in (*_PER_TOKEN, "d_out")}
    gradients = _backward(
        tokens,
        inputs["g_gamma"],
        inputs["initial_state"],
        inputs["d_final_state"],
        inputs["cu_seqlens"],
        _scale(inputs, params),
        params["reverse"],
    )
    return {
        name: gradient.astype(inputs[name].dtype) for name, gradient in gradients.items() if inputs[name] is not None
    }


def _scale(inputs: dict, params: dict) -> float:
    given = params["softmax_scale"]
    return 1 / math.sqrt(inputs["query"].shape[-1]) if given is None else given


class _Sequences(NamedTuple):
    """Whose tokens a step takes: token i of every sequence, in the order of the recurrence."""

    begin: jax.Array
    length: jax.Array
    packed: bool
    reverse: bool

    @classmethod
    def of(cls, query: jax.Array, cu_seqlens: jax.Array | None, reverse: bool) -> "_Sequences":
        if cu_seqlens is not None:
            return cls(*packed_spans(cu_seqlens, query.shape[0]), True, reverse)
        batch, length = query.shape[:2]
        return cls(jnp.zeros(batch, jnp.int32), jnp.full(batch, length, jnp.int32), False, reverse)

    def there(self, i, rank: int = 1) -> jax.Array:
        """Of each sequence: whether it has a token i."""
        return (i < self.length).reshape(-1, *[1] * (rank - 1))

    def _rows(self, x: jax.Array, i):
        """Where token i is, outside of x for sequences without one."""
        num_rows = x.shape[0 if self.packed else 1]
        row = self.begin + (self.length - 1 - i if self.reverse else i)
        row = jnp.where(self.there(i), row, num_rows)
        return row if self.packed else (jnp.arange(x.shape[0]), row)

    def take(self, x: jax.Array, i) -> jax.Array:
        return x.at[self._rows(x, i)].get(mode="fill", fill_value=0)

    def put(self, x: jax.Array, i, rows: jax.Array) -> jax.Array:
        return x.at[self._rows(x, i)].set(rows.astype(x.dtype), mode="drop")


class _Step(NamedTuple):
    """Token i of every sequence, [sequence, query head, …] each, in the dtype of states."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    decay: jax.Array
    d_out: jax.Array | None

    def update(self, state: jax.Array) -> jax.Array:
        return self.decay * state + self.key[..., :, None] * self.value[..., None, :]


def _step(sequences: _Sequences, tokens: dict, g_gamma: jax.Array | None, dtype, i) -> _Step:
    x = {name: sequences.take(t, i).astype(dtype) for name, t in tokens.items() if t is not None}
    group = x["query"].shape[1] // x["key"].shape[1]
    gates = jnp.zeros((1, 1, 1, 1), dtype)
    if g_gamma is not None:
        gates += g_gamma.astype(dtype)[None, :, None, None]
    for name, axes in (("g", (-2, -1)), ("gk", (-1,)), ("gv", (-2,))):
        if name in x:
            gates += jnp.expand_dims(x[name], axes)
    key, value = (jnp.repeat(x[name], group, axis=1) for name in ("key", "value"))
    return _Step(x["query"], key, value, jnp.exp(gates), x.get("d_out"))


def _states(tokens: dict, num_sequences: int, given: jax.Array | None) -> jax.Array:
    query, value = tokens["query"], tokens["value"]
    dtype = jnp.float64 if query.dtype == jnp.float64 else jnp.float32
    shape = (num_sequences, query.shape[-2], query.shape[-1], value.shape[-1])
    return jnp.zeros(shape, dtype) if given is None else given.astype(dtype)


def _longest(sequences: _Sequences) -> jax.Array:
    return jnp.max(sequences.length, initial=0)


@functools.partial(jax.jit, static_argnames="reverse")  # else the loop is compiled at every call
def _forward(tokens: dict, g_gamma, initial_state, cu_seqlens, scale: float, reverse: bool):
    sequences = _Sequences.of(tokens["query"], cu_seqlens, reverse)
    state = _states(tokens, sequences.length.shape[0], initial_state)
    query, value = tokens["query"], tokens["value"]
    out = jnp.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)

    def take(i, carry):
        state, out = carry
        step = _step(sequences, tokens, g_gamma, state.dtype, i)
        state = jnp.where(sequences.there(i, 4), step.update(state), state)
        return state, sequences.put(out, i, scale * jnp.einsum("nhk,nhkv->nhv", step.query, state))

    state, out = jax.lax.fori_loop(0, _longest(sequences), take, (state, out)) if out.size else (state, out)
    return out, state


@functools.partial(jax.jit, static_argnames="reverse")
def _backward(tokens: dict, g_gamma, initial_state, d_final_state, cu_seqlens, scale: float, reverse: bool) -> dict:
    query = tokens["query"]
    sequences = _Sequences.of(query, cu_seqlens, reverse)
    num_sequences, longest = sequences.length.shape[0], _longest(sequences)
    first, last = (_states(tokens, num_sequences, x) for x in (initial_state, d_final_state))
    gradients = {name: jnp.zeros(tokens[name].shape, first.dtype) for name in _PER_TOKEN if tokens[name] is not None}
    gamma = jnp.zeros(query.shape[-2], first.dtype)
    num_rows = query.shape[-3]
    if num_rows == 0 or num_sequences == 0:
        return {**gradients, "g_gamma": gamma, "initial_state": last}
    segment = math.isqrt(num_rows - 1) + 1
    step_at = functools.partial(_step, sequences, tokens, g_gamma, first.dtype)

    def advance(i, state):
        return jnp.where(sequences.there(i, 4), step_at(i).update(state), state)

    def keep(i, carry):
        state, kept = carry
        kept = jax.lax.cond(i % segment == 0, lambda: kept.at[i // segment].set(state), lambda: kept)
        return advance(i, state), kept

    kept = jnp.zeros((-(-num_rows // segment), *first.shape), first.dtype)
    kept = jax.lax.fori_loop(0, longest, keep, (first, kept))[1]

    def turn_back(n, carry):
        """Segment n from the end: its states anew, then its tokens, last one first."""
        s = -(-longest // segment) - 1 - n
        begin = s * segment
        count = jnp.minimum(segment, longest - begin)

        def again(j, states):
            return states.at[j + 1].set(advance(begin + j, states[j]), mode="drop")

        states = jnp.zeros((segment, *first.shape), first.dtype).at[0].set(kept[s])
        states = jax.lax.fori_loop(0, count, again, states)
        return jax.lax.fori_loop(0, count, lambda n, carry: differentiate(begin, states, count - 1 - n, carry), carry)

    def differentiate(begin, states, j, carry):
        d_state, gamma, gradients = carry
        i, before, step = begin + j, states[j], step_at(begin + j)
        there = sequences.there(i, 4)
        if step.d_out is not None:
            d_state = d_state + scale * step.query[..., :, None] * step.d_out[..., None, :]  # 0 where there is no token
        gate = jnp.where(there, step.decay * before * d_state, 0)
        found = {
            "key": _sum_group(jnp.einsum("nhkv,nhv->nhk", d_state, step.value), tokens["key"].shape[-2]),
            "value": _sum_group(jnp.einsum("nhkv,nhk->nhv", d_state, step.key), tokens["value"].shape[-2]),
            "g": gate.sum((2, 3)),
            "gk": gate.sum(3),
            "gv": gate.sum(2),
        }
        if step.d_out is not None:
            found["query"] = scale * jnp.einsum("nhkv,nhv->nhk", step.update(before), step.d_out)
        put = {name: sequences.put(x, i, found[name]) if name in found else x for name, x in gradients.items()}
        return jnp.where(there, step.decay * d_state, d_state), gamma + gate.sum((0, 2, 3)), put

    d_state, gamma, gradients = jax.lax.fori_loop(0, -(-longest // segment), turn_back, (last, gamma, gradients))
    return {**gradients, "g_gamma": gamma, "initial_state": d_state}


def _sum_group(x: jax.Array, num_kv_heads: int) -> jax.Array:
    """[sequence, query head, dim] to [sequence, kv head, dim]."""
    return x.reshape(x.shape[0], num_kv_heads, -1, x.shape[-1]).sum(2)
