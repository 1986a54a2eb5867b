"""What stands behind the names of ejkernel.kernels."""

import jax.numpy as jnp
import numpy as np
import pytest

from ejkernel import InvalidArgument, Unsupported, modules
from ejkernel.kernels import Backend, KernelRegistry, Platform, kernel_registry

X = jnp.asarray(np.random.default_rng(0).standard_normal((2, 64, 32)).astype(np.float32))


def test_the_registry_shows_the_librarys_kernels():
    names = [spec.name for spec in kernel_registry.list_implementations("Flash_Attention")]
    assert names[-2:] == ["cpu", "reference"] and names[0].startswith("cuda")
    assert {"flash_attention", "attention", "mean_pooling"} <= set(kernel_registry.list_algorithms())
    expected = modules.mean_pooling(X)
    for platform in (None, "auto", "xla", Platform.REFERENCE):
        np.testing.assert_allclose(kernel_registry.get("mean_pooling", platform)(X), expected, rtol=1e-5, atol=1e-6)
    reference = kernel_registry.list_implementations("mean_pooling")[-1].implementation
    np.testing.assert_allclose(reference(x=X), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(Unsupported, match="no such algorithm; there are attention"):
        kernel_registry.get("ring_attention")


def test_signatures_must_be_the_declarations():
    registry = KernelRegistry()

    def refused(function, text):
        with pytest.raises(InvalidArgument, match=text):
            registry.register("mean_pooling", "xla", "any")(function)

    refused(lambda x, mask=None, cu_seqlens=None: x, "argument 4 of .* must be chunk_size=None, got nothing")
    refused(lambda x, mask=None, cu_seqlens=None, chunk_size=32: x, "must be chunk_size=None, got chunk_size=32")
    refused(lambda x, mask=None, *, chunk_size=None, cu_seqlens=None: x, "argument 3 of .* must be cu_seqlens=None")
    refused(
        lambda x, mask=None, cu_seqlens=None, chunk_size=None, **more: x,
        r"argument 5 of .* must be nothing, got \*\*more",
    )

    @registry.register("mean_pooling", "xla", "any")
    def mine(x, mask=None, cu_seqlens=None, chunk_size=None):
        return x

    refused(mine, "for xla and any is registered already")
    assert (
        registry.get("mean_pooling", "xla") is mine and registry.list_implementations("mean_pooling")[0].name == "mine"
    )

    first, second = (lambda a, b=1: a), (lambda a, b=1: b)
    registry.register("new", Platform.XLA, Backend.CPU)(first)
    registry.register("new", Platform.CPU, Backend.ANY, priority=1)(second)
    assert registry.get("new") is second and registry.get("new", Platform.XLA) is first
    with pytest.raises(InvalidArgument, match="must be b=1, got b=2"):
        registry.register("new", Platform.CUDA, Backend.GPU)(lambda a, b=2: a)
    with pytest.raises(Unsupported, match="nothing is registered for cuda"):
        registry.get("new", Platform.CUDA)
