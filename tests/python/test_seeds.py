"""The code of the documents that the project began with, where it concerns operations that stand, by its own import
paths.

Each test names its document and section. Where a line differs, a comment says so, and docs/python_names.md says why.
Blocks about operations that do not stand yet, and blocks of plain JAX without ejkernel, are not here."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from seeds import ON_GPU, a, k, key, normal, q, query, v, value
from seeds import home_folder as home_folder  # every test has it

from ejkernel import Unsupported

# ---- 0_reports_index.md ----


def test_adding_a_new_kernel():
    """Quick reference: adding a new kernel."""
    from ejkernel.kernels import Backend, Platform, kernel_registry
    from ejkernel.ops import Executor, Kernel

    executor = Executor()
    Array = jax.Array

    @dataclass(frozen=True)
    class MyConfig:
        platform: str = "triton"
        scale: float = 2.0

        def to_dict(self):
            return {"scale": self.scale}

    # 1. Register implementation
    @kernel_registry.register("my_kernel", Platform.TRITON, Backend.GPU)
    def my_kernel_triton(inputs, **kwargs):
        return inputs * kwargs["scale"]

    # 2. Create module wrapper
    class MyKernel(Kernel[MyConfig, Array]):
        def run(self, inputs, cfg: MyConfig):
            impl = kernel_registry.get("my_kernel", cfg.platform)
            return impl(inputs, **cfg.to_dict())

    # 3. Provide convenience function
    def my_kernel(inputs, cfg=None):
        return executor(MyKernel(), inputs, _cfg=cfg)

    np.testing.assert_array_equal(my_kernel(a, MyConfig()), 2 * a)


def test_using_flash_attention():
    """Quick reference: using flash attention."""
    from ejkernel.modules import flash_attention

    # Basic usage with automatic optimization
    output = flash_attention(query, key, value, causal=True)
    assert output.shape == query.shape

    # With custom configuration
    from ejkernel.modules import FlashAttentionConfig
    from ejkernel.ops.utils.datacarrier import FwdParams

    config = FlashAttentionConfig(fwd_params=FwdParams(q_blocksize=256, kv_blocksize=256), platform="triton")
    if not ON_GPU:
        with pytest.raises(Unsupported, match="needs a CUDA device"):
            flash_attention(query, key, value, cfg=config)
        config = FlashAttentionConfig(fwd_params=FwdParams(q_blocksize=256, kv_blocksize=256))
    output = flash_attention(query, key, value, cfg=config)
    np.testing.assert_allclose(output, flash_attention(query, key, value), rtol=1e-3, atol=1e-3)


# ---- 1_project_overview.md ----


def test_usage_example():
    """Usage example, on shorter sequences."""
    from ejkernel.modules import FlashAttention, create_default_executor

    # Initialize
    executor = create_default_executor()
    attention = FlashAttention()

    # Create inputs
    batch, seq_len, num_heads, head_dim = 2, 64, 8, 64
    key = jax.random.PRNGKey(0)
    q = k = v = jax.random.normal(key, (batch, seq_len, num_heads, head_dim))

    # Execute attention with automatic optimization
    output = executor(
        attention,
        q,
        k,
        v,
        causal=True,
        dropout_prob=0.1,
        logits_soft_cap=30.0,  # Gemma-2 style soft capping
    )
    assert output.shape == q.shape and bool(jnp.isfinite(output).all())


# ---- 2_kernel_implementations.md ----


def test_registering_flash_attention():
    """Triton implementation, XLA implementation, Pallas TPU implementation: the signature is the declaration's, and
    without jaxtyping, which the package does not need."""
    from ejkernel import InvalidArgument
    from ejkernel.kernels import Backend, KernelRegistry, Platform
    from ejkernel.ops import BwdParams, FwdParams

    registry = KernelRegistry()
    with pytest.raises(
        InvalidArgument, match="argument 4 of 'flash_attention' must be bias=None, got attention_mask=None"
    ):

        @registry.register("flash_attention", Platform.TRITON, Backend.GPU)
        def flash_attention(
            query: jax.Array,
            key: jax.Array,
            value: jax.Array,
            attention_mask: jax.Array | None = None,
            bias: jax.Array | None = None,
            causal: bool = False,
            softmax_scale: float | None = None,
            dropout_prob: float = 0.0,
            dropout_seed: int | None = None,
            fwd_params: FwdParams | None = None,
            bwd_params: BwdParams | None = None,
        ) -> jax.Array: ...


def test_mask_to_segment_ids():
    """TPU-specific adaptations: conversion of the mask."""
    from ejkernel.xla_utils import mask_to_segment_ids

    attention_mask = jnp.array([[[True, True, False], [True, True, False], [False, False, True]]])
    q_segment_ids, kv_segment_ids = mask_to_segment_ids(attention_mask)
    assert q_segment_ids.tolist() == kv_segment_ids.tolist() == [[0, 0, 1]]


def test_registering_mean_pooling():
    """Mean pooling: its arguments are named and ordered as the declaration has them (x, cu_seqlens and chunk_size
    too)."""
    from ejkernel.kernels import Backend, KernelRegistry, Platform
    from ejkernel.modules import mean_pooling

    registry = KernelRegistry()

    @registry.register("mean_pooling", Platform.XLA, Backend.ANY)
    def mean_pooling_xla(x, mask=None, cu_seqlens=None, *, chunk_size=None):
        if mask is not None:
            # Masked mean
            masked_inputs = x * mask[:, :, None]
            sum_inputs = jnp.sum(masked_inputs, axis=1)
            count = jnp.sum(mask, axis=1, keepdims=True)
            return sum_inputs / jnp.maximum(count, 1.0)
        else:
            # Standard mean
            return jnp.mean(x, axis=1)

    x, mask = normal(2, 9, 16), jnp.arange(9) < jnp.array([[4], [0]])
    implementation = registry.get("mean_pooling", Platform.XLA)
    assert implementation is mean_pooling_xla
    np.testing.assert_allclose(implementation(x, mask), mean_pooling(x, mask), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(implementation(x), mean_pooling(x), rtol=1e-5, atol=1e-6)


def test_attention_consistency():
    """Cross-backend validation: triton and pallas mean cuda where there is a CUDA device."""
    from ejkernel.kernels import Platform, kernel_registry

    # Generate test inputs
    inputs = dict(query=query, key=key, value=value)

    # Get all implementations
    xla_impl = kernel_registry.get("attention", Platform.XLA)
    out_xla, weights_xla = xla_impl(**inputs)  # a pair
    for platform in (Platform.TRITON, Platform.PALLAS):
        if not ON_GPU:
            with pytest.raises(Unsupported):
                kernel_registry.get("attention", platform)
            platform = Platform.CPU
        out, weights = kernel_registry.get("attention", platform)(**inputs)
        np.testing.assert_allclose(out, out_xla, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(weights, weights_xla, rtol=1e-4, atol=1e-5)


def test_custom_vjp():
    """Gradient verification."""
    from ejkernel.modules import flash_attention

    def kernel_with_custom_vjp(q):
        return flash_attention(q, k, v, causal=True).sum()

    def kernel_without_vjp(q):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True).sum()

    custom_grads = jax.grad(kernel_with_custom_vjp)(q)
    auto_grads = jax.grad(kernel_without_vjp)(q)
    np.testing.assert_allclose(custom_grads, auto_grads, rtol=1e-3, atol=1e-4)
