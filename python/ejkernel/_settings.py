"""What a scope says about choices: overlays and policies, in context variables, read when a call is traced. And what the
environment says about names in programs."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ejkernel._library import InvalidArgument, Options

_overlays: contextvars.ContextVar[tuple[tuple[str, tuple[tuple[str, int], ...]], ...]] = contextvars.ContextVar(
    "ejkernel overlays", default=()
)
_policy: contextvars.ContextVar[str | None] = contextvars.ContextVar("ejkernel policy", default=None)

POLICIES = ("autotune", "heuristics", "cached")


def integer(operation: str, name: str, value: Any) -> int:
    """A whole number of 64 bits."""
    if isinstance(value, (bool, str)) or int(value) != value:
        raise InvalidArgument(f"{operation}: {name} must be an integer, got {value!r}")
    if not -(2**63) <= value < 2**63:
        raise InvalidArgument(f"{operation}: {name} must be an integer of 64 bits, got {value!r}")
    return int(value)


def config_fields(operation: str, config: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """A config as Options has it."""
    return tuple(sorted((str(k), integer(operation, f"config field '{k}'", v)) for k, v in dict(config).items()))


@contextlib.contextmanager
def overlay(operation: str, config: Mapping[str, int]) -> Iterator[None]:
    """Within the scope calls of the operation that name no config take this one; the innermost scope wins."""
    token = _overlays.set((*_overlays.get(), (operation, config_fields(operation, config))))
    try:
        yield
    finally:
        _overlays.reset(token)


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    """Within the scope calls that name no policy have this one: autotune, heuristics or cached."""
    if name not in POLICIES:
        raise ValueError(f"ejkernel: a policy is one of {', '.join(POLICIES)}, not '{name}'")
    token = _policy.set(name)
    try:
        yield
    finally:
        _policy.reset(token)


def stamps_programs() -> bool:
    """Whether a lowered program names what it calls. EJKERNEL_OPS_STAMP is the library's, which checks its value."""
    return os.environ.get("EJKERNEL_OPS_STAMP") != "none"


def apply(operation: str, options: Options) -> Options:
    """The options with what the scopes say where they say nothing. The platform xla has no configs."""
    if options.policy is None:
        options = dataclasses.replace(options, policy=_policy.get())
    if options.config is None and "xla" not in (options.platform, options.kernel):
        for name, config in reversed(_overlays.get()):
            if name == operation:
                return dataclasses.replace(options, overlay=config)
    return options
