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
    try:
        number = None if isinstance(value, (bool, str, bytes)) or getattr(value, "ndim", 0) else int(value)
    except (ValueError, OverflowError):  # NaN, infinity
        number = None
    except TypeError:
        if hasattr(value, "dtype"):  # traced: JAX says where
            raise
        number = None
    if number is None or number != value:
        raise InvalidArgument(f"{operation}: {name} must be an integer, got {value!r}")
    if not -(2**63) <= number < 2**63:
        raise InvalidArgument(f"{operation}: {name} must be an integer of 64 bits, got {value!r}")
    return number


def real(operation: str, name: str, value: Any) -> float:
    """A number."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        if hasattr(value, "dtype"):  # traced: JAX says where
            raise
        raise InvalidArgument(f"{operation}: {name} must be a number, got {value!r}") from error


def text(operation: str, name: str, value: Any) -> str | None:
    """A name, or None."""
    if value is not None and not isinstance(value, str):
        raise InvalidArgument(f"{operation}: {name} must be a name, got {value!r}")
    return value


def config_fields(operation: str, config: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """A config as Options has it."""
    if not isinstance(config, Mapping):
        raise InvalidArgument(f"{operation}: a config must be a mapping of fields to integers, got {config!r}")
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


def _platform_of_environment() -> str | None:
    """As if the call had named it. The library reads the variable too, and checks its value, but does not know of XLA."""
    named = os.environ.get("EJKERNEL_PLATFORM", "")
    return None if named in ("", "auto") else named


def apply(operation: str, options: Options) -> Options:
    """The options with what the scopes and the environment say where they say nothing. The platform xla has no configs."""
    if options.policy is None:
        options = dataclasses.replace(options, policy=_policy.get())
    if options.platform is None and options.kernel is None:
        options = dataclasses.replace(options, platform=_platform_of_environment())
    if options.config is None and "xla" not in (options.platform, options.kernel):
        for name, config in reversed(_overlays.get()):
            if name == operation:
                return dataclasses.replace(options, overlay=config)
    return options
