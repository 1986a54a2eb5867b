"""The grid (T-08): every operation and form under every transformation of JAX, against the same call without it, and
gradients against automatic differentiation of the platform xla's plain jax.numpy formula. docs/jax_transformations.md is
this grid."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable, Mapping

import numpy as np
import pytest

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from cases import CASES, Case  # noqa: E402
from jax.sharding import Mesh, PartitionSpec  # noqa: E402

from ejkernel import _primitive, _xla  # noqa: E402
from ejkernel._declarations import OPERATIONS  # noqa: E402
from ejkernel._functions import make_call  # noqa: E402

Arrays = Mapping[str, jax.Array]


def assert_close(got: object, expected: object) -> None:
    """Two float32 evaluations of one formula."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), got, expected)


def assert_equal(got: object, expected: object) -> None:
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def split(case: Case) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Floating inputs, and the others."""
    floats = {name: case.arrays[name] for name in case.floats}
    return floats, {name: x for name, x in case.arrays.items() if name not in floats}


def gradient(case: Case, arrays: Arrays) -> dict[str, jax.Array]:
    floats, others = split(Case(case.name, case.operation, arrays, case.floats, case.params))
    return jax.grad(lambda floats: case.loss(floats | others))(floats)


def packed_means(x: jax.Array, offsets: jax.Array, chunk_size: int | None) -> jax.Array:
    """One sequence and one chunk after the other; the platform xla's has a loop that JAX does not differentiate."""
    means, total = [], x.shape[0]
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        step = chunk_size or max(end - begin, 1)
        starts = list(range(begin, end, step)) or ([] if chunk_size else [begin])
        means += [x[at : min(at + step, end)].sum(0) / max(min(step, end - at), 1) for at in starts]
    if chunk_size:
        means += [jnp.zeros_like(x[0])] * (-(-total // chunk_size) + len(offsets) - 1 - len(means))
    return jnp.stack(means)


def formula(case: Case, arrays: Arrays) -> list[jax.Array]:
    """The floating outputs by the plain jax.numpy formula, which JAX differentiates by itself."""
    if case.operation == "mean_pooling" and "cu_seqlens" in arrays:
        return [packed_means(arrays["x"], arrays["cu_seqlens"], case.params.get("chunk_size"))]
    op = OPERATIONS[case.operation]
    call, present = make_call(op, {**arrays, **case.params})
    inputs = dict.fromkeys(op.input_names) | dict(zip(call.given, present))
    params = {param.name: param.default for param in op.params} | dict(call.params)
    results = _xla.implementation(op.name)(inputs, params)
    named = [results[name] for name in _primitive.output_names(call, present)]
    return [x for x in named if jnp.issubdtype(x.dtype, jnp.floating)]


# ---- the columns ----


def check_jit(case: Case) -> None:
    assert_equal(jax.jit(case.run)(case.arrays), case.run(case.arrays))
    assert_close(case.run(case.arrays), formula(case, case.arrays))


def check_grad(case: Case) -> None:
    floats, others = split(case)

    def loss(floats: Arrays) -> jax.Array:
        outputs = formula(case, floats | others)
        return sum(jnp.sum(x * jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)) for x in outputs)

    assert_close(gradient(case, case.arrays), jax.grad(loss)(floats))
    assert_equal(jax.jit(functools.partial(gradient, case))(case.arrays), gradient(case, case.arrays))


def check_vjp(case: Case) -> None:
    """Each output alone: the others' cotangents are symbolically zero."""
    floats, others = split(case)
    outputs, pullback = jax.vjp(lambda floats: case.run(floats | others), floats)
    expected, formula_pullback = jax.vjp(lambda floats: formula(case, floats | others), floats)
    for n in range(len(outputs)):
        ones = [jnp.ones_like(x) if i == n else jnp.zeros_like(x) for i, x in enumerate(outputs)]
        assert_close(pullback(ones), formula_pullback(ones))
        alone = jax.grad(lambda floats: case.run(floats | others)[n].sum())(floats)
        assert_close(alone, pullback(ones)[0])


def slices(x: jax.Array, axis: int) -> jax.Array:
    """Three different ones along a new axis."""
    scales = (1.0, 0.5, -2.0) if jnp.issubdtype(x.dtype, jnp.floating) else (1, 1, 1)
    return jnp.stack([(x * s).astype(x.dtype) for s in scales], axis)


def check_mapped(case: Case, function: Callable[[Arrays], object], in_axes: Mapping[str, int | None]) -> None:
    mapped = {name: x if in_axes[name] is None else slices(x, in_axes[name]) for name, x in case.arrays.items()}
    got = jax.jit(jax.vmap(function, in_axes=(dict(in_axes),)))(mapped)
    for n in range(3):
        one = {name: x if in_axes[name] is None else jnp.take(x, n, in_axes[name]) for name, x in mapped.items()}
        assert_close(jax.tree.map(lambda x: x[n], got), function(one))


def check_vmap_every_axis(case: Case) -> None:
    """All inputs at their axis 0, 1, …; then each input alone at its last one."""
    for axis in range(max(x.ndim for x in case.arrays.values()) + 1):
        check_mapped(case, case.run, {name: min(axis, x.ndim) for name, x in case.arrays.items()})
    for alone in case.arrays:
        check_mapped(case, case.run, {name: x.ndim if name == alone else None for name, x in case.arrays.items()})


def check_vmap_of_vmap(case: Case) -> None:
    twice = {name: slices(slices(x, 0), 0) for name, x in case.arrays.items()}
    got = jax.vmap(jax.vmap(case.run))(twice)
    one = case.run({name: x[2, 1] for name, x in twice.items()})
    assert_close([x[2, 1] for x in got], one)


def check_vmap_of_grad(case: Case) -> None:
    """Everything mapped, and the first input alone: then the others' gradients are mapped all the same."""
    check_mapped(case, functools.partial(gradient, case), dict.fromkeys(case.arrays, 0))
    first = case.floats[0]
    check_mapped(case, functools.partial(gradient, case), {n: 0 if n == first else None for n in case.arrays})


def check_grad_of_vmap(case: Case) -> None:
    floats, others = split(case)
    mapped = {name: slices(x, 0) for name, x in floats.items()}
    total = jax.grad(lambda mapped: jax.vmap(lambda one: case.loss(one | others))(mapped).sum())(mapped)
    each = [gradient(case, {name: x[n] for name, x in mapped.items()} | others) for n in range(3)]
    assert_close(total, jax.tree.map(lambda *gradients: jnp.stack(gradients), *each))


def check_scan(case: Case) -> None:
    """The loss and its gradient at three points, in one loop."""
    floats, others = split(case)
    mapped = {name: slices(x, 0) for name, x in floats.items()}

    def step(carry: jax.Array, one: Arrays) -> tuple[jax.Array, Arrays]:
        value, gradients = jax.value_and_grad(lambda floats: case.loss(floats | others))(one)
        return carry + value, gradients

    total, gradients = jax.jit(lambda mapped: jax.lax.scan(step, 0.0, mapped))(mapped)
    points = [{name: x[n] for name, x in mapped.items()} | others for n in range(3)]
    assert_close(total, sum(case.loss(point) for point in points))
    assert_close(jax.tree.map(lambda x: x[1], gradients), gradient(case, points[1]))


def check_remat(case: Case) -> None:
    """With and without what the gradient needs being saved; the number of forward calls says which."""
    floats, others = split(case)
    names = [f"ejkernel.{case.operation}.{output}" for output in OPERATIONS[case.operation].output_names]
    forwards = {}
    for kind, policy in (
        ("nothing", jax.checkpoint_policies.nothing_saveable),
        ("names", jax.checkpoint_policies.save_only_these_names(*names)),
    ):

        def loss(floats: Arrays) -> jax.Array:
            return jax.checkpoint(lambda floats: case.loss(floats | others), policy=policy)(floats)

        # Of value and gradient: for a gradient alone the first forward run is not needed.
        lowered = jax.jit(jax.value_and_grad(loss)).lower(floats)
        assert_close(lowered.compile()(floats)[1], gradient(case, case.arrays))
        program = lowered.as_text()
        forwards[kind] = program.count(f"operation\\22:\\22{case.operation}\\22")
    assert forwards["names"] <= forwards["nothing"]
    if any(field.name in ("out", "lse") for field in OPERATIONS[OPERATIONS[case.operation].gradient].inputs):
        assert forwards == {"nothing": 2, "names": 1}


def check_donation(case: Case) -> None:
    expected = case.run(case.arrays)
    donated = jax.tree.map(jnp.copy, dict(case.arrays))
    # What fits no output is not donated, and JAX says so.
    with pytest.warns(UserWarning) if case.operation == "mean_pooling" else _nothing():
        got = jax.jit(case.run, donate_argnums=0)(donated)
    assert_equal(got, expected)


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def check_export(case: Case) -> None:
    """To bytes and back, gradient included."""
    allowed = [jax.export.DisabledSafetyCheck.custom_call("ejkernel_cpu")]
    floats, others = split(case)
    function = jax.jit(jax.value_and_grad(lambda floats: case.loss(floats | others)))
    exported = jax.export.export(function, disabled_checks=allowed)(floats)
    back = jax.export.deserialize(exported.serialize())
    assert_equal(back.call(floats), function(floats))


def check_shard_map(case: Case) -> None:
    """Over 1, 2, 4 and 8 devices, each with a call of its own; the gradient through it as well."""
    floats, others = split(case)
    mapped = {name: jnp.concatenate([slices(x, 0)] * 3)[:8] for name, x in floats.items()}
    expected = [case.loss({name: x[n] for name, x in mapped.items()} | others) for n in range(8)]
    single = gradient(case, {name: x[5] for name, x in mapped.items()} | others)
    for devices in (1, 2, 4, 8):
        mesh = Mesh(np.array(jax.devices()[:devices]), ("i",))

        def each(mapped: Arrays) -> jax.Array:
            return jax.vmap(lambda one: case.loss(one | others))(mapped)

        sharded = jax.shard_map(each, mesh=mesh, in_specs=PartitionSpec("i"), out_specs=PartitionSpec("i"))
        assert_close(jax.jit(sharded)(mapped), jnp.stack(expected))
        gradients = jax.jit(jax.grad(lambda mapped: sharded(mapped).sum()))(mapped)
        assert_close({name: x[5] for name, x in gradients.items()}, single)


COLUMNS = {
    "jit": check_jit,
    "grad": check_grad,
    "vjp of each output": check_vjp,
    "vmap, every axis": check_vmap_every_axis,
    "vmap of vmap": check_vmap_of_vmap,
    "vmap of grad": check_vmap_of_grad,
    "grad of vmap": check_grad_of_vmap,
    "scan": check_scan,
    "remat": check_remat,
    "donation": check_donation,
    "export, reload": check_export,
    "shard_map, 1 to 8": check_shard_map,
}


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_grid(case: Case, column: str) -> None:
    COLUMNS[column](case)


def test_every_operation_that_has_a_gradient_is_in_the_grid() -> None:
    differentiable = {op.name for op in OPERATIONS.values() if op.gradient is not None}
    assert {case.operation for case in CASES} == differentiable


# ---- the page ----

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "jax_transformations.md"


def page() -> str:
    lines = [
        "# Operations under JAX's transformations",
        "",
        "Each cell is a test (`./dev pytest tests/python/test_transformations.py`), in the oldest and the newest JAX that is "
        "supported.",
        "",
        "| | " + " | ".join(COLUMNS) + " |",
        "|---|" + "---|" * len(COLUMNS),
    ]
    lines += [f"| {case.name} | " + " | ".join("yes" for _ in COLUMNS) + " |" for case in CASES]
    lines += [
        "",
        "Where entries of the batch are calls of their own, `vmap` makes its slices entries of one larger call; otherwise "
        "(dropout, packed forms, gradients of what entries share) slices run one after another, by one plan.",
        "",
        "Not there:",
        "",
        "- **Forward mode** (`jvp`, `jacfwd`, `hessian`): JAX refuses it for every operation; a second derivative likewise.",
        "- **Automatic partitioning**: a jitted call on arrays that are sharded over several devices runs whole on each of "
        "them. Wrap it in `jax.shard_map`, as the grid does.",
        "",
    ]
    return "\n".join(lines)


def test_the_page_is_this_grid() -> None:
    assert PAGE.read_text() == page(), "stale: python tests/python/test_transformations.py writes it"


if __name__ == "__main__":
    PAGE.write_text(page())
