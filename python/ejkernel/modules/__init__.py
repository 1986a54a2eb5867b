"""The operations under the names, argument orders and results of the Python library that came before.

    from ejkernel.modules import FlashAttentionConfig, flash_attention
    out = flash_attention(query, key, value, causal=True)

New code has more from `ejkernel` itself: every output, every parameter. docs/python_names.md lists the differences.
"""

from ejkernel.modules.configs import (
    AttentionConfig,
    BaseOperationConfig,
    FlashAttentionConfig,
    GroupedMatmulConfig,
    MeanPoolingConfig,
    PageAttentionConfig,
    RaggedDecodeAttentionConfig,
    RaggedPageAttentionConfig,
    RaggedPageAttentionv3Config,
    ScaledDotProductAttentionConfig,
)
from ejkernel.modules.functions import (
    attention,
    flash_attention,
    grouped_matmul,
    mean_pooling,
    page_attention,
    ragged_decode_attention,
    ragged_page_attention,
    ragged_page_attention_v3,
    scaled_dot_product_attention,
)
from ejkernel.modules.kernels import (
    Attention,
    FlashAttention,
    GroupedMatmul,
    MeanPooling,
    PageAttention,
    RaggedDecodeAttention,
    RaggedPageAttention,
    RaggedPageAttentionv3,
    ScaledDotProductAttention,
    create_default_executor,
)

__all__ = [
    "Attention",
    "AttentionConfig",
    "BaseOperationConfig",
    "FlashAttention",
    "FlashAttentionConfig",
    "GroupedMatmul",
    "GroupedMatmulConfig",
    "MeanPooling",
    "MeanPoolingConfig",
    "PageAttention",
    "PageAttentionConfig",
    "RaggedDecodeAttention",
    "RaggedDecodeAttentionConfig",
    "RaggedPageAttention",
    "RaggedPageAttentionConfig",
    "RaggedPageAttentionv3",
    "RaggedPageAttentionv3Config",
    "ScaledDotProductAttention",
    "ScaledDotProductAttentionConfig",
    "attention",
    "create_default_executor",
    "flash_attention",
    "grouped_matmul",
    "mean_pooling",
    "page_attention",
    "ragged_decode_attention",
    "ragged_page_attention",
    "ragged_page_attention_v3",
    "scaled_dot_product_attention",
]
