"""The operations as kernels for an executor: `executor(FlashAttention(), query, key, value, causal=True)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax

from ejkernel.modules import functions
from ejkernel.modules.configs import (
    AttentionConfig,
    BaseOperationConfig,
    FlashAttentionConfig,
    GLAttentionConfig,
    GroupedMatmulConfig,
    LightningAttentionConfig,
    MeanPoolingConfig,
    PageAttentionConfig,
    RaggedDecodeAttentionConfig,
    RaggedPageAttentionConfig,
    RaggedPageAttentionv3Config,
    RecurrentAttentionConfig,
    RnnConfig,
    ScaledDotProductAttentionConfig,
)
from ejkernel.ops import ConfigSelectorChain, Executor, Invocation, Kernel, PersistentCache, Tuner
from ejkernel.ops.config.selection import Selection


class _LibraryKernel(Kernel[BaseOperationConfig, jax.Array]):
    """The library finds the config: its tiers stand behind one that names nothing."""

    function: ClassVar[Callable[..., Any]]
    config: ClassVar[type[BaseOperationConfig]]

    def run(self, *args: Any, cfg: Any, **kwargs: Any) -> Any:
        return type(self).function(*args, cfg=cfg, **kwargs)

    def heuristic_cfg(self, invocation: Invocation) -> BaseOperationConfig:
        return self.config()

    def select(self, invocation: Invocation) -> Selection:
        given = invocation.override_cfg
        return Selection(self.config(), "heuristics") if given is None else Selection(given, "override")


class FlashAttention(_LibraryKernel):
    op_id = "flash_attention"
    function = staticmethod(functions.flash_attention)
    config = FlashAttentionConfig


class Attention(_LibraryKernel):
    op_id = "attention"
    function = staticmethod(functions.attention)
    config = AttentionConfig


class ScaledDotProductAttention(_LibraryKernel):
    op_id = "scaled_dot_product_attention"
    function = staticmethod(functions.scaled_dot_product_attention)
    config = ScaledDotProductAttentionConfig


class MeanPooling(_LibraryKernel):
    op_id = "mean_pooling"
    function = staticmethod(functions.mean_pooling)
    config = MeanPoolingConfig


class PageAttention(_LibraryKernel):
    op_id = "page_attention"
    function = staticmethod(functions.page_attention)
    config = PageAttentionConfig


class RaggedDecodeAttention(_LibraryKernel):
    op_id = "ragged_decode_attention"
    function = staticmethod(functions.ragged_decode_attention)
    config = RaggedDecodeAttentionConfig


class RaggedPageAttention(_LibraryKernel):
    op_id = "ragged_page_attention"
    function = staticmethod(functions.ragged_page_attention)
    config = RaggedPageAttentionConfig


class RaggedPageAttentionv3(_LibraryKernel):
    op_id = "ragged_page_attention_v3"
    function = staticmethod(functions.ragged_page_attention_v3)
    config = RaggedPageAttentionv3Config


class RecurrentAttention(_LibraryKernel):
    op_id = "recurrent"
    function = staticmethod(functions.recurrent_attention)
    config = RecurrentAttentionConfig


class GLAttention(_LibraryKernel):
    op_id = "gla"
    function = staticmethod(functions.gla_attention)
    config = GLAttentionConfig


class LightningAttention(_LibraryKernel):
    op_id = "lightning_attn"
    function = staticmethod(functions.lightning_attention)
    config = LightningAttentionConfig


class GroupedMatmul(_LibraryKernel):
    op_id = "grouped_matmul"
    function = staticmethod(functions.grouped_matmul)
    config = GroupedMatmulConfig


class Rnn(_LibraryKernel):
    op_id = "rnn"
    function = staticmethod(functions.rnn)
    config = RnnConfig


def create_default_executor(
    persistent_cache_path: str | None = None,
    enable_autotuning: bool | None = None,
    warmup_iterations: int = 2,
    timing_iterations: int = 10,
) -> Executor:
    """An executor with both caches. `enable_autotuning` left out: as EJKERNEL_AUTOTUNE_POLICY says. It concerns kernels
    written in Python; the library's measure by the library's policy."""
    return Executor(
        ConfigSelectorChain(
            tuner=Tuner(warmup_iterations, timing_iterations),
            persistent=PersistentCache(persistent_cache_path),
            autotune=enable_autotuning,
        )
    )
