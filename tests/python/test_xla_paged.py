"""Platform xla against the reference kernels: attention over caches, and the writing of them."""

import jax
import jax.numpy as jnp
import numpy as np
import paged_problems as problems
import pytest
from test_xla import check, check_each, float64, no_float64, run  # noqa: F401
from xla_reference import DTYPES, reference

import ejkernel
from ejkernel._xla import implementation, tiles

SEEDS = {
    "page_attention": (44, 54, 137, 138, 279),
    "ragged_decode_attention": (10, 16, 39, 71, 244),
    "ragged_page_attention": (73, 100, 119, 142, 239),
    "ragged_page_attention_v3": (58, 111, 139, 157, 175),
    "page_append": (14, 79, 243),
}


@pytest.mark.parametrize("operation", problems.CALLS)
def test_the_seeds_have_every_option(operation):
    def options(seeds):
        calls = [problems.CALLS[operation](np.random.default_rng(seed)) for seed in seeds]
        return set().union(*(problems.options(*call) for call in calls))

    assert options(SEEDS[operation]) >= options(range(100))


@pytest.mark.parametrize("operation, seed", [(name, seed) for name, seeds in SEEDS.items() for seed in seeds])
def test_it_equals_the_reference(operation, seed):
    rng = np.random.default_rng(seed)
    inputs, params = problems.CALLS[operation](rng)
    calls = [problems.other_indices(rng, operation, inputs) for _ in range(4)]
    for call in calls:
        problems.nothing_visible_holds_nan(operation, call, params)
    check_each(operation, calls, params)


@pytest.mark.parametrize("operation", ["ragged_page_attention", "ragged_page_attention_v3", "page_append"])
def test_rows_of_several_sequences_belong_to_the_last_of_them_and_are_written_for_each(operation):
    rng = np.random.default_rng(100)
    inputs, params = problems.CALLS[operation](rng, falling=True)
    check_each(operation, [problems.other_indices(rng, operation, inputs, falling=True) for _ in range(10)], params)


def check_dtypes(rng, operation, dtype, cache_dtype, tolerance):
    inputs, params = problems.CALLS[operation](rng, dtype, cache_dtype)
    calls = [problems.other_indices(rng, operation, inputs) for _ in range(3)]
    check_each(operation, calls, params, tolerance)


@pytest.mark.parametrize("cache_dtype", ["e4m3", "e5m2", "i8"])
@pytest.mark.parametrize("operation", problems.CALLS)
def test_caches_of_8_bit_codes(operation, cache_dtype, no_float64):  # noqa: F811
    check_dtypes(np.random.default_rng(200), operation, np.float32, DTYPES[cache_dtype], 1e-5)


@pytest.mark.parametrize("dtype, tolerance", [("f32", 1e-5), ("f16", 2e-3), ("bf16", 1e-2)])
@pytest.mark.parametrize("operation", problems.CALLS)
def test_smaller_floats(operation, dtype, tolerance, no_float64):  # noqa: F811
    check_dtypes(np.random.default_rng(300), operation, DTYPES[dtype], None, tolerance)


def test_what_is_stored_is_rounded_to_even_and_saturated(no_float64):  # noqa: F811
    values = [0.5, 1.5, 2.5, -0.5, -2.5, 126.6, 128, -300, np.inf, -np.inf, np.nan, 449, 1e30, 3.25, 17, 19]
    rows = np.asarray(values, np.float32).reshape(1, 1, 16)
    for dtype in ("i8", "e4m3", "e5m2", "f16", "bf16"):
        cache = np.zeros((2, 4, 1, 16), DTYPES[dtype])
        inputs, params = problems.full_call(
            "page_append",
            {
                "keys": rows,
                "values": -rows,
                "key_cache": cache,
                "value_cache": cache.copy(),
                "context_lens": np.asarray([3], np.int32),
                "block_tables": np.asarray([[1]], np.int32),
                "query_start_loc": np.asarray([0, 1], np.int32),
            },
            {},
        )
        got = run("page_append", inputs, params, jit=True)
        want = reference("page_append", inputs, params)
        for name in want:
            np.testing.assert_array_equal(got[name].astype(np.float32), want[name].astype(np.float32), err_msg=dtype)
        assert not np.any(got["key_cache"][0]) and np.any(got["key_cache"][1, 2])


@pytest.mark.parametrize("operation", ["page_attention", "ragged_decode_attention", "ragged_page_attention"])
def test_caches_of_4_bit_codes(operation, no_float64):  # noqa: F811
    """jnp.int4 arrays, through XLA for both: NumPy has no packed ones."""
    rng = np.random.default_rng(400)
    for _ in range(2):
        inputs, params = problems.CALLS[operation](rng, np.float32, np.int8)
        for name in inputs.keys() & {"key_cache", "value_cache", "kv_pages", "key", "value"}:
            codes = inputs[name][..., : inputs[name].shape[-1] // 2 * 2]  # two to a byte
            inputs[name] = jnp.asarray(codes % 16 - 8).astype(jnp.int4)
        given = {name: jnp.asarray(x) for name, x in inputs.items() if x is not None}
        function = getattr(ejkernel, operation)
        want = function(**given, **params, platform="reference")
        got = function(**given, **params, platform="xla")
        wide = {name: x.astype(jnp.float32) if x.dtype == jnp.int4 else x for name, x in given.items()}
        as_floats = function(**wide, **params, platform="reference")
        for name in want._fields:
            np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=0, atol=1e-4)
            np.testing.assert_array_equal(getattr(want, name), getattr(as_floats, name))


@pytest.mark.parametrize("operation", ["page_attention", "ragged_page_attention", "page_append"])
def test_nothing(operation):
    rng = np.random.default_rng(500)
    for extent in ("rows", "sequences", "pages", "slots", "table"):
        inputs, params = problems.CALLS[operation](rng)
        for name, x in inputs.items():
            if x is None:
                continue
            if extent == "rows" and name in ("query", "queries", "keys", "values"):
                x = x[:0]
            if extent == "rows" and operation == "page_attention" and name in ("context_lens", "block_tables"):
                x = x[:0]
            if extent == "sequences" and name in ("query", "context_lens", "block_tables"):
                x = x[:0]
            if extent == "sequences" and name == "query_start_loc":
                x = x[:1]
            if extent == "pages" and (
                name.endswith("cache") or name == "kv_pages" or name.endswith("scale") and x.ndim == 4
            ):
                x = x[:0]
            if extent == "slots" and (name.endswith("cache") or name == "kv_pages"):
                x = x.take([], 2 if params.get("cache_layout") == "head_major" else 1)
            if extent == "slots" and name.endswith("scale") and x.ndim == 4:
                x = x[:, :0]
            if extent == "table" and name == "block_tables":
                x = x[:, :0]
            inputs[name] = x
        check(operation, inputs, params, jit=True)


@pytest.mark.parametrize("extent", ["batch", "kv_len"])
def test_no_batch_entries_and_no_keys(extent):
    rng = np.random.default_rng(501)
    inputs, params = problems.ragged_decode_call(rng)
    for name, x in inputs.items():
        if (
            x is None
            or (extent == "kv_len" and x.ndim < 4)
            or name == "softmax_aux"
            or name == "query"
            and extent == "kv_len"
        ):
            continue
        if extent == "batch" and name.endswith("scale") and x.ndim < 4:
            continue
        inputs[name] = x[:0] if extent == "batch" else x[:, :0]
    check("ragged_decode_attention", inputs, params, jit=True)


@pytest.mark.parametrize("num_owners", [0, 1, 5, 8])
@pytest.mark.parametrize("total, size, every", [(0, 3, None), (1, 1, 1), (7, 3, None), (8, 2, 3), (8, 8, 4), (8, 4, 9)])
def test_tiles_hold_every_row_once(num_owners, total, size, every):
    rng = np.random.default_rng(502)
    cut_up = jax.jit(lambda owner: tiles.cut(owner, num_owners, size, every))
    for _ in range(8):
        spans = np.sort(rng.integers(0, total + 1, (num_owners, 2)), axis=1)
        owner = np.full(total, -1, np.int32)
        for n, (begin, end) in enumerate(spans):
            owner[begin:end] = n
        cut = jax.tree.map(np.asarray, cut_up(owner))
        tile, number = cut.place
        for row in range(total):
            assert cut.rows[tile[row], number[row]] == row and cut.used[tile[row], number[row]]
            assert cut.owner[tile[row]] == owner[row]
            assert every is None or row // every == cut.rows[tile[row], 0] // every
        assert cut.used.sum() == total


def test_tiles_one_after_the_other_change_nothing(monkeypatch):
    rng = np.random.default_rng(503)
    monkeypatch.setattr(tiles, "_MAX_ELEMENTS", 300)
    for operation in ("page_attention", "ragged_page_attention"):
        check(operation, *problems.CALLS[operation](rng), jit=True)


@pytest.mark.parametrize("operation", problems.CALLS)
def test_it_traces(operation):
    inputs, params = problems.CALLS[operation](np.random.default_rng(504))
    traced = jax.eval_shape(lambda arrays: implementation(operation)(arrays, params), inputs)
    want = reference(operation, inputs, params)
    assert {n: (x.shape, x.dtype) for n, x in traced.items()} == {n: (x.shape, x.dtype) for n, x in want.items()}
