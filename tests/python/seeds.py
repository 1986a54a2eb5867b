"""What the tests of the documents' code share."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ON_GPU = jax.default_backend() == "gpu"


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


q = k = v = query = key = value = normal(2, 64, 4, 32)
a = b = normal(64, 64)


@dataclass(frozen=True)
class MyConfig:
    block_size: int = 128
    num_warps: int = 4
    algorithm: str = "default"


@pytest.fixture(autouse=True, name="home")
def home_folder(monkeypatch, tmp_path):
    """Default folders of caches are this test's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("EJKERNEL_CACHE_DIR", raising=False)
    return tmp_path
