"""Philox4x32-10 and the dropout rule built on it, on arrays: the random numbers of every kernel on every platform.

A draw is a function of a position alone, so the backward draws the same numbers again. 32-bit integers only: JAX has no
64-bit ones unless x64 is enabled.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))  # golden ratio, sqrt(3) - 1


def philox4x32(counter: tuple, key: tuple) -> tuple:
    """Ten rounds: four arrays of independent uniform 32-bit numbers. The words of the counter broadcast."""
    for _ in range(10):
        high0, low0 = _multiply(_MULTIPLIERS[0], counter[0])
        high1, low1 = _multiply(_MULTIPLIERS[1], counter[2])
        counter = (high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0)
        key = (key[0] + _KEY_STEPS[0], key[1] + _KEY_STEPS[1])
    return counter


def dropout_threshold(dropout_prob: float) -> int:
    """A 16-bit draw below it drops its element."""
    return min(int(65536 * dropout_prob + 0.5), 65535)


def dropout_scale(threshold: int) -> float:
    """What kept probabilities are multiplied by: exact for the threshold, not for dropout_prob."""
    return 65536 / (65536 - threshold)


@functools.partial(jax.jit, static_argnames="num_keys")  # ten rounds are many small steps outside a jit
def dropout_keep(seed: jax.Array, sequence, head, position, num_keys: int, threshold: int) -> jax.Array:
    """Which probabilities are kept, [batch, heads, rows, num_keys].

    `seed` is uint32[2]. `sequence`, `head` and `position` (of the query in its sequence) broadcast to
    [batch, heads, rows, 1]; keys are counted from the start of the sequence.
    """
    # Key j takes piece 2 * (j % 32 // 8) + j % 2 of draw 4 * (j // 32) + j % 8 // 2. With j = 32 a + 8 w + 2 q + s that
    # is half s of word w of draw 4 a + q: the draws come in the order of the keys once two axes are swapped.
    blocks = -(-num_keys // 32)
    group = jnp.arange(4 * blocks, dtype=jnp.uint32)[None, None, None, :]
    counter = (group, *(jnp.asarray(word).astype(jnp.uint32) for word in (position, head, sequence)))
    shape = jnp.broadcast_shapes(*(word.shape for word in counter))
    words = [jnp.broadcast_to(word, shape) for word in philox4x32(counter, (seed[0], seed[1]))]
    halves = jnp.stack([jnp.stack([word & 0xFFFF, word >> 16], axis=-1) for word in words], axis=-2)  # [..., g, w, s]
    by_key = jnp.swapaxes(halves.reshape(*shape[:3], blocks, 4, 4, 2), 4, 5)  # [..., a, q, w, s] to [..., a, w, q, s]
    return by_key.reshape(*shape[:3], 32 * blocks)[..., :num_keys] >= threshold


def _multiply(constant: int, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """High and low word of a 64-bit product, from products of 16-bit halves."""
    c_high, c_low = np.uint32(constant >> 16), np.uint32(constant & 0xFFFF)
    x_high, x_low = x >> 16, x & 0xFFFF
    middle0, middle1 = c_high * x_low, c_low * x_high
    carry = ((c_low * x_low) >> 16) + (middle0 & 0xFFFF) + (middle1 & 0xFFFF)
    high = c_high * x_high + (middle0 >> 16) + (middle1 >> 16) + (carry >> 16)
    return high, np.uint32(constant) * x
