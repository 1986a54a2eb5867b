"""An operation that updates its input, toy_append of a plug-in: test_updates.py runs these where that is loaded.

rows[b, at[b, t]] = scale * values[b, t], every other row stays; sums[b, t] is the sum of that row.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ejkernel
from ejkernel import _functions

toy_append = _functions.FUNCTIONS["toy_append"]
AT = np.array([[2, 0], [1, 7]], np.int32)  # 7 is no row


def arguments(seed=0, batch=2):
    random = np.random.default_rng(seed)
    rows, values = (random.standard_normal((batch, n, 4)).astype(np.float32) for n in (3, 2))
    return rows, values, AT[:batch].copy()


def updated(rows, values, at, scale=1):
    rows = np.array(rows)
    for b, t in np.ndindex(at.shape):
        if 0 <= at[b, t] < rows.shape[1]:
            rows[b, at[b, t]] = scale * values[b, t]
    return rows


def test_it_says_what_it_updates():
    assert "rows: @rows&[batch, num_rows, dim]. the buffer with the new rows (the input of this name, updated)" in (
        toy_append.__doc__
    )


def test_a_numpy_array_is_updated_in_place():
    rows, values, at = arguments()
    expected = updated(rows, values, at)
    result = toy_append(rows, values, at)
    assert result.rows is rows
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_allclose(result.sums, values.sum(-1), rtol=1e-6)


def test_a_view_is_updated_where_it_lies():
    rows, values, at = arguments()
    wide = np.zeros((3, 2, 8), np.float32)
    view = wide.transpose(1, 0, 2)[..., 2:6]
    view[:] = rows
    assert toy_append(view, values, at).rows is view
    np.testing.assert_array_equal(wide[..., 2:6].transpose(1, 0, 2), updated(rows, values, at))
    assert not wide[..., :2].any() and not wide[..., 6:].any()


def test_what_cannot_be_updated_is_refused():
    rows, values, at = arguments()
    rows.flags.writeable = False
    with pytest.raises(ejkernel.InvalidArgument, match="rows must be writable, since .*, got a read-only array"):
        toy_append(rows, values, at)
    with pytest.raises(ejkernel.InvalidArgument, match="rows must have strides that do not overlap"):
        toy_append(np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (2, 3, 4), (0, 0, 4)), values, at)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_a_jax_array_stays_what_it_is(wrap):
    rows, values, at = map(jnp.asarray, arguments())
    before = np.array(rows)
    result = wrap(lambda *arrays: toy_append(*arrays, scale=2.0))(rows, values, at)
    np.testing.assert_array_equal(rows, before)
    np.testing.assert_array_equal(result.rows, updated(before, np.array(values), AT, 2))
    np.testing.assert_allclose(result.sums, 2 * np.array(values).sum(-1), rtol=1e-6)


def test_numpy_arrays_beside_jax_arrays_stay_what_they_are():
    rows, values, at = arguments()
    before = rows.copy()
    result = toy_append(rows, jnp.asarray(values), at)
    np.testing.assert_array_equal(rows, before)
    np.testing.assert_array_equal(result.rows, updated(before, values, at))


def test_an_operand_that_is_read_afterwards_is_copied_first():
    rows, values, at = map(jnp.asarray, arguments())

    @jax.jit
    def both(rows, values, at):
        first = toy_append(rows, values, at).rows
        second = toy_append(rows, -values, at).rows
        return first, second, rows + 1

    first, second, later = both(rows, values, at)
    np.testing.assert_array_equal(first, updated(rows, np.array(values), AT))
    np.testing.assert_array_equal(second, updated(rows, -np.array(values), AT))
    np.testing.assert_array_equal(later, rows + 1)


def test_a_result_that_nobody_reads_does_not_change_the_operand():
    rows, values, at = map(jnp.asarray, arguments())
    before = np.array(rows)
    sums, after = jax.jit(lambda r, v, a: (toy_append(r, v, a).sums, r))(rows, values, at)
    np.testing.assert_allclose(sums, np.array(values).sum(-1), rtol=1e-6)
    np.testing.assert_array_equal(after, before)
    np.testing.assert_array_equal(rows, before)


def test_a_donated_operand_is_written_in_place():
    rows, values, at = map(jnp.asarray, arguments())
    expected = updated(rows, np.array(values), AT)
    step = jax.jit(lambda *arrays: toy_append(*arrays).rows, donate_argnums=0)
    lowered = step.lower(rows, values, at)
    assert "output_operand_alias" in lowered.as_text()
    rows = rows + 0  # memory of XLA's own
    place = rows.unsafe_buffer_pointer()
    result = step(rows, values, at)
    assert rows.is_deleted() and result.unsafe_buffer_pointer() == place
    np.testing.assert_array_equal(result, expected)


def test_a_loop_carries_it():
    rows, values, at = map(jnp.asarray, arguments())
    scales = np.arange(1, 4, dtype=np.float32)

    def step(rows, scale):
        result = toy_append(rows, scale * values, at)
        return result.rows, result.sums

    last, sums = jax.jit(lambda rows: jax.lax.scan(step, rows, scales))(rows)
    np.testing.assert_array_equal(last, updated(rows, np.array(values), AT, 3))
    assert sums.shape == (3, 2, 2)


@pytest.mark.parametrize("numbered", [False, True])  # folds, and does not
@pytest.mark.parametrize("axes", [(0, 0, 0), (1, 0, 0), (None, 0, 0), (0, None, None)])
def test_vmap_updates_each_slice_of_its_own(numbered, axes):
    slices = [arguments(seed) for seed in range(3)]
    whole = [
        jnp.asarray(slices[0][i] if axis is None else np.stack([s[i] for s in slices], axis))
        for i, axis in enumerate(axes)
    ]
    result = jax.jit(jax.vmap(lambda *a: toy_append(*a, numbered=numbered), in_axes=axes))(*whole)
    for n in range(3):
        mine = [slices[0 if axis is None else n][i] for i, axis in enumerate(axes)]
        np.testing.assert_array_equal(result.rows[n], updated(*mine))
        np.testing.assert_allclose(result.sums[n], mine[1].sum(-1), rtol=1e-6)


def test_gradients_pass_by_it():
    rows, values, at = map(jnp.asarray, arguments())

    def loss(weight):
        return (weight * toy_append(rows, values, at).rows).sum()

    weight = jnp.ones_like(rows)
    np.testing.assert_array_equal(jax.grad(loss)(weight), updated(rows, np.array(values), AT))


def test_an_exported_program_keeps_it():
    rows, values, at = map(jnp.asarray, arguments())
    before = np.array(rows)
    known = [jax.export.DisabledSafetyCheck.custom_call("ejkernel_cpu")]
    exported = jax.export.export(jax.jit(lambda *a: toy_append(*a).rows), disabled_checks=known)(rows, values, at)
    np.testing.assert_array_equal(exported.call(rows, values, at), updated(before, np.array(values), AT))
    np.testing.assert_array_equal(rows, before)
