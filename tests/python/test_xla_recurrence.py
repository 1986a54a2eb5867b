"""Platform xla against the reference kernels: recurrent_attention, gla_attention, lightning_attention, their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xla_problems as problems
from test_xla import check_each, float64, no_float64  # noqa: F401
from xla_reference import DTYPES

from ejkernel._xla import implementation
from ejkernel._xla.sequences import Spans, whole_owners


def check_both_ways(
    rng, operation: str, calls: list[dict], params: dict, tolerance: float = 1e-12, cotangents=("out",)
):
    """Calls that differ in contents alone, and their gradients for these cotangents."""
    results = check_each(operation, calls, params, tolerance)
    given = [
        {**inputs, **{f"d_{name}": problems.normal(rng, result[name].shape, result[name].dtype) for name in cotangents}}
        for inputs, result in zip(calls, results, strict=True)
    ]
    gradients = [problems.full_call(operation + "_backward", inputs, params)[0] for inputs in given]
    check_each(operation + "_backward", gradients, params, tolerance)


ALL = ("g", "g_gamma", "gk", "gv", "initial_state")
LAYER = {"layer_idx": 2, "num_layers": 5}


@pytest.mark.parametrize(
    "operation, form, optional, params",
    [
        ("recurrent_attention", "batched", ALL, {"reverse": True}),
        ("recurrent_attention", "batched", (), {"softmax_scale": 0.7}),
        ("recurrent_attention", "packed", ALL, {}),
        ("recurrent_attention", "packed", ("g",), {"reverse": True}),
        ("gla_attention", "batched", ("gk", "initial_state"), {}),
        ("lightning_attention", "packed", ("initial_state",), LAYER),
    ],
)
def test_it_equals_the_reference(operation, form, optional, params):
    rng = np.random.default_rng(0)
    # Of packed ones some overlap: their rows show the last sequence that claims them.
    calls = [
        problems.recurrence_call(rng, operation, form, optional, params, falling=falling)
        for falling in ((False, False, True, True) if form == "packed" else (False,))
    ]
    cotangents = ("out", "final_state") if optional else ("final_state",)
    check_both_ways(rng, operation, [inputs for inputs, _ in calls], calls[0][1], cotangents=cotangents)


def test_many_tokens():
    """In segments, and some that are none."""
    rng = np.random.default_rng(1)
    inputs, params = problems.recurrence_call(rng, "gla_attention", "batched", ("gk",), size=(1, 70, 2, 1, 3, 2))
    check_both_ways(rng, "gla_attention", [inputs], params)


def test_many_tokens_keep_few_states():
    """Those that segments begin with, and those of one segment."""
    tokens, heads, dim = 900, 2, 32
    rows = jax.ShapeDtypeStruct((1, tokens, heads, dim), jnp.float32)
    given = dict.fromkeys(("query", "key", "value", "d_out"), rows)
    inputs, params = problems.full_call("recurrent_attention_backward", given, {})
    lowered = jax.jit(lambda inputs: implementation("recurrent_attention_backward")(inputs, params)).lower(inputs)
    state_bytes = heads * dim * dim * 4
    assert lowered.compile().memory_analysis().temp_size_in_bytes < tokens * state_bytes / 3


def test_layers_hold_whole_sequences_that_share_no_row():
    spans = Spans(jnp.array([0, 3, 1, 6, 9]), jnp.array([8, 2, 3, 0, 2]))
    left, layers = jnp.ones(5, bool), []
    while left.any():
        owner, done = whole_owners(spans, 12, left)
        left &= ~done
        layers.append((owner.tolist(), np.flatnonzero(done).tolist()))
    assert layers == [
        ([-1, 2, 2, 2, -1, -1, -1, -1, -1, 4, 4, -1], [2, 3, 4]),
        ([-1, -1, -1, 1, 1, -1, -1, -1, -1, -1, -1, -1], [1]),
        ([0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1], [0]),
    ]


@pytest.mark.parametrize("dtype, tolerance", [("f32", 1e-5), ("bf16", 2e-2)])
def test_smaller_floats(dtype, tolerance, no_float64):  # noqa: F811
    rng = np.random.default_rng(2)
    call = problems.recurrence_call(
        rng, "recurrent_attention", "batched", ("g",), {"state_dtype": dtype}, dtype=DTYPES[dtype]
    )
    check_both_ways(rng, "recurrent_attention", [call[0]], call[1], tolerance, ("out", "final_state"))


@pytest.mark.parametrize("size", [(0, 3, 2, 1, 3, 2), (2, 0, 2, 1, 3, 2)])
def test_nothing(size):
    rng = np.random.default_rng(3)
    inputs, params = problems.recurrence_call(rng, "recurrent_attention", "batched", ("initial_state",), size=size)
    check_both_ways(rng, "recurrent_attention", [inputs], params, cotangents=("out", "final_state"))
