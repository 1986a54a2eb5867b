"""A two-layer transformer learns with our attention what it learns with plain jax.numpy's, step by step."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import ejkernel

LAYERS, HEADS, DIM, LENGTH, BATCH, VOCABULARY, STEPS = 2, 4, 32, 24, 8, 17, 200

Attention = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def ours(q: jax.Array, k: jax.Array, v: jax.Array, order: jax.Array) -> jax.Array:
    return ejkernel.flash_attention(q, k, v, causal=True).out


def plain(q: jax.Array, k: jax.Array, v: jax.Array, order: jax.Array) -> jax.Array:
    """The formula, which adds the keys up in that order: only rounding tells one from another."""
    k, v = k[:, order], v[:, order]
    visible = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool))[:, order]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(visible, scores, -jnp.inf)), v)


def initial() -> dict:
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[0]))

    layer = lambda: {
        "qkv": weight(DIM, 3 * DIM),
        "out": weight(DIM, DIM),
        "up": weight(DIM, 64),
        "down": weight(64, DIM),
    }
    return {
        "tokens": weight(VOCABULARY, DIM),
        "positions": weight(LENGTH, DIM),
        "layers": [layer() for _ in range(LAYERS)],
        "head": weight(DIM, VOCABULARY),
    }


def normalised(x: jax.Array) -> jax.Array:
    return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def logits(model: dict, tokens: jax.Array, attention: Callable[..., jax.Array]) -> jax.Array:
    x = model["tokens"][tokens] + model["positions"]
    for layer in model["layers"]:
        q, k, v = jnp.split(normalised(x) @ layer["qkv"], 3, -1)
        heads = lambda y: y.reshape(*y.shape[:2], HEADS, DIM // HEADS)
        x = x + attention(heads(q), heads(k), heads(v)).reshape(x.shape) @ layer["out"]
        x = x + jax.nn.gelu(normalised(x) @ layer["up"]) @ layer["down"]
    return normalised(x) @ model["head"]


def losses(attention: Attention, *orders: np.ndarray) -> list[np.ndarray]:
    """Of each step, for each order of the keys: the task is to say what stood two tokens before."""

    def loss(model: dict, tokens: jax.Array, order: jax.Array) -> jax.Array:
        log_p = jax.nn.log_softmax(logits(model, tokens, functools.partial(attention, order=order))[:, 2:])
        return -jnp.take_along_axis(log_p, tokens[:, :-2, None], -1).mean()

    @jax.jit
    def train(model: dict, tokens: jax.Array, order: jax.Array) -> jax.Array:
        def step(model: dict, tokens: jax.Array) -> tuple[dict, jax.Array]:
            value, gradient = jax.value_and_grad(loss)(model, tokens, order)
            return jax.tree.map(lambda w, g: w - 0.3 * g, model, gradient), value

        return jax.lax.scan(step, model, tokens)[1]

    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (STEPS, BATCH, LENGTH), np.int32)
    return [np.asarray(train(initial(), tokens, order)) for order in orders]


def test_it_learns_as_the_plain_formula_does() -> None:
    order = np.arange(LENGTH)
    expected, other = losses(plain, order, np.random.default_rng(2).permutation(LENGTH))
    rounding = np.abs(other - expected)
    (got,) = losses(ours, order)
    # Rounding errors grow with the steps; another order of the same sums says how much.
    allowed = 4 * np.maximum.accumulate(rounding) + 1e-6
    assert np.all(np.abs(got - expected) <= allowed), (np.abs(got - expected) / allowed).max()
    assert expected[-1] < 0.75 * expected[0], "it learns something"
