"""ejkernel.xla_utils against loops."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ejkernel import InvalidArgument
from ejkernel import xla_utils as xu


@pytest.mark.parametrize(("lens", "spare"), [([0, 2, 0, 0, 3, 0], 3), ([3, 0, 4, 1], 0), ([], 0)])
def test_tokens_know_their_sequence_position_and_chunk(lens, spare):
    cu = xu.prepare_cu_seqlens(jnp.array(lens, jnp.int32))
    total = sum(lens) + spare
    tokens = [(n, i) for n, length in enumerate(lens) for i in range(length)] + [(-1, -1)] * spare
    assert cu.tolist() == [0, *itertools.accumulate(lens)] and xu.prepare_lens(cu).tolist() == lens

    def jitted(function, *args):
        return jax.jit(lambda cu: function(cu, *args, total=total))(cu).tolist()

    assert jitted(xu.prepare_token_indices) == [list(row) for row in tokens]
    assert jitted(xu.prepare_sequence_ids) == [n for n, _ in tokens]
    assert jitted(xu.prepare_position_ids) == [i for _, i in tokens]
    for size in (1, 3):
        chunks = [(n, c) for n, length in enumerate(lens) for c in range(-(-length // size))]
        rows = -(-total // size) + len(lens)
        assert jitted(xu.prepare_chunk_indices, size) == [
            list(row) for row in chunks + [(-1, -1)] * (rows - len(chunks))
        ]
        ends = itertools.accumulate(-(-length // size) for length in lens)
        assert xu.prepare_chunk_offsets(cu, size).tolist() == [0, *ends]


def test_lengths_and_masks():
    lens = jnp.array([3, 0, 4], jnp.int32)
    mask = xu.prepare_mask(lens, 4)
    assert mask.tolist() == [[i < n for i in range(4)] for n in (3, 0, 4)]
    assert xu.prepare_lens_from_mask(mask).tolist() == [3, 0, 4]
    assert xu.prepare_cu_seqlens_from_mask(mask).tolist() == [0, 3, 3, 7]
    with pytest.raises(InvalidArgument, match="row 1"):
        xu.prepare_lens_from_mask([[1, 1, 0], [1, 0, 1]])
    with pytest.raises(InvalidArgument, match="outside jit"):
        jax.jit(xu.prepare_lens_from_mask)(mask)
    with pytest.raises(InvalidArgument, match="total="):
        jax.jit(xu.prepare_sequence_ids)(jnp.array([0, 2]))


@pytest.mark.parametrize(
    ("reverse", "head_first", "lens"),
    [(False, False, None), (True, True, None), (False, True, [3, 0, 7, 1]), (True, False, [3, 0, 7, 1])],
)
def test_cumulative_sums(reverse, head_first, lens):
    time = 11
    x = np.random.default_rng(0).standard_normal((1 if lens else 2, time, 3)).astype(np.float32)

    def loops(size):
        out = np.zeros_like(x)
        begin = 0
        for length in lens or [time]:
            for first in range(begin, begin + length, size):
                rows = slice(first, min(first + size, begin + length))
                part = x[:, rows][:, ::-1] if reverse else x[:, rows]
                sums = np.cumsum(part, axis=1)
                out[:, rows] = sums[:, ::-1] if reverse else sums
            begin += length
        return out

    given = jnp.asarray(x.swapaxes(1, 2) if head_first else x)
    more = dict(reverse=reverse, head_first=head_first)
    if lens:
        more["cu_seqlens"] = xu.prepare_cu_seqlens(jnp.array(lens))
    back = (lambda y: y.swapaxes(1, 2)) if head_first else (lambda y: y)
    local = jax.jit(lambda g: xu.chunk_local_cumsum(g, 4, **more))(given)
    np.testing.assert_allclose(back(local), loops(4), rtol=1e-5, atol=1e-6)
    scaled = jax.jit(lambda g: xu.chunk_global_cumsum(g, softmax_scale=2.0, output_dtype=jnp.bfloat16, **more))(given)
    assert scaled.dtype == jnp.bfloat16
    np.testing.assert_allclose(back(scaled).astype(np.float32), 2 * loops(time), rtol=0.02, atol=0.02)


def test_masks_are_segments_or_an_error():
    random = np.random.default_rng(1)
    for _ in range(50):
        q, kv = random.integers(-1, 3, (2, 6)), random.integers(-1, 3, (2, 7))
        mask = xu.segment_ids_to_mask(q, kv)
        expected = [[[[a == b and a >= 0 for b in kv[n]] for a in q[n]]] for n in range(2)]
        assert mask.tolist() == expected
        found = xu.mask_to_segment_ids(mask)
        assert (xu.segment_ids_to_mask(*found) == mask).all()
        for ids in np.asarray(found[0]):  # numbered by first query
            firsts = list(dict.fromkeys(i for i in ids.tolist() if i >= 0))
            assert firsts == sorted(firsts) == list(range(len(firsts)))
    assert [x.tolist() for x in xu.mask_to_segment_ids(np.eye(3, 4))] == [[0, 1, 2], [0, 1, 2, -1]]
    assert [x.shape for x in xu.mask_to_segment_ids(np.zeros((0, 3, 4)))] == [(0, 3), (0, 4)]
    with pytest.raises(InvalidArgument, match="share"):
        xu.mask_to_segment_ids(np.tril(np.ones((3, 3))))
    heads = np.ones((1, 2, 3, 3), bool)
    heads[0, 1, 0, 0] = False
    with pytest.raises(InvalidArgument, match="heads that differ"):
        xu.mask_to_segment_ids(heads)
