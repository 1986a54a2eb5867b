"""A call of a Python kernel: find its config, run it."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any, Protocol

from ejkernel.ops import registry
from ejkernel.ops.config.persistent import PersistentCache
from ejkernel.ops.config.selection import ConfigSelectorChain, Selection
from ejkernel.ops.core.gradient import function_of
from ejkernel.ops.core.kernel import Invocation, Kernel


class ConfigChooser(Protocol):
    """What an executor asks for configs: a ConfigSelectorChain, or anything with its `select`."""

    def select(self, invocation: Invocation) -> Selection: ...


def invocation_of(kernel: Kernel, args: tuple, kwargs: Mapping[str, Any], cfg: Any = None) -> Invocation:
    """The call as the kernel sees it: what its `prepare`, if it has one, makes of the arguments."""
    if (prepare := getattr(kernel, "prepare", None)) is not None:
        args, kwargs = prepare(*args, **kwargs)
    return Invocation(kernel=kernel, args=tuple(args), kwargs=dict(kwargs), override_cfg=cfg)


class Executor:
    def __init__(self, selector: ConfigChooser | None = None):
        self.selector = ConfigSelectorChain() if selector is None else selector

    def __call__(self, kernel: Kernel, *args: Any, cfg: Any = None, _cfg: Any = None, **kwargs: Any) -> Any:
        """The kernel's result; `cfg`, or `_cfg`, goes before every other source of a config and is never kept."""
        invocation = invocation_of(kernel, args, kwargs, cfg if _cfg is None else _cfg)
        config = self.select(invocation).config
        if os.environ.get("EJKERNEL_OPS_RECORD", "0") != "0":
            registry.record_invocation(kernel, invocation)
        return function_of(kernel, invocation.device_kind, config)(*invocation.args, **invocation.kwargs)

    def choose_config(self, kernel: Kernel, *args: Any, cfg: Any = None, **kwargs: Any) -> Any:
        """The config that a call like this one would get. Arguments may be ShapeDtypeStructs."""
        return self.select(invocation_of(kernel, args, kwargs, cfg)).config

    def select(self, invocation: Invocation) -> Selection:
        """A kernel that finds its own configs, as the library's do, has a `select`."""
        own = getattr(invocation.kernel, "select", None)
        return self.selector.select(invocation) if own is None else own(invocation)


@functools.cache
def default_executor() -> Executor:
    """What `kernel(...)` runs on: both caches, the policy of the environment."""
    return Executor(ConfigSelectorChain(persistent=PersistentCache()))
