"""What is refused, and with which sentence: an old jaxlib when the package is imported, a wrong call when it is traced."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from cases import CASES, Case

import ejkernel
from ejkernel import _check_jax


@pytest.mark.parametrize("version", ["0.8.3", "0.9.0"])
def test_a_jaxlib_that_is_too_old_is_named_with_what_is_needed(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxlib.version.__version__", version)
    with pytest.raises(ImportError, match=f"needs jaxlib 0.9.1 or newer, found {version}; pip install -U 'jax>=0.9.1'"):
        _check_jax.check_jax()


@pytest.mark.parametrize("version", ["0.9.1", "0.10.2", "0.12.0.1", "1.0.0"])
def test_newer_ones_are_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxlib.version.__version__", version)
    _check_jax.check_jax()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_operation_refuses_a_dtype_while_it_is_traced(case: Case) -> None:
    first = case.floats[0]
    wrong = case.arrays | {first: case.arrays[first].astype(jnp.complex64)}
    with pytest.raises(ejkernel.InvalidArgument, match=f"^{case.operation}: .*complex64"):
        jax.eval_shape(case.run, wrong)


@pytest.mark.parametrize("case", [c for c in CASES if "key" in c.arrays], ids=lambda case: case.name)
def test_shapes_that_do_not_fit_are_told_with_both_of_them(case: Case) -> None:
    wrong = case.arrays | {"key": case.arrays["key"][..., :4]}
    dim = case.arrays["query"].shape[-1]
    with pytest.raises(
        ejkernel.InvalidArgument, match=rf"^{case.operation}: key (\w+_dim) must equal query \1 {dim}, got 4"
    ):
        jax.jit(case.run).lower(wrong)


def test_arguments_that_it_does_not_have_are_named() -> None:
    x = jnp.ones((2, 4, 8))
    with pytest.raises(
        TypeError, match="mean_pooling: 'chunks' is no argument of it; they are x, mask, cu_seqlens, chunk_size"
    ):
        ejkernel.mean_pooling(x, chunks=2)
    with pytest.raises(TypeError, match="mean_pooling: x is given twice"):
        ejkernel.mean_pooling(x, x=x)
    with pytest.raises(ejkernel.InvalidArgument, match="chunk_size must be an integer, got 2.5"):
        ejkernel.mean_pooling(x, chunk_size=2.5)


def test_a_config_that_no_kernel_has_is_refused_when_it_is_chosen() -> None:
    x = jnp.ones((1, 8, 2, 16))
    with pytest.raises(ejkernel.InvalidArgument, match="block_q"):
        ejkernel.flash_attention(x, x, x, config={"block_q": 17})
