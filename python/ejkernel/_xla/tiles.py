"""Rows of packed sequences, or of groups, in tiles: runs of neighbours that belong together, at most so many each. What
needs the keys or the matrix of its rows' owner then fetches it once for a tile, and the number of tiles is known from
shapes alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

_MAX_ELEMENTS = 2**24  # that tiles which are computed together may fetch and compute


class Tiles(NamedTuple):
    owner: jax.Array  # int32 [num_tiles]: whom a tile's rows belong to, -1: nobody
    rows: jax.Array  # int32 [num_tiles, size]: which rows they are, any row where there are fewer
    used: jax.Array  # bool [num_tiles, size]: where there are not fewer
    place: tuple[jax.Array, jax.Array]  # int32 [total] each: tile of a row, and its number there


def cut(owner: jax.Array, num_owners: int, size: int, every: int | None = None) -> Tiles:
    """Tiles of at most `size` rows of one owner; none goes across a multiple of `every`."""
    total = owner.shape[0]
    row = jnp.arange(total, dtype=jnp.int32)
    begins = owner != jnp.roll(owner, 1)
    if every is not None:
        begins |= row % min(every, max(total, 1)) == 0
    begins = begins.at[:1].set(True)
    of_run = row - jax.lax.cummax(jnp.where(begins, row, 0))
    begins |= of_run % size == 0
    tile = jnp.cumsum(begins, dtype=jnp.int32) - 1

    # Each owner begins one run and ends one, overlapping others or not.
    num_tiles = 2 * num_owners + 1 + total // size + (0 if every is None else -(-total // every))
    num_tiles = min(num_tiles, total)
    first = jnp.full(num_tiles, total, jnp.int32).at[tile].min(row)
    rows = first[:, None] + jnp.arange(size, dtype=jnp.int32)
    used = rows < total
    rows = jnp.clip(rows, 0, max(total - 1, 0))
    if total > 0:
        used &= tile[rows] == jnp.arange(num_tiles, dtype=jnp.int32)[:, None]
    return Tiles(owner[rows[:, 0]], rows, used, (tile, row - first[tile]))


def of_one_row(total: int) -> Tiles:
    """Row n belongs to owner n."""
    row = jnp.arange(total, dtype=jnp.int32)
    return Tiles(row, row[:, None], jnp.ones((total, 1), bool), (row, jnp.zeros_like(row)))


def rows_per_tile(total: int, num_owners: int, most: int) -> int:
    """A power of two up to `most`, near what an owner has on average: other rows of a tile are computed for nothing."""
    size = 1
    while 2 * size <= min(most, total // max(num_owners, 1)):
        size *= 2
    return size


def over_tiles(tiles: Tiles, compute: Callable[[jax.Array, jax.Array, jax.Array], dict], elements_each: int) -> dict:
    """compute(owner, rows, used) of every tile, whose results begin with the tile's rows, put together by row."""
    at_once = max(_MAX_ELEMENTS // max(elements_each, 1), 1)
    each = (tiles.owner, tiles.rows, tiles.used)
    if tiles.owner.shape[0] <= at_once:
        results = jax.vmap(compute)(*each)
    else:
        results = jax.lax.map(lambda tile: compute(*tile), each, batch_size=at_once)
    return jax.tree.map(lambda x: x[tiles.place], results)


def not_empty(x: jax.Array) -> jax.Array:
    """At least one entry, so that any index finds one; it holds nothing that is used."""
    return x if x.shape[0] > 0 else jnp.zeros((1, *x.shape[1:]), x.dtype)
