"""Platform xla against the library's reference kernels: results, gradients, dtypes, and what jit asks of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xla_problems as problems
from xla_reference import DTYPES, reference

from ejkernel._xla import attention, implementation, philox

ATTENTION = ("flash_attention", "attention", "scaled_dot_product_attention")
POOLING_FORMS = ("batched", "packed", "chunked", "packed chunked")
EXACT = 1e-12  # of float64 results, against the largest of them


@pytest.fixture(autouse=True, scope="module")
def float64():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def no_float64():
    """As most programs run: no 64-bit numbers at all."""
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", True)


def run(operation: str, inputs: dict, params: dict, jit: bool = False) -> dict:
    """Under jit what has extents of its own: it compiles sooner as a whole than step by step."""
    arrays = {name: None if x is None else jnp.asarray(x) for name, x in inputs.items()}

    def compute(arrays):
        return implementation(operation)(arrays, params)

    return {name: np.asarray(x) for name, x in (jax.jit(compute) if jit else compute)(arrays).items()}


def compare(got: dict, want: dict, tolerance: float):
    """The tolerance is relative to each result's largest value, at least 1."""
    assert got.keys() == want.keys()
    for name, expected in want.items():
        assert (got[name].dtype, got[name].shape) == (expected.dtype, expected.shape), name
        expected, actual = expected.astype(np.float64), got[name].astype(np.float64)
        largest = np.max(np.abs(expected), where=np.isfinite(expected), initial=1)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * largest, err_msg=name)


def check(operation: str, inputs: dict, params: dict, tolerance: float = EXACT, jit: bool = False) -> dict:
    want = reference(operation, inputs, params)
    compare(run(operation, inputs, params, jit), want, tolerance)
    return want


def check_each(operation: str, calls: list[dict], params: dict, tolerance: float = EXACT) -> list[dict]:
    """Calls that differ in contents alone, by one program."""
    program = jax.jit(lambda arrays: implementation(operation)(arrays, params))
    results = [reference(operation, inputs, params) for inputs in calls]
    for inputs, want in zip(calls, results, strict=True):
        compare({name: np.asarray(x) for name, x in program(inputs).items()}, want, tolerance)
    return results


def check_both_ways(rng, operation: str, inputs: dict, params: dict, tolerance: float = EXACT, jit: bool = False):
    results = check(operation, inputs, params, tolerance, jit)
    if params.get("normalize_output", True):
        gradient = problems.backward_call(rng, operation, inputs, params, results)
        check(operation + "_backward", *gradient, tolerance, jit)


# ---- results ----


@pytest.mark.parametrize("operation", ATTENTION)
@pytest.mark.parametrize("seed", range(30))
def test_batched_attention_equals_the_reference(operation, seed):
    rng = np.random.default_rng(seed)
    check_both_ways(rng, operation, *problems.attention_call(rng, operation))


@pytest.mark.parametrize("seed", range(40))
def test_packed_attention_equals_the_reference(seed):
    rng = np.random.default_rng(1000 + seed)
    check_both_ways(rng, "flash_attention", *problems.packed_call(rng))


@pytest.mark.parametrize("seed", range(10))
def test_query_rows_of_several_sequences_belong_to_the_last_of_them(seed):
    rng = np.random.default_rng(2000 + seed)
    check("flash_attention", *problems.packed_call(rng, falling_queries=True))


@pytest.mark.parametrize("packed, rows_of_block", [(False, 1), (True, 2)])
def test_blocks_of_rows_change_nothing(packed, rows_of_block, monkeypatch):
    rng = np.random.default_rng(3000)
    inputs, params = problems.packed_call(rng) if packed else problems.attention_call(rng, "flash_attention")
    if not packed:
        inputs["bias"] = problems.normal(rng, (2, 4, 5, 7))  # its gradient is of the rows, not a sum over them
    monkeypatch.setattr(attention, "_MAX_SCORES", rows_of_block * inputs["key"].shape[-3])
    check_both_ways(rng, "flash_attention", inputs, {**params, "normalize_output": True}, jit=True)


@pytest.mark.parametrize("extent", ["batch", "q_len", "kv_len"])
def test_attention_over_nothing(extent):
    rng = np.random.default_rng(4)
    size = [0 if name == extent else length for name, length in zip(("batch", "q_len", "kv_len"), (2, 3, 4))]
    inputs, params = problems.attention_call(rng, "flash_attention", size=(*size, 2, 1, 3, 4))
    check_both_ways(rng, "flash_attention", inputs, {**params, "normalize_output": True}, jit=True)


def test_packed_attention_without_sequences():
    rng = np.random.default_rng(5)
    inputs, params = problems.packed_call(rng)
    inputs.update(cu_seqlens_q=np.zeros(1, np.int32), cu_seqlens_k=np.zeros(1, np.int32), seqused_k=None)
    check_both_ways(rng, "flash_attention", inputs, {**params, "normalize_output": True})


def test_what_nobody_sees_reaches_nothing():
    rng = np.random.default_rng(6)
    inputs, params = problems.full_call(
        "flash_attention",
        {
            "query": problems.normal(rng, (2, 6, 4, 6)),
            "key": problems.normal(rng, (2, 6, 1, 6)),
            "value": problems.normal(rng, (2, 6, 1, 5)),
            "q_segment_ids": np.asarray([[0, 0, 0, 1, 1, -1], [0, 0, -1, -1, -1, -1]], np.int32),
        },
        {"causal": True, "dropout_prob": 0.2},
    )
    unseen = inputs["q_segment_ids"] < 0
    for name, poison in (("query", np.nan), ("key", np.inf), ("value", np.nan)):
        inputs[name][unseen] = poison
    results = check("flash_attention", inputs, params, jit=True)
    gradient = problems.backward_call(rng, "flash_attention", inputs, params, results)
    gradients = check("flash_attention_backward", *gradient, jit=True)
    assert not np.any(results["out"][unseen])
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients.values())


def test_a_nan_logit_at_a_visible_key_makes_its_row_nan():
    rng = np.random.default_rng(7)
    inputs, _ = problems.attention_call(rng, "flash_attention")
    tensors = {name: inputs[name] for name in ("query", "key", "value")}
    inputs, params = problems.full_call("flash_attention", tensors, {})
    inputs["query"][1, 2] = np.nan
    results = check("flash_attention", inputs, params)
    assert np.all(np.isnan(results["out"][1, 2]))
    assert np.sum(np.isnan(results["lse"])) == 4


@pytest.mark.parametrize("form", POOLING_FORMS)
@pytest.mark.parametrize("seed", range(10))
def test_mean_pooling_equals_the_reference(form, seed):
    rng = np.random.default_rng(8000 + seed)
    inputs, params = problems.pooling_call(rng, form)
    _check_pooling(rng, inputs, params, EXACT)


def _check_pooling(rng, inputs: dict, params: dict, tolerance: float):
    results = check("mean_pooling", inputs, params, tolerance)
    cotangent = problems.normal(rng, results["out"].shape, results["out"].dtype)
    if "chunk_offsets" in results:
        cotangent[results["chunk_offsets"][-1] :] = np.nan  # past the last chunk
    num_tokens = inputs["x"].shape[0 if inputs["cu_seqlens"] is not None else 1]
    gradient = {**inputs, "d_out": cotangent}, {**params, "num_tokens": num_tokens}
    check("mean_pooling_backward", *problems.full_call("mean_pooling_backward", *gradient), tolerance)


@pytest.mark.parametrize("form", POOLING_FORMS)
def test_mean_pooling_over_nothing(form):
    rng = np.random.default_rng(9)
    inputs, params = problems.pooling_call(rng, form)
    axis = 0 if "packed" in form else 1
    inputs["x"] = inputs["x"].take([], axis)
    inputs["mask"] = None
    _check_pooling(rng, inputs, params, EXACT)
    if "packed" in form:
        _check_pooling(rng, {**inputs, "cu_seqlens": np.zeros(1, np.int32)}, params, EXACT)


def test_what_rows_outside_hold_reaches_no_mean():
    rng = np.random.default_rng(10)
    x = problems.normal(rng, (10, 4))
    x[[0, 6, 9]] = np.nan
    offsets = np.asarray([1, 3, 6], np.int32)
    inputs, params = problems.full_call("mean_pooling", {"x": x, "cu_seqlens": offsets}, {})
    assert np.all(np.isfinite(check("mean_pooling", inputs, params)["out"]))


# ---- dropout ----


def test_philox_draws_the_published_vectors():
    vectors = (  # counter, key, result: Random123's known answers
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    )
    for counter, key, result in vectors:
        words = philox.philox4x32(*(tuple(jnp.asarray([w], jnp.uint32) for w in given) for given in (counter, key)))
        assert tuple(int(word[0]) for word in words) == result


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.999999])
def test_dropout_drops_the_same_weights(probability):
    rng = np.random.default_rng(11)
    lengths = {"query": 9, "key": 70, "value": 70}
    inputs = {name: problems.normal(rng, (2, length, 2, 4)) for name, length in lengths.items()}
    inputs["dropout_seed"] = np.asarray([12345, 0xFFFFFFFF], np.uint32)
    call = problems.full_call("attention", inputs, {"dropout_prob": probability})
    dropped, expected = run("attention", *call, jit=True), reference("attention", *call)
    np.testing.assert_array_equal(dropped["weights"] == 0, expected["weights"] == 0)


def test_packed_dropout_counts_inside_the_sequence():
    rng = np.random.default_rng(12)
    inputs = {
        "query": problems.normal(rng, (9, 2, 4)),
        "key": problems.normal(rng, (50, 1, 4)),
        "value": np.eye(50)[:, None, :],  # so that out is the weights
        "cu_seqlens_q": np.asarray([0, 4, 8], np.int32),
        "cu_seqlens_k": np.asarray([3, 5, 49], np.int32),
    }
    call = problems.full_call("flash_attention", inputs, {"dropout_prob": 0.4})
    dropped, expected = run("flash_attention", *call, jit=True), reference("flash_attention", *call)
    np.testing.assert_array_equal(dropped["out"] == 0, expected["out"] == 0)


# ---- dtypes ----


@pytest.mark.parametrize("dtype, tolerance", [("f32", 1e-5), ("f16", 2e-3), ("bf16", 1e-2)])
@pytest.mark.parametrize("operation", ATTENTION)
def test_attention_of_smaller_floats(operation, dtype, tolerance, no_float64):
    """Arithmetic is float32: a few of its roundings, and one of the result's own."""
    rng = np.random.default_rng(13)
    for _ in range(3):
        inputs, params = problems.attention_call(rng, operation, DTYPES[dtype])
        check_both_ways(rng, operation, inputs, params, tolerance)


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2", "i8"])
@pytest.mark.parametrize("packed", [False, True])
def test_attention_of_8_bit_codes(dtype, packed, no_float64):
    rng = np.random.default_rng(14)
    if packed:
        inputs, params = problems.packed_call(rng)
    else:
        inputs, params = problems.attention_call(rng, "flash_attention", size=(1, 5, 130, 4, 2, 6, 5))
    for name in ("query", "key", "value"):
        inputs[name], inputs[name[0] + "_scale"] = problems.quantised(rng, inputs[name], dtype)
    out_dtype, tolerance = (None, 1e-2) if dtype == "i8" else ("f32", 1e-5)
    check("flash_attention", inputs, {**params, "out_dtype": out_dtype}, tolerance, jit=True)


@pytest.mark.parametrize("out_dtype", ["f32", "f16", "bf16"])
def test_out_takes_the_dtype_that_is_asked_for(out_dtype, no_float64):
    rng = np.random.default_rng(15)
    inputs, params = problems.attention_call(rng, "flash_attention", np.float32)
    params = {**params, "out_dtype": out_dtype, "normalize_output": True}
    check_both_ways(rng, "flash_attention", inputs, params, {"f16": 2e-3, "bf16": 1e-2}.get(out_dtype, 1e-5))


@pytest.mark.parametrize("dtype, tolerance", [("f32", 1e-6), ("f16", 1e-3), ("bf16", 1e-2)])
def test_mean_pooling_of_smaller_floats(dtype, tolerance, no_float64):
    rng = np.random.default_rng(16)
    for form in POOLING_FORMS:
        _check_pooling(rng, *problems.pooling_call(rng, form, DTYPES[dtype]), tolerance)


# ---- jit ----


def _calls_of_every_operation(rng):
    for operation in ATTENTION:
        forward = problems.attention_call(rng, operation)
        if "normalize_output" in forward[1]:
            forward[1]["normalize_output"] = True
        yield operation, *forward
        results = reference(operation, *forward)
        yield operation + "_backward", *problems.backward_call(rng, operation, *forward, results)
    yield "flash_attention", *problems.packed_call(rng)
    for form in POOLING_FORMS:
        yield "mean_pooling", *problems.pooling_call(rng, form)


def test_every_operation_traces():
    """Contents are never looked at while tracing, and what is traced has the results' shapes and dtypes."""
    rng = np.random.default_rng(17)
    for operation, inputs, params in _calls_of_every_operation(rng):
        traced = jax.eval_shape(lambda arrays: implementation(operation)(arrays, params), inputs)
        want = reference(operation, inputs, params)
        assert {name: (x.shape, x.dtype) for name, x in traced.items()} == {
            name: (x.shape, x.dtype) for name, x in want.items()
        }


def test_every_declared_operation_is_implemented():
    assert all(implementation(operation) is not None for operation in problems.DECLARED)
    assert implementation("no_such_operation") is None
