"""Measuring configs when a program says so, not when a call needs one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ejkernel._library import NoConfig
from ejkernel.ops.config.cache import ConfigCache
from ejkernel.ops.core.kernel import Invocation, Kernel, candidates_of
from ejkernel.ops.core.measure import Measurement, Tuner, benchmark
from ejkernel.ops.execution.executor import Executor, default_executor, invocation_of
from ejkernel.ops.registry import get_invocations

__all__ = ["Measurement", "Tuner", "autotune", "autotune_recorded", "benchmark"]


def autotune(
    kernel: Kernel,
    *args: Any,
    configs: Sequence[Any] | None = None,
    num_warmup: int = 2,
    num_iters: int = 10,
    **kwargs: Any,
) -> Any:
    """The fastest of the configs, or of the kernel's candidates, for these arguments. Keeps nothing."""
    invocation = invocation_of(kernel, args, kwargs)
    candidates = candidates_of(invocation) if configs is None else list(configs)
    best = Tuner(num_warmup, num_iters).best(invocation, candidates)
    if best is None:
        raise NoConfig(f"{kernel.op_id}: none of {len(candidates)} configs runs; EJKERNEL_LOG_AUTOTUNE=1 shows why")
    return best


def autotune_recorded(
    invocations: Iterable[Invocation] | None = None, *, executor: Executor | None = None
) -> ConfigCache:
    """Finds a config for each of these invocations, or of all recorded ones, where there is a choice, and puts it
    into the executor's caches. What was found is returned, and can be an overlay. Kernels that choose for themselves have
    one candidate, and so nothing is found for them: the library's are, whose calls `ejkernel.tune` tunes."""
    selector = (executor or default_executor()).selector
    found = ConfigCache()
    for invocation in get_invocations() if invocations is None else invocations:
        if (config := selector.measure(invocation)) is not None:
            found.put(invocation.key, config)
    return found
