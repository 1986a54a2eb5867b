"""One small call of every operation and form: what the grid of transformations and other tests run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

import ejkernel


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    operation: str
    arrays: Mapping[str, jax.Array]  # floating inputs first: those that a gradient is for
    floats: tuple[str, ...]
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def run(self, arrays: Mapping[str, jax.Array], **options: Any) -> list[jax.Array]:
        """The floating outputs."""
        result = getattr(ejkernel, self.operation)(**arrays, **self.params, **options)
        outputs = result if isinstance(result, tuple) else (result,)
        return [x for x in outputs if x is not None and jnp.issubdtype(x.dtype, jnp.floating)]

    def loss(self, arrays: Mapping[str, jax.Array], **options: Any) -> jax.Array:
        """A scalar that depends on every floating output, with a weight of its own for each element."""
        return sum(
            jnp.sum(x * jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape))
            for x in self.run(arrays, **options)
        )


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def _attention_arrays() -> dict[str, jax.Array]:
    return {
        "query": normal(0, 2, 8, 4, 16),
        "key": normal(1, 2, 12, 2, 16),
        "value": normal(2, 2, 12, 2, 16),
        "bias": normal(3, 2, 4, 8, 12),
    }


_QKV = ("query", "key", "value")

CASES = (
    Case("flash_attention", "flash_attention", _attention_arrays(), (*_QKV, "bias"), {"causal": True}),
    Case(
        "flash_attention, sinks",
        "flash_attention",
        _attention_arrays() | {"softmax_aux": normal(4, 4, 1), "bias": normal(3, 1, 4, 8, 12)},
        (*_QKV, "bias", "softmax_aux"),
        {"sliding_window": (3, 2), "logits_soft_cap": 5.0},
    ),
    Case(
        "flash_attention, dropout",
        "flash_attention",
        _attention_arrays() | {"dropout_seed": jnp.array([3, 5], jnp.uint32)},
        (*_QKV, "bias"),
        {"dropout_prob": 0.25},
    ),
    Case(
        "flash_attention, packed",
        "flash_attention",
        {
            "query": normal(0, 16, 4, 16),
            "key": normal(1, 20, 2, 16),
            "value": normal(2, 20, 2, 16),
            "cu_seqlens_q": jnp.array([0, 5, 5, 16], jnp.int32),
            "cu_seqlens_k": jnp.array([0, 9, 12, 20], jnp.int32),
        },
        _QKV,
    ),
    Case("attention", "attention", _attention_arrays(), (*_QKV, "bias"), {"causal": True}),
    Case(
        "scaled_dot_product_attention",
        "scaled_dot_product_attention",
        _attention_arrays() | {"key_value_seq_lengths": jnp.array([12, 7], jnp.int32)},
        (*_QKV, "bias"),
    ),
    Case(
        "mean_pooling",
        "mean_pooling",
        {"x": normal(0, 2, 6, 8), "mask": jnp.array([[1, 1, 1, 1, 0, 0], [1, 0, 1, 1, 1, 1]], bool)},
        ("x",),
    ),
    Case(
        "mean_pooling, packed",
        "mean_pooling",
        {"x": normal(0, 12, 8), "cu_seqlens": jnp.array([0, 5, 5, 12], jnp.int32)},
        ("x",),
    ),
    Case("mean_pooling, chunked", "mean_pooling", {"x": normal(0, 2, 6, 4, 8)}, ("x",), {"chunk_size": 4}),
    Case(
        "mean_pooling, packed chunked",
        "mean_pooling",
        {"x": normal(0, 12, 4, 8), "cu_seqlens": jnp.array([0, 5, 5, 12], jnp.int32)},
        ("x",),
        {"chunk_size": 4},
    ),
)
