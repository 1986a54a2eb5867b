"""NumPy arrays call operations directly: the same numbers as through JAX and as plain formulas in float64."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import ejkernel
from ejkernel import _interop, _primitive
from ejkernel._primitive import Call

SHAPE = (2, 7, 4, 16)


def random(shape=SHAPE, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def attention_formula(query, key, value, causal=False):
    """Softmax attention in float64, and the logarithm of what the rows sum to."""
    q, k, v = (np.moveaxis(x.astype(np.float64), 2, 1) for x in (query, key, value))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], scores.shape[-1] - scores.shape[-2]), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return np.moveaxis(weights / total @ v, 1, 2), (top + np.log(total))[..., 0]


@pytest.fixture
def without_jax(monkeypatch):
    def refuse(*_):
        raise AssertionError("went through JAX")

    monkeypatch.setattr(_primitive, "bind", refuse)
    monkeypatch.setattr(_interop, "as_jax", refuse)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(np.float64, 1e-13), (np.float32, 1e-6), (np.float16, 1e-3), (ml_dtypes.bfloat16, 1e-2)]
)
def test_every_float_is_the_formula(without_jax, dtype, tolerance):
    query, key, value = (random(dtype=dtype, seed=seed) for seed in range(3))
    out, lse = ejkernel.flash_attention(query, key, value, causal=True)
    expected_out, expected_lse = attention_formula(query, key, value, causal=True)
    assert type(out) is np.ndarray and out.dtype == dtype
    np.testing.assert_allclose(out.astype(np.float64), expected_out, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(lse, expected_lse, rtol=tolerance, atol=tolerance)


def test_numbers_are_those_through_jax():
    query, key, value = (random(seed=seed) for seed in range(3))
    for function in (ejkernel.flash_attention, ejkernel.attention, ejkernel.scaled_dot_product_attention):
        direct = function(query, key, value, sliding_window=3)
        for mine, theirs in zip(
            direct, function(*map(jnp.asarray, (query, key, value)), sliding_window=3), strict=True
        ):
            assert isinstance(theirs, jax.Array)
            np.testing.assert_array_equal(mine, theirs, strict=True)
    pooled = ejkernel.mean_pooling(query[:, :, 0])
    np.testing.assert_array_equal(pooled.out, ejkernel.mean_pooling(jnp.asarray(query[:, :, 0])).out, strict=True)
    assert pooled.chunk_offsets is None


VIEWS = {
    "heads before positions": lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
    "columns of wider rows": lambda x: np.concatenate([x, np.full_like(x, np.nan)], -1)[..., : x.shape[-1]],
    "every other position": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
    "4 bytes past an aligned address": lambda x: np.concatenate([np.zeros(1, x.dtype), x.ravel()])[1:].reshape(x.shape),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_are_read_where_they_are(without_jax, view):
    arrays = [random(seed=seed) for seed in range(3)]
    views = [view(x) for x in arrays]
    for x in views:
        x.flags.writeable = False
    for mine, expected in zip(ejkernel.flash_attention(*views), ejkernel.flash_attention(*arrays), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=1e-6)


def test_a_broadcast_view_is_read_once_for_all(without_jax):
    query, key = random(), random((1, *SHAPE[1:]), seed=1)
    shared = np.broadcast_to(key, SHAPE)
    out = ejkernel.flash_attention(query, shared, shared).out
    np.testing.assert_allclose(out, attention_formula(query, shared, shared)[0], rtol=1e-5, atol=1e-6)


def test_plans_know_how_arrays_are_aligned():
    memory = np.zeros(64, np.uint8)
    start = -memory.__array_interface__["data"][0] % 16
    call = Call("mean_pooling", ("x",))
    for offset, alignment in ((1, 1), (2, 2), (12, 4), (8, 8)):
        x = memory[start + offset :][:8].reshape(1, 1, 8)
        assert _interop._NUMPY.spec(call, "x", x).alignment == alignment


def test_what_cannot_be_read_is_refused_with_a_sentence(without_jax):
    rows = np.zeros((1, 5), [("x", np.float32, (8,)), ("tag", np.uint8)])["x"]
    with pytest.raises(
        ejkernel.InvalidArgument, match=r"mean_pooling: x must have strides of whole elements, got \(165, 33"
    ):
        ejkernel.mean_pooling(rows)
    with pytest.raises(ejkernel.InvalidArgument, match="mean_pooling: x must be aligned to its element size 4"):
        ejkernel.mean_pooling(np.frombuffer(bytes(161), np.float32, offset=1).reshape(1, 5, 8))
    with pytest.raises(ejkernel.InvalidArgument, match="mean_pooling: x must have a contiguous last axis"):
        ejkernel.mean_pooling(random((1, 5, 16))[..., ::2])


@pytest.mark.parametrize("dtype", [np.int16, np.complex64, np.dtype(np.float32).newbyteorder(), ml_dtypes.int4])
def test_dtypes_that_the_library_has_not_are_named(without_jax, dtype):
    with pytest.raises(ejkernel.InvalidArgument, match=r"x must have one of the dtypes f64, f32, .*, got (?!f32)"):
        ejkernel.mean_pooling(np.zeros((1, 5, 8), dtype))


def test_the_library_says_what_is_wrong_with_shapes_and_dtypes(without_jax):
    query = random()
    with pytest.raises(ejkernel.InvalidArgument, match="key head_dim must equal query head_dim 16, got 8"):
        ejkernel.flash_attention(query, query[..., :8], query)
    with pytest.raises(ejkernel.InvalidArgument, match="flash_attention: key .*f64"):
        ejkernel.flash_attention(query, query.astype(np.float64), query)
    with pytest.raises(ejkernel.Unsupported, match="the platform xla takes JAX arrays, got NumPy arrays"):
        ejkernel.flash_attention(query, query, query, platform="xla")


def test_no_batch_entries_and_no_keys(without_jax):
    query = random()
    assert ejkernel.flash_attention(query[:0], query[:0], query[:0]).out.shape == (0, *SHAPE[1:])
    out, lse = ejkernel.flash_attention(query, query[:, :0], query[:, :0])
    assert (out == 0).all() and (lse == -np.inf).all()


def test_lists_and_numbers_become_arrays(without_jax):
    tokens = random((9, 16))
    out = ejkernel.mean_pooling(tokens, cu_seqlens=[0, 4, 9]).out
    expected = [tokens[:4].mean(0, dtype=np.float64), tokens[4:].mean(0, dtype=np.float64)]
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-7)


def test_with_jax_arrays_it_is_a_call_of_jax():
    query, key = random(), random(seed=1)
    expected = ejkernel.flash_attention(query, key, key).out
    out = ejkernel.flash_attention(jnp.asarray(query), key, key).out
    traced = jax.jit(lambda q: ejkernel.flash_attention(q, key, key).out)(query)
    for result in (out, traced):
        assert isinstance(result, jax.Array)
        np.testing.assert_array_equal(result, expected)
    constant = jax.jit(lambda q: q + ejkernel.flash_attention(query, key, key).out)(query)
    np.testing.assert_allclose(constant, query + expected, rtol=1e-6)


def test_what_only_speaks_dlpack_becomes_a_jax_array():
    class Tensor:
        array = random((2, 5, 8))

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

    out = ejkernel.mean_pooling(Tensor()).out
    assert isinstance(out, jax.Array)
    np.testing.assert_array_equal(out, ejkernel.mean_pooling(Tensor.array).out)


def test_a_config_that_is_set_later_is_taken():
    query = random((1, 33, 2, 16))
    call = Call("flash_attention", ("query", "key", "value"))
    plan = _interop.plan_of(call, [query] * 3)
    assert _interop.plan_of(call, [query] * 3) is plan
    block_q = plan.info["config"]["block_q"]
    plan.set_config({"block_q": 2 * block_q})
    assert _interop.plan_of(call, [query] * 3).info["config"]["block_q"] == 2 * block_q


def test_threads_share_plans():
    query = random()
    expected = ejkernel.flash_attention(query, query, query)
    with ThreadPoolExecutor(4) as pool:
        for out, lse in pool.map(lambda _: ejkernel.flash_attention(query, query, query), range(32)):
            assert (out == expected.out).all() and (lse == expected.lse).all()


def test_results_can_be_pickled():
    result = ejkernel.mean_pooling(random((2, 5, 8)))
    assert type(pickle.loads(pickle.dumps(result))) is ejkernel.MeanPoolingResult
