"""ejkernel.modules: the operations over caches and grouped_matmul under their old names, and the code of the documents
that the project began with, where it concerns them (as test_seeds.py has the rest)."""

import inspect
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ejkernel
from ejkernel import InvalidArgument, _notices, modules, ops
from ejkernel.modules import (
    GroupedMatmulConfig,
    PageAttentionConfig,
    RaggedDecodeAttentionConfig,
    RaggedPageAttentionConfig,
    RaggedPageAttentionv3Config,
    create_default_executor,
)


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def ints(*values):
    return jnp.array(values, jnp.int32)


LENGTHS, TABLES = ints(7, 12), ints(4, 1, 0, 2, 5, 3).reshape(2, 3)
QUERY, KEY, VALUE = normal(0, 2, 4, 16), normal(1, 6, 2, 4, 16), normal(2, 6, 2, 4, 16)  # heads first
QUERIES, KV_PAGES, STARTS = normal(3, 7, 4, 16), normal(4, 6, 4, 4, 16), ints(0, 3, 7)
SINKS = normal(5, 2, 1)  # of kv heads
PAGED = (QUERIES, KV_PAGES, LENGTHS, TABLES, STARTS)


@pytest.fixture
def said(caplog):
    """What is said once, said again in this test."""
    _notices.say_once.cache_clear()
    caplog.set_level(logging.WARNING, logger="ejkernel")
    return caplog


def assert_same(got, want):
    """By one kernel."""
    np.testing.assert_array_equal(got, want)


def assert_close(got, want):
    """By two kernels, which add in orders of their own."""
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_page_attention_takes_heads_first():
    paged = (LENGTHS, TABLES)
    want = ejkernel.page_attention(
        QUERY, KEY.swapaxes(1, 2), VALUE.swapaxes(1, 2), *paged, softmax_scale=0.5, logits_soft_cap=3.0
    ).out
    got = modules.page_attention(QUERY, KEY, VALUE, *paged, 0.5, 12, attn_logits_soft_cap=3.0, mask_value=-1e30)
    assert_same(got, want)
    assert_same(
        modules.page_attention(QUERY, KEY, VALUE, *paged, softmax_scale=0.5, logits_soft_cap=3.0, block_size=4), got
    )
    pages_first = modules.page_attention(
        QUERY,
        KEY.swapaxes(1, 2),
        VALUE.swapaxes(1, 2),
        *paged,
        0.5,
        attn_logits_soft_cap=3.0,
        cache_layout="page_major",
        block_size=4,
    )
    assert_same(pages_first, want)
    with pytest.raises(InvalidArgument, match="block_size must be the page size 4, got 16"):
        modules.page_attention(QUERY, KEY, VALUE, *paged, block_size=16)
    with pytest.raises(TypeError, match="mesh"):
        modules.page_attention(QUERY, KEY, VALUE, *paged, mesh=1)


def test_ragged_decode_attention():
    query, key = normal(0, 2, 1, 4, 16), normal(1, 2, 12, 2, 16)
    given = (query, key, 2 * key, ints(0, 3), ints(12, 9))
    got = modules.ragged_decode_attention(*given, SINKS, 0.5, (4, 0), 3.0)
    want = ejkernel.ragged_decode_attention(
        *given, jnp.repeat(SINKS, 2, axis=0), softmax_scale=0.5, sliding_window=4, logits_soft_cap=3.0
    ).out
    assert got.shape == query.shape
    assert_same(got, want)


def test_plain_numbers_may_be_numpys():
    for number in (3, np.int64(3), np.array(3), jnp.int32(3), 3.0):
        got = modules.ragged_page_attention(*PAGED, np.int32(2), sliding_window=number)
        assert_same(got, modules.ragged_page_attention(*PAGED, [2], sliding_window=(2, 0)))
    lhs, rhs, sizes = normal(0, 5, 4), normal(1, 3, 4, 2), ints(2, 0, 3)
    for offset in (1, np.int64(1), [1], ints(1)):
        assert_same(modules.grouped_matmul(lhs, rhs[1:], sizes, offset), modules.grouped_matmul(lhs, rhs[1:], sizes, 1))


def test_windows_of_ragged_page_attention_count_the_token_itself():
    got = modules.ragged_page_attention(*PAGED, 2, SINKS, sliding_window=3, compute_dtype=jnp.bfloat16)
    want = ejkernel.ragged_page_attention(
        *PAGED, ints(2), softmax_aux=jnp.repeat(SINKS, 2, axis=0), sliding_window=(2, 0)
    ).out
    assert_same(got, want)
    assert_same(modules.ragged_page_attention(*PAGED, jnp.int32(2), SINKS, sliding_window=(2, 0)), want)
    with pytest.raises(InvalidArgument, match="sliding_window must be at least 1, the query's own token, got 0"):
        modules.ragged_page_attention(*PAGED, 2, sliding_window=0)


def v3_arguments(cache):
    return (QUERIES, normal(6, 7, 2, 16), normal(7, 7, 2, 16), cache, LENGTHS, TABLES.ravel(), STARTS, ints(0, 0, 2))


def test_ragged_page_attention_v3_returns_the_cache_and_scales_by_one():
    given = v3_arguments(KV_PAGES)
    out, cache = modules.ragged_page_attention_v3(*given, q_scale=0.5, k_scale=2.0, v_scale=0.25, sliding_window=3)
    want = ejkernel.ragged_page_attention_v3(
        *given, softmax_scale=1.0, q_scale=0.5, k_scale=2.0, v_scale=0.25, sliding_window=(2, 0)
    )
    assert_same(out, want.out)
    assert_same(cache, want.kv_cache)
    usual = modules.ragged_page_attention_v3(*given, softmax_scale=None)[0]
    assert_same(usual, ejkernel.ragged_page_attention_v3(*given).out)
    names = list(inspect.signature(modules.ragged_page_attention_v3).parameters)
    assert names[4] == "kv_lens" and names[-4:] == ["platform", "cfg", "_cfg", "more"]


@pytest.mark.parametrize("head_dim", [16, 128])
def test_ragged_page_attention_v3_takes_caches_of_five_axes(head_dim):
    """Heads in packs, head sizes filled up to 128."""
    given = list(v3_arguments(KV_PAGES))
    for i in range(4):
        given[i] = jnp.tile(given[i], head_dim // 16)
    filled = jnp.pad(given[3], ((0, 0), (0, 0), (0, 0), (0, 128 - head_dim))).reshape(6, 4, 2, 2, 128)
    want = modules.ragged_page_attention_v3(*given)
    got = modules.ragged_page_attention_v3(*given[:3], filled, *given[4:])
    assert_same(got[0], want[0])
    assert_same(got[1].reshape(6, 4, 4, 128)[..., :head_dim], want[1])
    assert not got[1][..., head_dim:].any()


def test_grouped_matmul():
    lhs, rhs, sizes = normal(0, 12, 8), normal(1, 3, 8, 6), ints(2, 3, 4, 1, 2)
    existing = normal(2, 12, 6)
    want = ejkernel.grouped_matmul(lhs, rhs, sizes, existing, group_offset=1)
    for offset in (1, ints(1), jnp.int32(1)):
        assert_same(modules.grouped_matmul(lhs, rhs, sizes, offset, existing), want)
    assert_same(
        modules.grouped_matmul(lhs, rhs.mT, sizes, 1, existing, transpose_rhs=True, tiling=(128, 128, 128)), want
    )
    half = modules.grouped_matmul(lhs, rhs, sizes, 1, preferred_element_type=jnp.bfloat16, use_v2=True, interpret=True)
    assert half.dtype == jnp.bfloat16
    mixed = modules.grouped_matmul(lhs.astype(jnp.bfloat16), rhs, sizes, 1)
    assert mixed.dtype == jnp.float32
    with pytest.raises(InvalidArgument, match="group_offset must be known while tracing"):
        jax.jit(lambda offset: modules.grouped_matmul(lhs, rhs, sizes, offset))(1)


def test_tilings_of_grouped_matmul_are_wishes(said):
    lhs, rhs, sizes = normal(0, 12, 8), normal(1, 3, 8, 6), ints(3, 4, 5)
    want = ejkernel.grouped_matmul(lhs, rhs, sizes)
    assert_same(modules.grouped_matmul(lhs, rhs, sizes, cfg=GroupedMatmulConfig(block_m=128, block_n=96)), want)
    assert "grouped_matmul" not in said.text
    assert_same(modules.grouped_matmul(lhs, rhs, sizes, tiling=lambda m, k, n: (m, k, n)), want)
    assert "kernel cpu has no field for block_k" in said.text and "block_m" not in said.text


def test_configs_are_wishes(said):
    plain = modules.page_attention(QUERY, KEY, VALUE, LENGTHS, TABLES)
    for config in (PageAttentionConfig(num_splits=2), PageAttentionConfig(pages_per_compute_block=4, num_warps=4)):
        out = modules.page_attention(QUERY, KEY, VALUE, LENGTHS, TABLES, cfg=config)
        assert_same(out, plain)
        assert type(config).from_dict(config.to_dict()) == config
    assert "PageAttentionConfig.pages_per_compute_block" in said.text
    assert_same(modules.page_attention(QUERY, KEY, VALUE, LENGTHS, TABLES, num_splits=3), plain)
    ragged = (QUERIES, KV_PAGES, LENGTHS, TABLES, STARTS, 2)  # a plain number among the arrays
    config = RaggedPageAttentionConfig(num_queries_per_block=16)
    assert_close(modules.ragged_page_attention(*ragged, cfg=config), modules.ragged_page_attention(*ragged))
    assert RaggedDecodeAttentionConfig(fwd_params={"num_key_splits": 4, "kv_blocksize": 64}).sizes() == {
        "num_splits": 4,
        "block_k": 64,
    }
    sizes = {"num_queries_per_block": 32, "num_kv_pages_per_block": 2}
    assert RaggedPageAttentionConfig(**sizes).sizes() == {"block_q": 32, "pages_per_block": 2}
    assert RaggedPageAttentionv3Config(**sizes, chunk_prefill_size=8).unused() == ["chunk_prefill_size"]
    assert GroupedMatmulConfig(block_m=64, bypass_xla_tiling=True).unused() == ["bypass_xla_tiling"]
    assert GroupedMatmulConfig().sizes() == PageAttentionConfig().sizes() == {}


def test_sizes_follow_from_shapes():
    from ejkernel.modules._call import _field_of

    dims = {"max_num_pages": 10, "page_size": 16}
    assert _field_of("num_splits", 3, {"split_keys": []}, dims) == ("split_keys", 54)
    assert _field_of("num_splits", 3, {"split_keys": []}, {"kv_len": 100}) == ("split_keys", 34)
    assert _field_of("pages_per_block", 4, {"block_k": []}, dims) == ("block_k", 64)
    assert _field_of("num_splits", 3, {}, dims) == ("num_splits", 3)
    assert _field_of("block_m", 96, {"block_rows": [], "block_columns": []}, {}) == ("block_rows", 96)
    assert _field_of("block_n", 96, {"block_rows": [], "block_columns": []}, {}) == ("block_columns", 96)
    assert _field_of("block_n", 96, {"block_n": []}, {}) == ("block_n", 96)


def test_kernels_for_an_executor():
    executor = create_default_executor()
    out = executor(modules.PageAttention(), QUERY, KEY, VALUE, LENGTHS, TABLES)
    assert_same(out, modules.page_attention(QUERY, KEY, VALUE, LENGTHS, TABLES))
    pair = executor(modules.RaggedPageAttentionv3(), *v3_arguments(KV_PAGES))
    assert len(pair) == 2
    assert {modules.RaggedDecodeAttention.op_id, modules.RaggedPageAttention.op_id, modules.GroupedMatmul.op_id} == {
        "ragged_decode_attention",
        "ragged_page_attention",
        "grouped_matmul",
    }


def test_plain_numbers_have_32_bits_whatever_jax_is_told():
    jax.config.update("jax_enable_x64", True)
    try:
        given = v3_arguments(KV_PAGES)
        assert ejkernel.ragged_page_attention_v3(*given, q_scale=0.5).out.dtype == jnp.float32
        assert ejkernel.ragged_page_attention(*PAGED, [2]).out.dtype == jnp.float32
    finally:
        jax.config.update("jax_enable_x64", False)


# ---- NumPy arrays ----


def test_numpy_arrays_are_written_in_place():
    given = [np.array(x) for x in v3_arguments(KV_PAGES)]
    want = ejkernel.ragged_page_attention_v3(*map(jnp.asarray, given), q_scale=0.5)
    got = ejkernel.ragged_page_attention_v3(*given, q_scale=0.5)
    assert got.kv_cache is given[3] and type(got.out) is np.ndarray
    assert_close(got.out, want.out)
    assert_same(got.kv_cache, want.kv_cache)
    key, value = (np.zeros((6, 4, 2, 16), np.int8) for _ in range(2))
    appended = ejkernel.page_append(given[1], given[2], key, value, *given[4:5], np.array(TABLES), given[6], 0.05, 0.05)
    assert appended.key_cache is key and key.any() and value.any()


def test_numpy_arrays_give_numpy_arrays():
    arrays = [np.array(x) for x in (QUERY, KEY, VALUE, LENGTHS, TABLES)]
    out, lse = ejkernel.page_attention(*arrays, cache_layout="head_major")
    assert type(out) is type(lse) is np.ndarray
    assert_close(out, modules.page_attention(QUERY, KEY, VALUE, LENGTHS, TABLES))
    with pytest.raises(InvalidArgument, match="key_cache"):
        ejkernel.page_attention(arrays[0], *(x.astype(jnp.int4) for x in arrays[1:3]), *arrays[3:])
    lhs, rhs = np.array(normal(0, 12, 8)), np.array(normal(1, 2, 8, 6))
    out = ejkernel.grouped_matmul(lhs, rhs, [5, 7])
    assert_close(out, np.concatenate([lhs[:5] @ rhs[0], lhs[5:] @ rhs[1]]))


# ---- 2_kernel_implementations.md ----


def test_registering_page_attention():
    """Page attention: the signature is the declaration's, whose fifth argument follows the tables."""
    from ejkernel.kernels import Backend, KernelRegistry, Platform

    registry = KernelRegistry()
    with pytest.raises(InvalidArgument, match="argument 6 of 'page_attention_triton' must be softmax_aux=None, got"):

        @registry.register("page_attention", Platform.TRITON, Backend.GPU)
        def page_attention_triton(
            query: jax.Array,  # "batch num_heads head_dim"
            key_cache: jax.Array,  # "num_blocks num_heads block_size head_dim"
            value_cache: jax.Array,  # "num_blocks num_heads block_size head_dim"
            context_lens: jax.Array,  # "batch"
            block_tables: jax.Array,  # "batch max_blocks_per_seq"
            softmax_scale: float,
            block_size: int,
        ):
            """Paged attention for efficient KV-cache management."""

    # Its arguments by their names.
    cache = normal(1, 6, 4, 4, 16)
    out = modules.page_attention(
        query=QUERY,
        key_cache=cache,
        value_cache=cache,
        context_lens=LENGTHS,
        block_tables=TABLES,
        softmax_scale=0.25,
        block_size=4,
    )
    assert_same(out, modules.page_attention(QUERY, cache, cache, LENGTHS, TABLES, 0.25))


def test_registering_grouped_matmul():
    """Grouped matrix multiplication: arguments are named and ordered as the declaration has them (lhs and rhs, not a
    and b), its formula is the batched form."""
    from ejkernel.kernels import Backend, KernelRegistry, Platform

    registry = KernelRegistry()
    with pytest.raises(InvalidArgument, match="argument 1 of 'grouped_matmul_pallas' must be lhs, got a"):

        @registry.register("grouped_matmul", Platform.PALLAS, Backend.TPU)
        def grouped_matmul_pallas(a: jax.Array, b: jax.Array):
            """Efficient batched matrix multiplication."""
            return jax.vmap(jax.vmap(jnp.dot, in_axes=0), in_axes=0)(a, b)

    a, b = normal(0, 2, 3, 5, 8), normal(1, 2, 3, 8, 6)
    by_vmap = jax.vmap(jax.vmap(jnp.dot, in_axes=0), in_axes=0)(a, b)
    assert_close(modules.grouped_matmul(a, b), by_vmap)


def test_sinks_are_of_kv_heads_or_of_query_heads():
    query, cache = normal(0, 2, 8, 16), normal(1, 2, 6, 2, 16)
    starts, ends = ints(0, 0), ints(6, 4)
    of_kv_heads = normal(2, 2, 1)
    got = modules.ragged_decode_attention(query, cache, cache, starts, ends, of_kv_heads)
    want = modules.ragged_decode_attention(query, cache, cache, starts, ends, jnp.repeat(of_kv_heads, 4, axis=0))
    assert_same(got, want)
    for rows in (1, 3, 4, 16):
        with pytest.raises(InvalidArgument, match=f"softmax_aux.*got {rows}"):
            modules.ragged_decode_attention(query, cache, cache, starts, ends, normal(3, rows, 1))


def test_what_is_given_twice_is_refused():
    cache = normal(1, 6, 4, 4, 16)
    given = (QUERY, cache, cache, LENGTHS, TABLES)
    with pytest.raises(TypeError, match="page_attention: softmax_scale is given twice, once by its old name"):
        modules.page_attention(*given, 0.25, softmax_scale=0.5)
    x = normal(0, 1, 4, 2, 8)
    with pytest.raises(TypeError, match="flash_attention: cfg and config are one argument"):
        modules.flash_attention(x, x, x, cfg={"block_q": 64}, config={"block_q": 16})


def test_attention_drops_out_with_a_generator_only():
    x = normal(0, 1, 8, 2, 8)
    kept = modules.attention(x, x, x)
    for got, want in zip(modules.attention(x, x, x, deterministic=False, dropout_prob=0.5), kept, strict=True):
        assert_same(got, want)
    dropped = modules.attention(x, x, x, deterministic=False, dropout_prob=0.5, dropout_rng=np.int64(7))
    assert np.abs(np.asarray(dropped[0]) - np.asarray(kept[0])).max() > 1e-3


def test_a_config_of_sizes_is_no_overlay():
    with (
        pytest.raises(TypeError, match="overlay_cache: the config of flash_attention must be a mapping"),
        ops.overlay_cache({"flash_attention": modules.FlashAttentionConfig()}),
    ):
        pass
