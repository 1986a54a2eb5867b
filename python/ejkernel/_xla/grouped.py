"""grouped_matmul and its gradients: rows that belong to groups, each with a matrix of its own, ragged or batched.

Ragged rows go through in tiles of one group, each multiplied by its group's matrix alone. (jax.lax.ragged_dot multiplies
all rows by all matrices where the backend has nothing better, so that a NaN in one matrix would reach every row.)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ejkernel._xla import tiles
from ejkernel._xla.attention_problem import FLOATS

_MAX_ROWS = 128  # of a tile
_SCALE_BLOCK = 128  # elements of k and of n that share a scale


def grouped_matmul(inputs: dict, params: dict) -> dict:
    lhs, rhs, existing = inputs["lhs"], _k_by_n(inputs["rhs"], params), inputs["existing_out"]
    wide = _wide(lhs)
    lhs_values, rhs_values = (
        _scaled_rows(lhs, inputs["lhs_scale"], wide),
        _scaled_matrices(rhs, inputs["rhs_scale"], wide),
    )
    if lhs.ndim == 4:
        out = _product(lhs_values, rhs_values, wide)
    else:
        groups, masks = _groups(inputs, params, rhs.shape[0]), _Masks.of(inputs, params)
        out = _out_of(lhs_values, rhs_values, groups, masks, wide)
    if existing is not None:
        out += existing.astype(wide)
    return {"out": out.astype(_out_dtype(lhs.dtype, params))}


def transposed_grouped_matmul(inputs: dict, params: dict) -> dict:
    lhs, d_out, mask = inputs["lhs"], inputs["d_out"], inputs["rhs_mask"]
    wide = _wide(lhs)
    num_groups = params["num_groups"]
    if num_groups is None:
        rest = inputs["group_sizes"].shape[0] - params["group_offset"]
        num_groups = rest if mask is None else mask.shape[0]
    groups = _groups(inputs, params, num_groups)
    out = _d_rhs_of(lhs, d_out, groups, _Masks.of(inputs, params), wide)
    return {"out": _k_by_n(out, params).astype(_out_dtype(lhs.dtype, params))}


def grouped_matmul_backward(inputs: dict, params: dict) -> dict:
    lhs, rhs, d_out = inputs["lhs"], _k_by_n(inputs["rhs"], params), inputs["d_out"]
    wide = _wide(lhs)
    if lhs.ndim == 4:
        d_lhs = _product(d_out, jnp.swapaxes(rhs, -1, -2), wide)
        d_rhs = _product(jnp.swapaxes(lhs, -1, -2), d_out, wide)
    else:
        groups, masks = _groups(inputs, params, rhs.shape[0]), _Masks.of(inputs, params)
        d_lhs = _d_lhs_of(d_out, rhs, groups, masks, wide)
        d_rhs = _d_rhs_of(lhs, d_out, groups, masks, wide)
    gradients = {"lhs": d_lhs.astype(lhs.dtype), "rhs": _k_by_n(d_rhs, params).astype(rhs.dtype)}
    if inputs["existing_out"] is not None:
        gradients["existing_out"] = d_out.astype(inputs["existing_out"].dtype)
    return gradients


def _wide(lhs: jax.Array):
    return jnp.float64 if lhs.dtype == jnp.float64 else jnp.float32


def _out_dtype(lhs_dtype, params: dict):
    if params["out_dtype"] is not None:
        return FLOATS[params["out_dtype"]]
    return jnp.bfloat16 if lhs_dtype.itemsize == 1 else lhs_dtype


def _k_by_n(rhs: jax.Array, params: dict) -> jax.Array:
    """Matrices of either form as [k, n], and back."""
    return jnp.swapaxes(rhs, -1, -2) if params["transpose_rhs"] else rhs


def _product(a: jax.Array, b: jax.Array, wide) -> jax.Array:
    return jnp.matmul(
        a.astype(wide), b.astype(wide), precision=jax.lax.Precision.HIGHEST
    )  # no silent bf16 on accelerators


# ---- groups ----


class _Groups(NamedTuple):
    owner: jax.Array  # int32 [m]: each row's group, counted from the first that has a matrix; -1: none
    count: int


def _groups(inputs: dict, params: dict, count: int) -> _Groups:
    """Sizes are not trusted: a negative one is 0, and rows end where lhs does."""
    num_rows = inputs["lhs"].shape[0]
    ends = group_ends(inputs["group_sizes"], num_rows)
    group = jnp.searchsorted(ends, jnp.arange(num_rows, dtype=jnp.int32), side="right").astype(jnp.int32)
    mine = group - params["group_offset"]
    return _Groups(jnp.where((group < ends.shape[0]) & (mine >= 0) & (mine < count), mine, -1), count)


def group_ends(sizes: jax.Array, num_rows: int) -> jax.Array:
    """Past the last row of every group."""
    return jax.lax.associative_scan(lambda a, b: jnp.minimum(a + b, num_rows), jnp.clip(sizes, 0, num_rows))


# ---- masks ----


class _Selected(NamedTuple):
    """What counts of a tile's product a @ b."""

    terms: jax.Array | None = None  # bool [blocks of the depth, columns or 1]
    block: int = 1  # of the depth
    columns: jax.Array | None = None  # bool [columns]


class _Masks(NamedTuple):
    """Blocks that are not selected may hold anything."""

    rhs: jax.Array | None  # bool [groups, blocks of k, blocks of n]
    out: jax.Array | None  # bool [blocks of m, blocks of n]
    block_m: int | None
    block_k: int | None
    block_n: int | None

    @classmethod
    def of(cls, inputs: dict, params: dict) -> "_Masks":
        return cls(inputs["rhs_mask"], inputs["out_mask"], *(params[f"block_{extent}"] for extent in "mkn"))

    def of_out(self, row: jax.Array) -> jax.Array | None:
        """Of the blocks of n, for a tile that begins with this row."""
        return None if self.out is None else tiles.not_empty(self.out)[row // min(self.block_m, 2**30)]

    def of_group(self, group: jax.Array) -> jax.Array | None:
        return None if self.rhs is None else tiles.not_empty(self.rhs)[group]


def _spread(mask: jax.Array, axis: int, block: int, extent: int) -> jax.Array:
    """One entry for each element instead of each block."""
    return jax.lax.slice_in_dim(jnp.repeat(mask, min(block, max(extent, 1)), axis=axis), 0, extent, axis=axis)


def _selected_product(a: jax.Array, b: jax.Array, selected: _Selected, wide) -> jax.Array:
    """What does not count is left out after the product: zero times what it may hold is not zero."""
    if selected.terms is None:
        product = _product(a, b, wide)
    else:
        count, depth = selected.terms.shape[0], a.shape[1]
        block = min(selected.block, max(depth, 1))
        missing = (0, count * block - depth)
        a = jnp.pad(a, ((0, 0), missing)).reshape(a.shape[0], count, block).swapaxes(0, 1)
        b = jnp.pad(b, (missing, (0, 0))).reshape(count, block, b.shape[1])
        product = jnp.where(selected.terms[:, None, :], _product(a, b, wide), 0).sum(axis=0)
    return product if selected.columns is None else jnp.where(selected.columns, product, 0)


# ---- products ----


def _tiles(groups: _Groups, masks: _Masks) -> tiles.Tiles:
    """Each within one block of rows of out, where those have a mask."""
    size = tiles.rows_per_tile(groups.owner.shape[0], groups.count, _MAX_ROWS)
    return tiles.cut(groups.owner, groups.count, size, None if masks.out is None else masks.block_m)


def _rows_by_matrices(a: jax.Array, b: jax.Array, groups: _Groups, masks: _Masks, selected, wide) -> jax.Array:
    """Each row of `a` times its group's matrix, 0 for rows of no group. selected(group, row) -> _Selected is of a tile
    that begins with the row."""
    matrices, of_tile = tiles.not_empty(b), _tiles(groups, masks)

    def multiply(group, rows, used):
        return {"out": _selected_product(a[rows], matrices[group], selected(group, rows[0]), wide)}

    depth, columns = b.shape[1:]
    result = tiles.over_tiles(of_tile, multiply, depth * columns + of_tile.rows.shape[1] * (depth + columns))["out"]
    return jnp.where(groups.owner[:, None] >= 0, result, 0)


def _out_of(lhs: jax.Array, rhs: jax.Array, groups: _Groups, masks: _Masks, wide) -> jax.Array:
    num_columns = rhs.shape[2]

    def selected(group, row):
        of_group, of_out = masks.of_group(group), masks.of_out(row)
        return _Selected(
            None if of_group is None else _spread(of_group, 1, masks.block_n, num_columns),
            masks.block_k or 1,
            None if of_out is None else _spread(of_out, 0, masks.block_n, num_columns),
        )

    return _rows_by_matrices(lhs, rhs, groups, masks, selected, wide)


def _d_lhs_of(d_out: jax.Array, rhs: jax.Array, groups: _Groups, masks: _Masks, wide) -> jax.Array:
    depth = rhs.shape[1]

    def selected(group, row):
        of_group, of_out = masks.of_group(group), masks.of_out(row)
        terms = None if of_group is None else _spread(of_group.T, 1, masks.block_k, depth)
        if of_out is not None:
            terms = of_out[:, None] if terms is None else terms & of_out[:, None]
        return _Selected(terms, masks.block_n or 1)

    return _rows_by_matrices(d_out, jnp.swapaxes(rhs, 1, 2), groups, masks, selected, wide)


def _d_rhs_of(lhs: jax.Array, d_out: jax.Array, groups: _Groups, masks: _Masks, wide) -> jax.Array:
    """The transposed rows of lhs times those of d_out, summed over each group: [groups, k, n]."""
    of_tile, num_columns = _tiles(groups, masks), d_out.shape[1]
    nothing = jnp.zeros((groups.count, lhs.shape[1], num_columns), wide)
    if groups.count == 0 or lhs.shape[0] == 0:
        return nothing

    def add(sums, tile):
        group, rows, used = tile
        a, b = (jnp.where(used[:, None], x[rows], 0) for x in (lhs, d_out))
        of_out = masks.of_out(rows[0])
        columns = None if of_out is None else _spread(of_out, 0, masks.block_n, num_columns)
        product = _selected_product(a.T, b, _Selected(columns=columns), wide)
        return sums.at[jnp.where(group >= 0, group, groups.count)].add(product, mode="drop"), None

    sums, _ = jax.lax.scan(add, nothing, (of_tile.owner, of_tile.rows, of_tile.used))
    if masks.rhs is not None:
        kept = _spread(_spread(masks.rhs, 1, masks.block_k, lhs.shape[1]), 2, masks.block_n, num_columns)
        sums = jnp.where(kept, sums, 0)
    return sums


# ---- scales of 8-bit codes ----


def _scaled_rows(lhs: jax.Array, scale: jax.Array | None, wide) -> jax.Array:
    """`scale` is [], [m] or [m, blocks of k]; absent: 1."""
    if scale is None:
        return lhs
    if scale.ndim == 2:
        scale = _spread(scale, 1, _SCALE_BLOCK, lhs.shape[1])
    return lhs.astype(wide) * (scale[:, None] if scale.ndim == 1 else scale).astype(wide)


def _scaled_matrices(rhs: jax.Array, scale: jax.Array | None, wide) -> jax.Array:
    """`scale` is [], [groups, n] or [groups, blocks of k, blocks of n]; absent: 1."""
    if scale is None:
        return rhs
    if scale.ndim == 3:
        scale = _spread(_spread(scale, 1, _SCALE_BLOCK, rhs.shape[1]), 2, _SCALE_BLOCK, rhs.shape[2])
    return rhs.astype(wide) * (scale[:, None, :] if scale.ndim == 2 else scale).astype(wide)
