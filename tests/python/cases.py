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

_PAGES = {
    "context_lens": jnp.array([7, 12, 0], jnp.int32),
    "block_tables": jnp.array([[4, 1, 0], [2, 5, 3], [9, 9, 9]], jnp.int32),
}
_PACKED = _PAGES | {"query_start_loc": jnp.array([0, 3, 8, 8], jnp.int32)}


def _caches() -> dict[str, jax.Array]:
    return {"key_cache": normal(1, 6, 4, 2, 16), "value_cache": normal(2, 6, 4, 2, 8)}


# Operations without a gradient: what can be asked of them is the rest of the grid.
UNDIFFERENTIABLE = (
    Case(
        "page_attention",
        "page_attention",
        {"query": normal(0, 3, 4, 16), **_caches(), "softmax_aux": normal(3, 4, 1), **_PAGES},
        ("query", "key_cache", "value_cache", "softmax_aux"),
        {"sliding_window": 5, "logits_soft_cap": 5.0},
    ),
    Case(
        "page_attention, int8 cache",
        "page_attention",
        {
            "query": normal(0, 3, 4, 16),
            "key_cache": (40 * normal(1, 6, 2, 4, 16)).astype(jnp.int8),
            "value_cache": (40 * normal(2, 6, 2, 4, 8)).astype(jnp.int8),
            "k_scale": jnp.array([0.025, 0.03]),
            "v_scale": jnp.array(0.025),
            **_PAGES,
        },
        ("query", "k_scale", "v_scale"),
        {"cache_layout": "head_major"},
    ),
    Case(
        "page_append",
        "page_append",
        {"keys": normal(3, 8, 2, 16), "values": normal(4, 8, 2, 8), **_caches(), **_PACKED},
        ("keys", "values", "key_cache", "value_cache"),
    ),
    Case(
        "ragged_decode_attention",
        "ragged_decode_attention",
        {
            "query": normal(0, 2, 1, 4, 16),
            "key": normal(1, 2, 12, 2, 16),
            "value": normal(2, 2, 12, 2, 8),
            "sequence_start": jnp.array([0, 3], jnp.int32),
            "sequence_end": jnp.array([12, 9], jnp.int32),
        },
        _QKV,
    ),
    Case(
        "ragged_page_attention",
        "ragged_page_attention",
        {
            "queries": normal(0, 9, 4, 16),
            "kv_pages": normal(1, 6, 4, 4, 16),
            **_PACKED,
            "num_seqs": jnp.array([2], jnp.int32),
        },
        ("queries", "kv_pages"),
        {"sliding_window": (3, 0), "attention_sink_size": 1},
    ),
    Case(
        "ragged_page_attention_v3",
        "ragged_page_attention_v3",
        {
            "queries": normal(0, 9, 4, 16),
            "keys": normal(2, 9, 2, 16),
            "values": normal(3, 9, 2, 16),
            "kv_cache": normal(1, 6, 4, 4, 16),
            **_PACKED,
            "block_tables": _PAGES["block_tables"].ravel(),
            "distribution": jnp.array([0, 0, 3], jnp.int32),
        },
        ("queries", "keys", "values", "kv_cache"),
    ),
    Case(
        "transposed_grouped_matmul",
        "transposed_grouped_matmul",
        {
            "lhs": normal(0, 12, 8),
            "d_out": normal(1, 12, 6),
            "group_sizes": jnp.array([3, 0, 5, 2], jnp.int32),
        },
        ("lhs", "d_out"),
    ),
)


def _recurrence_arrays(*rows: int) -> dict[str, jax.Array]:
    return {"query": normal(0, *rows, 4, 8), "key": normal(1, *rows, 2, 8), "value": normal(2, *rows, 2, 6)}


def _gates(seed: int, *shape: int) -> jax.Array:
    return -0.1 * jnp.abs(normal(seed, *shape))


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
    Case(
        "grouped_matmul",
        "grouped_matmul",
        {
            "lhs": normal(0, 12, 8),
            "rhs": normal(1, 4, 8, 6),
            "existing_out": normal(2, 12, 6),
            "group_sizes": jnp.array([3, 0, 5, 2], jnp.int32),
        },
        ("lhs", "rhs", "existing_out"),
    ),
    Case(
        "grouped_matmul, batched",
        "grouped_matmul",
        {"lhs": normal(0, 2, 3, 5, 8), "rhs": normal(1, 2, 3, 6, 8)},
        ("lhs", "rhs"),
        {"transpose_rhs": True},
    ),
    Case(
        "grouped_matmul, block-sparse",
        "grouped_matmul",
        {
            "lhs": normal(0, 12, 8),
            "rhs": normal(1, 2, 8, 6),
            "group_sizes": jnp.array([7, 5], jnp.int32),
            "rhs_mask": jnp.array([[[1, 0], [1, 1]], [[0, 1], [1, 1]]], bool),
            "out_mask": jnp.array([[1, 1], [0, 1], [1, 1]], bool),
        },
        ("lhs", "rhs"),
        {"block_m": 4, "block_k": 4, "block_n": 4},
    ),
    Case(
        "recurrent_attention",
        "recurrent_attention",
        _recurrence_arrays(2, 4) | {"g": _gates(3, 2, 4, 4), "initial_state": normal(4, 2, 4, 8, 6)},
        (*_QKV, "g", "initial_state"),
    ),
    Case("gla_attention", "gla_attention", _recurrence_arrays(2, 4) | {"gk": _gates(3, 2, 4, 4, 8)}, (*_QKV, "gk")),
    Case(
        "lightning_attention, packed",
        "lightning_attention",
        _recurrence_arrays(8) | {"cu_seqlens": jnp.array([0, 4, 4, 8], jnp.int32)},
        _QKV,
        {"layer_idx": 2, "num_layers": 4, "reverse": True},
    ),
    Case(
        "rnn",
        "rnn",
        {
            "input": normal(0, 2, 4, 3),
            "hidden": normal(1, 2, 2, 5),
            "cell": normal(2, 2, 2, 5),
            "weight_ih": normal(3, 2, 20, 3) / 3,
            "weight_hh": normal(4, 2, 20, 5) / 3,
            "bias_hh": normal(5, 2, 20),
            "lengths": jnp.array([4, 2], jnp.int32),
        },
        ("input", "hidden", "cell", "weight_ih", "weight_hh", "bias_hh"),
        {"bidirectional": True},
    ),
    Case(
        "rnn, two layers of GRU",
        "rnn",
        {
            "input": normal(0, 2, 4, 3),
            "weight_ih": normal(1, 1, 15, 3) / 3,
            "weight_ih_upper": normal(2, 1, 15, 5) / 3,
            "weight_hh": normal(3, 2, 15, 5) / 3,
            "bias_ih": normal(4, 2, 15),
        },
        ("input", "weight_ih", "weight_ih_upper", "weight_hh", "bias_ih"),
        {"cell_type": "gru", "num_layers": 2},
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
