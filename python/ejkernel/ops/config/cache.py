"""Configs in memory, and scopes that lay configs over everything else."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import threading
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from ejkernel import _settings
from ejkernel._declarations import OPERATIONS

_overlays: contextvars.ContextVar[tuple[Mapping[Hashable, Any], ...]] = contextvars.ContextVar(
    "ejkernel overlays of Python kernels", default=()
)


class ConfigCache(Mapping):
    """Configs by key; past `max_size` the one that was put first goes. Keys are `Invocation.key`, or whatever is
    hashable."""

    def __init__(self, configs: Mapping[Hashable, Any] | None = None, *, max_size: int = 4096):
        self._configs: dict[Hashable, Any] = dict(configs or {})
        self._max_size = max_size
        self._lock = threading.Lock()

    def put(self, key: Hashable, config: Any) -> None:
        with self._lock:
            self._configs[key] = config
            while len(self._configs) > self._max_size:
                del self._configs[next(iter(self._configs))]

    def get(self, key: Hashable, default: Any = None) -> Any:
        return self._configs.get(key, default)

    def clear(self) -> None:
        with self._lock:
            self._configs.clear()

    def __getitem__(self, key: Hashable) -> Any:
        return self._configs[key]

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._configs))

    def __len__(self) -> int:
        return len(self._configs)


@contextlib.contextmanager
def overlay_cache(configs: Mapping[Hashable, Any]) -> Iterator[None]:
    """Within the scope these configs go before every cache, the innermost scope's first; only a call's own `cfg` goes
    before them. A library operation's name as key lays a config over its calls. Read when a call is traced."""
    with contextlib.ExitStack() as scopes:
        for key, config in configs.items():
            if key in OPERATIONS:
                if hasattr(config, "sizes"):
                    raise TypeError(
                        f"overlay_cache: the config of {key} must be a mapping of its kernel's fields, got "
                        f"{type(config).__name__}, whose sizes are for each call; pass it as the call's cfg"
                    )
                scopes.enter_context(_settings.overlay(key, _fields(config)))
        token = _overlays.set((*_overlays.get(), configs))
        scopes.callback(_overlays.reset, token)
        yield


def _fields(config: Any) -> Mapping[str, int]:
    return dataclasses.asdict(config) if dataclasses.is_dataclass(config) else config


def overlaid(key: Hashable) -> Any:
    """The innermost scope's config for a key, or None."""
    for configs in reversed(_overlays.get()):
        if (config := configs.get(key)) is not None:
            return config
    return None
