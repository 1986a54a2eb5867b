"""Arrays over several devices, beside what one device makes of the whole: inside shard_map what is divided and what every
device has, with and without jit; arrays divided over a mesh that no shard_map divides the call by."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import ejkernel

DIVIDED, WHOLE = PartitionSpec("i"), PartitionSpec()
RNG = np.random.default_rng(0)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


def mesh_of(kind: AxisType) -> jax.sharding.Mesh:
    return jax.make_mesh((2,), ("i",), axis_types=(kind,))


def on(mesh: jax.sharding.Mesh, arrays: Any, spec: PartitionSpec) -> Any:
    return jax.device_put(jax.tree.map(np.asarray, arrays), NamedSharding(mesh, spec))


def close(got: Any, wanted: Any) -> None:
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-5, atol=1e-5), got, wanted
    )


def attention(divided: Any, whole: Any) -> jax.Array:
    query, key, value = divided
    return ejkernel.flash_attention(query, key, value, **whole).out


def experts(divided: Any, whole: Any) -> jax.Array:
    tokens, sizes = divided
    return ejkernel.grouped_matmul(tokens, whole["experts"], sizes.reshape(-1))


# What is divided, what every device has, and the call of one part; the parts' outputs stand behind each other.
CASES: dict[str, tuple[Callable[[Any, Any], jax.Array], Any, Any]] = {
    "sinks and bias": (
        attention,
        tuple(normal(2, 4, 2, 8) for _ in range(3)),
        {"softmax_aux": normal(2, 1), "bias": normal(1, 2, 4, 4)},
    ),
    "weights of experts": (
        experts,
        (normal(8, 4), jnp.array([[1, 3], [2, 2]], jnp.int32)),
        {"experts": normal(2, 4, 3)},
    ),
}


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_what_every_device_has_are_sums(name: str, kind: AxisType) -> None:
    call, divided, whole = CASES[name]
    mesh = mesh_of(kind)
    parts = [jax.tree.map(lambda x: np.split(np.asarray(x), 2)[n], divided) for n in range(2)]
    floats = (divided[0], whole)

    def loss_of_parts(first: jax.Array, whole: Any) -> jax.Array:
        firsts = jnp.split(first, 2)
        return sum((call((firsts[n], *parts[n][1:]), whole) ** 2).sum() for n in range(2))

    def loss_outside(first: jax.Array, whole: Any) -> jax.Array:
        sharded = jax.shard_map(call, mesh=mesh, in_specs=(DIVIDED, WHOLE), out_specs=DIVIDED)
        return (sharded((first, *on(mesh, divided[1:], DIVIDED)), whole) ** 2).sum()

    def gradient_inside(first: jax.Array, rest: Any, whole: Any) -> Any:
        return jax.grad(lambda f, w: (call((f, *rest), w) ** 2).sum(), (0, 1))(first, whole)

    wanted = jax.grad(loss_of_parts, (0, 1))(*floats)
    first, rest, every = on(mesh, divided[0], DIVIDED), on(mesh, divided[1:], DIVIDED), on(mesh, whole, WHOLE)
    close(jax.jit(jax.grad(loss_outside, (0, 1)))(first, every), wanted)
    specs = (DIVIDED, DIVIDED, WHOLE)
    inside = jax.shard_map(gradient_inside, mesh=mesh, in_specs=specs, out_specs=(DIVIDED, WHOLE))
    close(jax.jit(inside)(first, rest, every), wanted)


def test_shard_map_needs_no_jit() -> None:
    mesh = mesh_of(AxisType.Auto)
    query = normal(2, 4, 2, 8)

    def call(query: jax.Array) -> jax.Array:
        return ejkernel.flash_attention(query, query, query).out

    sharded = jax.shard_map(call, mesh=mesh, in_specs=DIVIDED, out_specs=DIVIDED)
    close(sharded(query), call(query))
    close(*(jax.grad(lambda q, f=f: (f(q) ** 2).sum())(query) for f in (sharded, call)))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("spec", [PartitionSpec("i"), PartitionSpec(None, "i")], ids=str)
def test_a_call_on_divided_arrays_runs_whole_on_each_device(kind: AxisType, spec: PartitionSpec) -> None:
    mesh = mesh_of(kind)
    query = normal(2, 4, 2, 8)
    slices = normal(2, 2, 4, 2, 8)

    def call(query: jax.Array) -> jax.Array:
        return ejkernel.flash_attention(query, query, query).out

    def with_status(query: jax.Array) -> jax.Array:  # one slice after the other
        return ejkernel.flash_attention(query, query, query, return_status=True)[0]

    def loss(query: jax.Array) -> jax.Array:
        return (call(query) ** 2).sum()

    with jax.set_mesh(mesh):
        close(jax.jit(call)(on(mesh, query, spec)), call(query))
        close(jax.jit(jax.grad(loss))(on(mesh, query, spec)), jax.grad(loss)(query))
        for function in (call, with_status):
            close(jax.jit(jax.vmap(function))(on(mesh, slices, spec)), jax.vmap(function)(slices))


def test_no_slices_are_no_results() -> None:
    def call(query: jax.Array) -> jax.Array:
        return ejkernel.flash_attention(query, query, query).out

    assert jax.vmap(call)(jnp.zeros((0, 3, 4, 2, 8))).shape == (0, 3, 4, 2, 8)


@pytest.mark.parametrize("is_set", [False, True], ids=["no mesh set", "mesh set"])
@pytest.mark.parametrize("with_status", [False, True], ids=["folded", "one slice after the other"])
def test_slices_of_an_axis_that_is_divided_stay_divided(with_status: bool, is_set: bool) -> None:
    mesh = mesh_of(AxisType.Explicit)
    slices, weights = normal(4, 1, 4, 2, 8), normal(8, 8)

    def loss(x: jax.Array, weights: jax.Array) -> jax.Array:
        query = jnp.einsum("bshd,de->bshe", x, weights)
        results = ejkernel.flash_attention(query, query, query, return_status=with_status)
        return (results[0] ** 2).sum()

    def loss_of_all(x: jax.Array, weights: jax.Array) -> jax.Array:
        return jax.vmap(loss, (0, None))(x, weights).sum()

    there, every = on(mesh, slices, DIVIDED), on(mesh, weights, WHOLE)
    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        for function in (
            jax.vmap(loss, (0, None)),
            jax.vmap(jax.grad(loss, (0, 1)), (0, None)),
            jax.grad(loss_of_all, (0, 1)),
        ):
            close(jax.jit(function)(there, every), function(slices, weights))
        attended = jax.jit(jax.vmap(lambda x: ejkernel.flash_attention(x, x, x).out))(there)
    assert attended.sharding.is_equivalent_to(NamedSharding(mesh, DIVIDED), attended.ndim)
