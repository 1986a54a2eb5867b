"""The operations under the names, argument orders and results of the Python library that came before.

    from ejkernel.modules import FlashAttentionConfig, flash_attention
    out = flash_attention(query, key, value, causal=True)

New code has more from `ejkernel` itself: every output, every parameter. docs/python_names.md lists the differences.
"""

from ejkernel.modules.configs import (
    AttentionConfig,
    BaseOperationConfig,
    FlashAttentionConfig,
    MeanPoolingConfig,
    ScaledDotProductAttentionConfig,
)
from ejkernel.modules.functions import attention, flash_attention, mean_pooling, scaled_dot_product_attention
from ejkernel.modules.kernels import (
    Attention,
    FlashAttention,
    MeanPooling,
    ScaledDotProductAttention,
    create_default_executor,
)

__all__ = [
    "Attention",
    "AttentionConfig",
    "BaseOperationConfig",
    "FlashAttention",
    "FlashAttentionConfig",
    "MeanPooling",
    "MeanPoolingConfig",
    "ScaledDotProductAttention",
    "ScaledDotProductAttentionConfig",
    "attention",
    "create_default_executor",
    "flash_attention",
    "mean_pooling",
    "scaled_dot_product_attention",
]
