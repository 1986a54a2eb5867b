"""return_status: the word that says what was wrong with the contents of index arrays, on every platform that runs here,
under every transformation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import paged_problems as problems
import pytest

import ejkernel

PAGE_ID, LENGTH, OFFSETS, GROUP_SIZE = 1, 2, 4, 8
PLATFORMS = (None, "reference", "xla")


def ints(*values):
    return jnp.array(values, jnp.int32)


x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 6, 2, 8), np.float32))
rows = x.reshape(12, 2, 8)


def flash(**more):
    return functools.partial(ejkernel.flash_attention, x, x, x, **more)


def packed(q, k, **more):
    return functools.partial(ejkernel.flash_attention, rows, rows, rows, cu_seqlens_q=q, cu_seqlens_k=k, **more)


CALLS = {
    "flash_attention": (flash(), 0),
    "flash_attention, lengths": (flash(seqused_k=ints(0, 6)), 0),
    "flash_attention, longer than it is": (flash(seqused_k=ints(3, 7)), LENGTH),
    "flash_attention, less than nothing": (flash(seqused_k=ints(-1, 6)), LENGTH),
    "packed": (packed(ints(0, 5, 5, 12), ints(0, 0, 7, 12)), 0),
    "packed, falling": (packed(ints(0, 9, 5, 12), ints(0, 0, 7, 12)), OFFSETS),
    "packed, outside": (packed(ints(0, 5, 5, 12), ints(0, 0, 7, 2**31 - 1)), OFFSETS),
    "packed, too long": (packed(ints(0, 5, 5, 12), ints(0, 0, 7, 12), max_seqlen_k=6), LENGTH),
    "packed, all of it": (packed(ints(0, 5, 5, 12), ints(-9, 0, 7, 12), seqused_k=ints(0, 7, 6)), LENGTH | OFFSETS),
    "scaled_dot_product_attention": (
        functools.partial(ejkernel.scaled_dot_product_attention, x, x, x, query_seq_lengths=ints(9, 0)),
        LENGTH,
    ),
    "mean_pooling": (functools.partial(ejkernel.mean_pooling, rows[:, 0], cu_seqlens=ints(0, 13)), OFFSETS),
    "recurrent_attention": (
        functools.partial(ejkernel.recurrent_attention, rows, rows, rows, cu_seqlens=ints(0, 5, 12)),
        0,
    ),
    "gla_attention, falling": (
        functools.partial(ejkernel.gla_attention, rows, rows, rows, cu_seqlens=ints(0, 12, 5)),
        OFFSETS,
    ),
    "grouped_matmul": (functools.partial(ejkernel.grouped_matmul, rows[:, 0], x[:, :, 0].mT, ints(5, 7)), 0),
    "grouped_matmul, too many": (functools.partial(ejkernel.grouped_matmul, rows[:, 0], x[:, :, 0].mT, ints(5, 8)), 8),
    "grouped_matmul, negative": (functools.partial(ejkernel.grouped_matmul, rows[:, 0], x[:, :, 0].mT, ints(5, -8)), 8),
}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", CALLS)
def test_it_says_what_is_wrong_and_changes_nothing_else(name, platform):
    call, expected = CALLS[name]
    *results, status = call(platform=platform, return_status=True)
    assert status.shape == (1,) and status.dtype == jnp.uint32 and int(status[0]) == expected
    plain = call(platform=platform)
    for result, same in zip(results, plain if isinstance(plain, tuple) else (plain,), strict=True):
        np.testing.assert_array_equal(result, same)


@pytest.mark.parametrize("operation", problems.CALLS)
def test_every_platform_says_the_same_of_hostile_tables(operation):
    bits = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        inputs, params = problems.CALLS[operation](rng, np.float32)
        if "num_seqs" in inputs:
            inputs["num_seqs"][0] = problems.NUM_SEQS + seed % 2
        if "distribution" in inputs:
            inputs["distribution"][2] = problems.NUM_SEQS + seed % 2
        given = {name: np.asarray(x) for name, x in inputs.items() if x is not None}

        @jax.jit
        def words_of_platforms(given):
            function = functools.partial(getattr(ejkernel, operation), **given, **params, return_status=True)
            return {str(platform): function(platform=platform)[-1][0] for platform in PLATFORMS}

        words = {platform: int(word) for platform, word in words_of_platforms(given).items()}
        copies = {name: x.copy() for name, x in given.items()}
        words["numpy"] = int(getattr(ejkernel, operation)(**copies, **params, return_status=True)[-1][0])
        assert len(set(words.values())) == 1, words
        bits |= words["xla"]
    assert bits & LENGTH or operation == "ragged_decode_attention" and bits & OFFSETS


def test_a_missing_page_that_no_window_reaches_is_no_fault():
    query, cache = jnp.ones((1, 2, 8)), jnp.ones((3, 4, 1, 8))
    table = ints(-1, 5, 2).reshape(1, 3)

    @functools.partial(jax.jit, static_argnames=("platform",))
    def words(table, platform):
        def word(length, **more):
            call = functools.partial(ejkernel.page_attention, query, cache, cache, ints(length), table)
            return call(platform=platform, return_status=True, **more)[-1][0]

        window = functools.partial(word, 12, sliding_window=3)
        return [word(12), window(), word(12, sliding_window=4), window(attention_sink_size=1), word(0)]

    for platform in PLATFORMS:
        assert [int(word) for word in words(table, platform)] == [PAGE_ID, 0, PAGE_ID, PAGE_ID, 0]


def lengths_status(lengths, platform=None):
    return ejkernel.flash_attention(x, x, x, seqused_k=lengths, platform=platform, return_status=True)[-1]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_slices_of_vmap_have_words_of_their_own(platform):
    lengths = jnp.stack([ints(6, 6), ints(6, 7), ints(-1, 0)])
    words = jax.jit(jax.vmap(functools.partial(lengths_status, platform=platform)))(lengths)
    np.testing.assert_array_equal(words, [[0], [LENGTH], [LENGTH]])


@pytest.mark.parametrize("platform", (None, "xla"))
def test_gradients_pass_by_it(platform):
    def loss(query, lengths):
        out, _, status = ejkernel.flash_attention(query, x, x, seqused_k=lengths, platform=platform, return_status=True)
        return out.sum(), status

    gradient, status = jax.jit(jax.grad(loss, has_aux=True))(x, ints(6, 9))
    plain = jax.grad(lambda q: ejkernel.flash_attention(q, x, x, seqused_k=ints(6, 9), platform=platform).out.sum())(x)
    np.testing.assert_allclose(gradient, plain, rtol=1e-6, atol=1e-6)
    assert int(status[0]) == LENGTH


def test_a_loop_and_an_exported_program_have_it():
    lengths = jnp.stack([ints(6, 6), ints(6, 7)])
    _, words = jax.lax.scan(lambda carry, one: (carry, lengths_status(one)), 0, lengths)
    np.testing.assert_array_equal(words, [[0], [LENGTH]])
    known = [jax.export.DisabledSafetyCheck.custom_call("ejkernel_cpu")]
    exported = jax.export.export(jax.jit(lengths_status), disabled_checks=known)(lengths[1])
    assert int(jax.export.deserialize(exported.serialize()).call(lengths[1])[0]) == LENGTH


def test_modules_return_it_last():
    from ejkernel import modules

    out, status = modules.flash_attention(x, x, x, seqused_k=ints(6, 7), return_status=True)
    assert out.shape == x.shape and int(status[0]) == LENGTH
    out, weights, status = modules.attention(x, x, x, seqused_k=ints(6, 7), return_status=True)
    assert weights.shape == (2, 2, 6, 6) and int(status[0]) == LENGTH


def test_torch_has_it():
    torch = pytest.importorskip("torch", reason="ejkernel.torch needs torch")
    import ejkernel.torch as of_torch

    query = torch.ones(2, 6, 2, 8, requires_grad=True)
    lengths = torch.tensor([6, 7], dtype=torch.int32)
    out, _, status = of_torch.flash_attention(query, query, query, seqused_k=lengths, return_status=True)
    assert int(status[0]) == LENGTH
    out.sum().backward()
    assert query.grad.shape == query.shape
