"""Why the calls of a function get what they get, and tuning for all of them; nothing of the function itself is run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.core
import numpy as np

from ejkernel import _labels
from ejkernel._library import Device, Plan, Spec
from ejkernel._primitive import Call, choose, is_for_xla, output_specs, primitive, specs_of

_DEVICES = {"cpu": Device("cpu"), "gpu": Device("cuda"), "cuda": Device("cuda")}


def _calls_in(jaxpr: Any) -> Iterator[tuple[Call, tuple[Spec, ...]]]:
    """Every call with the shapes that it has where it stands: batched by vmap, local inside shard_map."""
    for eqn in jaxpr.eqns:
        if eqn.primitive is primitive:
            yield eqn.params["call"], specs_of([x.aval for x in eqn.invars])
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from _calls_in(inner)


def _counted_calls(f: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> dict[tuple[Call, tuple], int]:
    """The distinct calls that f makes, in order, with how often each stands in its trace."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    are_arrays = [hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, np.generic) for x in leaves]

    def of_arrays(arrays: list[Any]) -> Any:
        """f of these arrays and of everything else as it is given: numbers and switches may be parameters of a call."""
        rest = iter(arrays)
        of_all = [next(rest) if is_array else x for x, is_array in zip(leaves, are_arrays, strict=True)]
        given, named = jax.tree.unflatten(tree, of_all)
        return f(*given, **named)

    traced = jax.make_jaxpr(of_arrays)([x for x, is_array in zip(leaves, are_arrays, strict=True) if is_array])
    counts: dict[tuple[Call, tuple], int] = {}
    for call in _calls_in(traced.jaxpr):
        counts[call] = counts.get(call, 0) + 1
    return counts


def _choice(call: Call, specs: tuple[Spec, ...]) -> Plan | None:
    """On the default backend, as lowering chooses. XLA alone serves devices that the library has no kernels for."""
    device = _DEVICES.get(jax.default_backend())
    return None if device is None else choose(call, specs, device)


def _tensors(tensors: dict[str, Spec]) -> str:
    return ", ".join(f"{name} {spec.dtype}{list(spec.shape)}" for name, spec in tensors.items())


def _paragraph(call: Call, specs: tuple[Spec, ...], count: int) -> str:
    inputs = dict(zip(call.given, specs, strict=True))
    params = "".join(f", {name}={value}" for name, value in call.params)
    times = "" if count == 1 else f"  ({count} times)"
    lines = [f"{call.operation}({_tensors(inputs)}{params}) -> {_tensors(output_specs(call, specs))}{times}"]
    plan = _choice(call, specs)
    if plan is None:
        backend = jax.default_backend()
        why = "asked for" if is_for_xla(call.options) else f"on {backend} the library has at most a reference for it"
        return "\n".join([*lines, f"  kernel xla: jax.numpy, compiled by XLA; {why}"])
    info = plan.info
    config = "".join(f" {field}={value}" for field, value in info["config"].items())
    # The library gets a scope's overlay as a call's own config.
    scoped = info["tier"] == "override" and call.options.config is None
    lines += [f"  kernel {info['kernel']}{config}, from {'overlay' if scoped else info['tier']}"]
    lines += [f"    {line}" for line in info["text"].splitlines()]
    return "\n".join(lines)


def explain(f: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Which kernel and config each ejkernel call in `f(*args, **kwargs)` gets on the default backend, and why: a paragraph
    for each distinct call, those of gradients included where f takes any. Arguments may be jax.ShapeDtypeStruct.

    f is traced and not run. Its calls are chosen as compiling f would choose: where their policy is autotune, those that
    are not tuned yet are, and compiling f then finds them tuned."""
    calls = _counted_calls(f, args, kwargs)
    if not calls:
        return (
            "no calls of ejkernel on JAX arrays; NumPy arrays that the function brings itself are computed with at once"
        )
    return "\n\n".join(_paragraph(call, specs, count) for (call, specs), count in calls.items())


def tune(f: Callable[..., Any], *args: Any, seconds: float = 2.0, **kwargs: Any) -> list[dict[str, Any]]:
    """Tunes the ejkernel calls in `f(*args, **kwargs)` for the default backend, each problem for at most so many seconds,
    on made-up data. What came of each, in order: "operation", "label", "faster", "config", "heuristic", "ratio" …

    f is traced and not run. Who calls it afterwards gets what was found, in this process and in later ones; JAX's caches
    are cleared for that. Calls that name their config, and those that XLA serves, have nothing to tune."""
    plans = []
    for call, specs in _counted_calls(f, args, kwargs):
        named = call.options.config or call.options.overlay
        if named is None and (plan := _choice(_unmeasured(call), specs)) is not None:
            plans.append(plan)
    return [{"label": label} | report for label, report in _labels.tune_plans(plans, seconds).items()]


def _unmeasured(call: Call) -> Call:
    """The call without tuning while it is planned."""
    return dataclasses.replace(call, options=dataclasses.replace(call.options, policy="heuristics"))
