"""Calls of Python kernels that were made, to measure configs for them later: shapes and dtypes, never arrays."""

from __future__ import annotations

import dataclasses
import threading

from ejkernel.ops.core.kernel import Invocation, Kernel

_recorded: dict[object, Invocation] = {}
_lock = threading.Lock()


def record_invocation(kernel: Kernel, invocation: Invocation) -> None:
    """Once per kernel and key. With EJKERNEL_OPS_RECORD=1 executors record every call."""
    recorded = dataclasses.replace(
        invocation,
        kernel=kernel,
        args=invocation.abstract_args,
        kwargs=invocation.abstract_kwargs,
        override_cfg=None,
    )
    try:
        key: object = recorded.key
    except TypeError:  # nothing can be kept under it
        return
    with _lock:
        _recorded[key] = recorded


def get_invocations() -> list[Invocation]:
    """In the order in which they were first made."""
    with _lock:
        return list(_recorded.values())


def clear_invocations() -> None:
    with _lock:
        _recorded.clear()
