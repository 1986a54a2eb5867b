"""XLA's handlers meet programs that no lowering of ours wrote: each is refused with a sentence, and nothing is read or
written that the program does not own."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ejkernel

X = jnp.arange(2 * 8 * 16, dtype=jnp.float32).reshape(2, 8, 16)
OUT = jax.ShapeDtypeStruct((2, 16), jnp.float32)


def planned(**changes: Any) -> str:
    """What lowering writes of mean_pooling's call for X, with changes."""
    lowered = jax.jit(lambda x: ejkernel.mean_pooling(x, kernel="cpu").out).lower(X)
    (call,) = ejkernel.planned_calls_in(lowered.as_text())
    return json.dumps(call | changes)


def run(call: Any, *operands: jax.Array, results: tuple[jax.ShapeDtypeStruct, ...] = (OUT,)) -> list[jax.Array]:
    program = jax.jit(lambda *xs: jax.ffi.ffi_call("ejkernel_cpu", results)(*xs, call=call))
    return jax.block_until_ready(program(*operands))


def test_the_call_that_lowering_writes_is_right() -> None:
    (out,) = run(planned(), X)
    np.testing.assert_allclose(out, np.asarray(X).mean(axis=1), rtol=1e-6)


def test_calls_that_are_none_are_refused_when_the_program_is_loaded() -> None:
    for text, sentence in (
        ("nonsense", "version"),
        ("{}", "version"),
        (planned(version=10**6), "version"),
        (planned(config={"block": -1}), "mean_pooling"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"(INVALID_ARGUMENT|FAILED_PRECONDITION).*{sentence}"):
            run(text, X)
    with pytest.raises(jax.errors.JaxRuntimeError, match="Wrong attribute type: expected string"):
        run(7, X)


def test_strided_plans_are_refused_when_the_program_is_loaded() -> None:
    call = json.loads(planned())
    inner = call["call"]
    strided = inner | {"inputs": [inner["inputs"][0] | {"strides": [256, 16, 1]}]}
    with pytest.raises(
        jax.errors.JaxRuntimeError, match="mean_pooling: x must be planned contiguous, as XLA's buffers"
    ):
        run(json.dumps(call | {"call": strided}), X)


@pytest.mark.parametrize(
    "operands, results, sentence",
    [
        ((X[:1],), (OUT,), "XLA's buffer has another shape than was planned"),
        ((X.astype(jnp.bfloat16),), (OUT,), "XLA's buffer has smaller elements than were planned"),
        ((X, X), (OUT,), "XLA gives more buffers than were planned"),
        ((), (OUT,), "XLA gives fewer buffers than were planned"),
        ((X,), (jax.ShapeDtypeStruct((2, 8), jnp.float32),), "XLA's buffer has another shape than was planned"),
        ((X,), (jax.ShapeDtypeStruct((2, 16), jnp.float16),), "XLA's buffer has smaller elements than were planned"),
        ((X,), (OUT, OUT), "XLA gives more buffers than were planned"),
    ],
)
def test_buffers_that_are_not_the_plans_are_refused(
    operands: tuple[jax.Array, ...], results: tuple[jax.ShapeDtypeStruct, ...], sentence: str
) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"INTERNAL.*mean_pooling: {sentence}"):
        run(planned(), *operands, results=results)
