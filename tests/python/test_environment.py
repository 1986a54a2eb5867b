"""What the environment says to calls that do not say it themselves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ejkernel


def told() -> str:
    x = jnp.ones((1, 4, 2, 8))
    return ejkernel.explain(ejkernel.flash_attention, x, x, x)


@pytest.mark.parametrize("name", ["reference", "xla", "cpu"])
def test_a_platform_is_that_of_every_call_that_names_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EJKERNEL_PLATFORM", name)
    x = np.random.default_rng(0).standard_normal((1, 4, 2, 8), np.float32)
    assert f"  kernel {name}" in told()
    expected = ejkernel.flash_attention(x, x, x, platform="cpu").out
    got = jax.jit(lambda x: ejkernel.flash_attention(x, x, x).out)(x)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_platform_works_or_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EJKERNEL_PLATFORM", "pallas")
    with pytest.raises(ejkernel.Unsupported, match="platform pallas"):
        told()


def test_auto_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    before = told()
    monkeypatch.setenv("EJKERNEL_PLATFORM", "auto")
    assert told() == before
