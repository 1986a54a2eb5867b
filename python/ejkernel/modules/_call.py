"""From a call under the old names to one of the library's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from ejkernel._declarations import OPERATIONS
from ejkernel._functions import FUNCTIONS, make_call
from ejkernel._library import Device, InvalidArgument
from ejkernel._notices import say_once
from ejkernel._primitive import specs_of
from ejkernel.kernels._platforms import library_backend, library_platform
from ejkernel.kernels._registry import result_of
from ejkernel.modules.configs import BaseOperationConfig


def call(operation: str, arguments: Mapping[str, Any], platform: Any, cfg: Any, _cfg: Any) -> Any:
    """The operation's result, as the Python library returned it. Arguments that are None are absent."""
    if cfg is not None and _cfg is not None:
        raise TypeError(f"{operation}: cfg and _cfg are one argument, and both were given")
    given = {name: value for name, value in arguments.items() if value is not None}
    given |= _options(operation, given, platform, cfg if _cfg is None else _cfg)
    return result_of(operation, FUNCTIONS[operation](**given))


def _options(operation: str, given: Mapping[str, Any], platform: Any, cfg: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"platform": library_platform(platform)}
    if isinstance(cfg, Mapping):
        options["config"] = cfg
    elif isinstance(cfg, BaseOperationConfig):
        options["platform"] = options["platform"] or library_platform(cfg.platform)
        options["backend"] = library_backend(cfg.backend)
        config = _config(operation, {**given, **options}, cfg)
        if config:
            options["config"] = config
    elif cfg is not None:
        raise TypeError(f"{operation}: cfg must be a config of ejkernel.modules or a mapping of fields, got {cfg!r}")
    return {name: value for name, value in options.items() if value is not None}


def _config(operation: str, given: Mapping[str, Any], cfg: BaseOperationConfig) -> dict[str, int]:
    """The sizes as fields of the kernel that the call gets. They were found for other kernels, so they are wishes: a kernel
    gets the largest legal value that is not above one, and none of them where it cannot have them together."""
    for name in cfg.unused():
        say_once(f"{operation}: no kernel has what {type(cfg).__name__}.{name} sets; it is not used")
    sizes = cfg.sizes()
    if not sizes or given.get("platform") == "xla":
        return {}
    bound, arrays = make_call(OPERATIONS[operation], given)
    device = Device("cuda" if jax.default_backend() == "gpu" else "cpu")
    kernel = bound.plan(specs_of([jax.typeof(x) for x in arrays]), device).info["kernel"]
    legal = {
        field["name"]: field["legal"]
        for known in OPERATIONS[operation].kernels
        if known["name"] == kernel
        for field in known["config"]
    }
    config = {}
    for name, value in sizes.items():
        if name == "block_q" and "consumers" in legal:  # each has 64 rows of queries
            name, value = "consumers", value // 64
        if name not in legal:
            say_once(
                f"{operation}: kernel {kernel} has no field for the {name} of {type(cfg).__name__}; it is not used"
            )
            continue
        config[name] = max((v for v in legal[name] if v <= value), default=min(legal[name]))
    try:
        make_call(OPERATIONS[operation], {**given, "config": config})[0].plan(
            specs_of([jax.typeof(x) for x in arrays]), device
        )
    except InvalidArgument as error:
        say_once(
            f"{operation}: kernel {kernel} cannot have the sizes of {type(cfg).__name__}, and has its own: {error}"
        )
        return {}
    return config
