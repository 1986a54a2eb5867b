"""Platform xla against the reference kernels: recurrent_attention and its gradient."""

import numpy as np
import pytest
from test_xla import check_each, float64, no_float64  # noqa: F401
from xla_problems import full_call, maybe, normal
from xla_reference import DTYPES

HEADS, KV_HEADS, KEYS, VALUES = 4, 2, 5, 3


def call(rng, packed: bool, dtype=np.float64, tokens: int = 7, sequences: int = 3, **params) -> tuple[dict, dict]:
    """Random gates of every kind, alone and together, now and then closed."""
    rows = (tokens,) if packed else (sequences, tokens)

    def gate(*shape):
        x = -np.abs(rng.standard_normal(shape))
        return np.where(rng.random(shape) < 0.1, -np.inf, x).astype(dtype)

    inputs = {
        "query": normal(rng, (*rows, HEADS, KEYS), dtype),
        "key": normal(rng, (*rows, KV_HEADS, KEYS), dtype),
        "value": normal(rng, (*rows, KV_HEADS, VALUES), dtype),
        "g": maybe(rng, lambda: gate(*rows, HEADS)),
        "g_gamma": maybe(rng, lambda: gate(HEADS)),
        "gk": maybe(rng, lambda: gate(*rows, HEADS, KEYS)),
        "gv": maybe(rng, lambda: gate(*rows, HEADS, VALUES)),
        "initial_state": maybe(rng, lambda: normal(rng, (sequences, HEADS, KEYS, VALUES), dtype), 0.6),
        "cu_seqlens": offsets(rng, tokens, sequences) if packed else None,
    }
    return full_call("recurrent_attention", inputs, params)


def offsets(rng, tokens: int, sequences: int) -> np.ndarray:
    """With empty sequences, rows of none, and ends out of range."""
    cuts = np.sort(rng.integers(-2, tokens + 3, sequences + 1))
    return cuts.astype(np.int32)


def check_both_ways(rng, inputs: dict, params: dict, tolerance: float = 1e-12):
    (results,) = check_each("recurrent_attention", [inputs], params, tolerance)
    given = {
        **inputs,
        "d_out": maybe(rng, lambda: normal(rng, results["out"].shape, results["out"].dtype), 0.8),
        "d_final_state": maybe(
            rng, lambda: normal(rng, results["final_state"].shape, results["final_state"].dtype), 0.6
        ),
    }
    given, params = full_call("recurrent_attention_backward", given, params)
    check_each("recurrent_attention_backward", [given], params, tolerance)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_it_equals_the_reference(packed, seed):
    rng = np.random.default_rng(seed)
    check_both_ways(rng, *call(rng, packed, reverse=bool(seed % 2)))


@pytest.mark.parametrize("dtype, tolerance", [("f32", 1e-5), ("bf16", 2e-2)])
def test_smaller_floats(dtype, tolerance, no_float64):  # noqa: F811
    rng = np.random.default_rng(100)
    check_both_ways(rng, *call(rng, True, DTYPES[dtype], softmax_scale=0.7), tolerance)


def test_the_state_has_the_dtype_that_is_asked_for(no_float64):  # noqa: F811
    rng = np.random.default_rng(101)
    check_both_ways(rng, *call(rng, False, np.float32, state_dtype="bf16"), 1e-2)


@pytest.mark.parametrize("packed", [False, True])
def test_nothing(packed):
    rng = np.random.default_rng(102)
    for tokens, sequences in ((0, 3), (7, 0), (0, 0)):
        check_both_ways(rng, *call(rng, packed, tokens=tokens, sequences=sequences))
