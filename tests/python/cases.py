"""One small call of every operation and form: what the grid of transformations and other tests run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ejkernel

Arrays = Mapping[str, jax.Array | np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    name: str
    operation: str
    arrays: Mapping[str, np.ndarray]  # floating inputs first: those that a gradient is for
    floats: tuple[str, ...]
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def run(self, arrays: Arrays) -> list[Any]:
        """The floating outputs. Of NumPy arrays, without JAX, they are copies: caches are updated in place."""
        given = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in arrays.items()}
        result = getattr(ejkernel, self.operation)(**given, **self.params)
        outputs = result if isinstance(result, tuple) else (result,)
        return [x for x in outputs if x is not None and jnp.issubdtype(x.dtype, jnp.floating)]

    def loss(self, arrays: Arrays) -> Any:
        """A scalar that depends on every floating output, with a weight of its own for each element. Of -inf, the lse of
        no keys, as of -100: infinities of both signs would make every comparison one of NaN."""
        return sum((x.clip(-100) * weights(x)).sum() for x in self.run(arrays))


def weights(x: Any) -> np.ndarray:
    return np.cos(np.arange(x.size, dtype=np.float32)).reshape(x.shape)


def normal(seed: int, *shape: int) -> np.ndarray:
    """JAX's would compile a program for every shape."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


def _attention_arrays() -> dict[str, np.ndarray]:
    return {
        "query": normal(0, 2, 8, 4, 16),
        "key": normal(1, 2, 12, 2, 16),
        "value": normal(2, 2, 12, 2, 16),
        "bias": normal(3, 2, 4, 8, 12),
    }


_QKV = ("query", "key", "value")

_PAGES = {
    "context_lens": ints(7, 12, 0),
    "block_tables": ints([4, 1, 0], [2, 5, 3], [9, 9, 9]),
}
_PACKED = _PAGES | {"query_start_loc": ints(0, 3, 8, 8)}


def _caches() -> dict[str, np.ndarray]:
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
            "key_cache": (40 * normal(1, 6, 2, 4, 16)).astype(np.int8),
            "value_cache": (40 * normal(2, 6, 2, 4, 8)).astype(np.int8),
            "k_scale": np.array([0.025, 0.03], np.float32),
            "v_scale": np.array(0.025, np.float32),
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
            "sequence_start": ints(0, 3),
            "sequence_end": ints(12, 9),
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
            "num_seqs": ints(2),
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
            "distribution": ints(0, 0, 3),
        },
        ("queries", "keys", "values", "kv_cache"),
    ),
    Case(
        "transposed_grouped_matmul",
        "transposed_grouped_matmul",
        {
            "lhs": normal(0, 12, 8),
            "d_out": normal(1, 12, 6),
            "group_sizes": ints(3, 0, 5, 2),
        },
        ("lhs", "d_out"),
    ),
)


def _recurrence_arrays(*rows: int) -> dict[str, np.ndarray]:
    return {"query": normal(0, *rows, 4, 8), "key": normal(1, *rows, 2, 8), "value": normal(2, *rows, 2, 6)}


def _gates(seed: int, *shape: int) -> np.ndarray:
    return -0.1 * np.abs(normal(seed, *shape))


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
        _attention_arrays() | {"dropout_seed": np.array([3, 5], np.uint32)},
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
            "cu_seqlens_q": ints(0, 5, 5, 16),
            "cu_seqlens_k": ints(0, 9, 12, 20),
        },
        _QKV,
    ),
    Case("attention", "attention", _attention_arrays(), (*_QKV, "bias"), {"causal": True}),
    Case(
        "scaled_dot_product_attention",
        "scaled_dot_product_attention",
        _attention_arrays() | {"key_value_seq_lengths": ints(12, 7)},
        (*_QKV, "bias"),
    ),
    Case(
        "mean_pooling",
        "mean_pooling",
        {"x": normal(0, 2, 6, 8), "mask": np.array([[1, 1, 1, 1, 0, 0], [1, 0, 1, 1, 1, 1]], bool)},
        ("x",),
    ),
    Case(
        "mean_pooling, packed",
        "mean_pooling",
        {"x": normal(0, 12, 8), "cu_seqlens": ints(0, 5, 5, 12)},
        ("x",),
    ),
    Case(
        "grouped_matmul",
        "grouped_matmul",
        {
            "lhs": normal(0, 12, 8),
            "rhs": normal(1, 4, 8, 6),
            "existing_out": normal(2, 12, 6),
            "group_sizes": ints(3, 0, 5, 2),
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
            "group_sizes": ints(7, 5),
            "rhs_mask": np.array([[[1, 0], [1, 1]], [[0, 1], [1, 1]]], bool),
            "out_mask": np.array([[1, 1], [0, 1], [1, 1]], bool),
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
        _recurrence_arrays(8) | {"cu_seqlens": ints(0, 4, 4, 8)},
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
            "lengths": ints(4, 2),
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
        {"x": normal(0, 12, 4, 8), "cu_seqlens": ints(0, 5, 5, 12)},
        ("x",),
        {"chunk_size": 4},
    ),
)
