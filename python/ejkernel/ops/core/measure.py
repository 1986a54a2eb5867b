"""Which of several configs is the fastest, on this device, for these shapes.

Host time of calls that are waited for, candidates in turn within every round so that drift meets all of them,
medians. The kernel's own choice stays unless something beats it by more than noise; whatever computes something else
is out."""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ejkernel._notices import say_once
from ejkernel.ops.core.kernel import Invocation, heuristic_of, run_of
from ejkernel.ops.utils.serialize import is_array

_NOISE = 0.03  # a winner is at least this much faster than the kernel's own choice
_AGREEMENT = 0.02  # of the largest magnitude: rounding in any order stays below, even in bfloat16


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A candidate's median in milliseconds, or why it has none."""

    config: Any
    milliseconds: float | None
    error: str | None = None


def benchmark(
    function: Callable[..., Any], *args: Any, num_iters: int = 20, num_warmup: int = 3, **kwargs: Any
) -> float:
    """The median of a call, in milliseconds, until its results are there."""
    for _ in range(num_warmup):
        jax.block_until_ready(function(*args, **kwargs))
    return statistics.median(_milliseconds(function, *args, **kwargs) for _ in range(max(num_iters, 1)))


def _milliseconds(function: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(function(*args, **kwargs))
    return (time.perf_counter() - begin) * 1e3


def _concrete(value: Any, random: np.random.Generator) -> Any:
    """An array as it is; for a tracer or a shape something to measure with: normal numbers, zeros for integers,
    true."""
    if not is_array(value) or isinstance(value, np.ndarray):
        return value
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer):
        return value
    if jnp.issubdtype(value.dtype, jnp.inexact):
        return jnp.asarray(random.standard_normal(value.shape, dtype=np.float32)).astype(value.dtype)
    if jnp.issubdtype(value.dtype, jnp.bool_):
        return jnp.ones(value.shape, value.dtype)
    return jnp.zeros(value.shape, value.dtype)


def _agree(out: Any, expected: Any) -> bool:
    """Whether two results are the same but for rounding."""
    if jax.tree.structure(out) != jax.tree.structure(expected):
        return False
    for a, b in zip(jax.tree.leaves(out), jax.tree.leaves(expected), strict=True):
        if jnp.shape(a) != jnp.shape(b):
            return False
        wide = [np.asarray(jnp.asarray(x).astype(jnp.float32)) for x in (a, b)]
        finite = np.isfinite(wide[1])
        largest = np.max(np.abs(wide[1]), where=finite, initial=0.0)
        if not np.allclose(*wide, rtol=0, atol=_AGREEMENT * largest, equal_nan=True):
            return False
    return True


class Tuner:
    def __init__(self, warmup: int = 2, iters: int = 10):
        self.warmup = warmup
        self.iters = iters

    def best(self, invocation: Invocation, candidates: Sequence[Any]) -> Any:
        """The fastest config; None where none of them runs. The kernel's own choice is always among them."""
        own = heuristic_of(invocation)
        candidates = ([] if own is None else [own]) + [c for c in candidates if c != own]
        done = [m for m in self.measure(invocation, candidates) if m.milliseconds is not None]
        if not done:
            return None
        fastest = min(done, key=lambda m: m.milliseconds)
        if done[0].config == own and fastest.milliseconds > (1 - _NOISE) * done[0].milliseconds:
            return own
        return fastest.config

    def measure(self, invocation: Invocation, candidates: Sequence[Any]) -> list[Measurement]:
        """Every candidate's time, in the order given. Under a trace nothing of it gets into the program."""
        with jax.ensure_compile_time_eval():
            leaves, tree = jax.tree.flatten((tuple(invocation.args), dict(invocation.kwargs)))
            random = np.random.default_rng(0)
            leaves = [_concrete(leaf, random) for leaf in leaves]
            places = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
            arrays = [leaves[i] for i in places]

            def compiled(config: Any) -> Callable[..., Any]:
                run = run_of(invocation.kernel, invocation.device_kind, config)

                def call(*values: Any) -> Any:
                    filled = list(leaves)
                    for place, value in zip(places, values, strict=True):
                        filled[place] = value
                    args, kwargs = jax.tree.unflatten(tree, filled)
                    return run(*args, cfg=config, **kwargs)

                return jax.jit(call)

            errors: dict[int, str] = {}
            running: dict[int, Callable[..., Any]] = {}
            expected = None
            for i, config in enumerate(candidates):
                try:
                    function = compiled(config)
                    out = function(*arrays)
                    expected = out if expected is None else expected
                    if not _agree(out, expected):
                        raise ValueError("its result differs from that of the first candidate that runs")
                    for _ in range(self.warmup):
                        jax.block_until_ready(function(*arrays))
                    running[i] = function
                except Exception as error:  # whatever a candidate does is its own affair
                    errors[i] = f"{type(error).__name__}: {error}"
            times: dict[int, list[float]] = {i: [] for i in running}
            for _ in range(max(self.iters, 1)):
                for i, function in running.items():
                    times[i].append(_milliseconds(function, *arrays))
        found = [
            Measurement(config, statistics.median(times[i]) if i in times else None, errors.get(i))
            for i, config in enumerate(candidates)
        ]
        _report(invocation, found)
        return found


def _report(invocation: Invocation, found: Sequence[Measurement]) -> None:
    if os.environ.get("EJKERNEL_LOG_AUTOTUNE") == "1":
        for m in found:
            took = m.error if m.milliseconds is None else f"{m.milliseconds:.4f} ms"
            print(f"ejkernel: {invocation.kernel.op_id} {m.config}: {took}", file=sys.stderr)
    if found and all(m.milliseconds is None for m in found):
        say_once(f"{invocation.kernel.op_id}: no candidate runs, the first one: {found[0].error}")
