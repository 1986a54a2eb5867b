"""From a call under the old names to one of the library's."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax

from ejkernel import _interop
from ejkernel._declarations import OPERATIONS
from ejkernel._functions import FUNCTIONS, make_call
from ejkernel._library import Device, InvalidArgument, Spec
from ejkernel._notices import say_once
from ejkernel._primitive import Call, specs_of
from ejkernel.kernels._platforms import library_backend, library_platform
from ejkernel.kernels._registry import result_of
from ejkernel.modules.configs import BaseOperationConfig


def call(operation: str, arguments: Mapping[str, Any], platform: Any, cfg: Any, _cfg: Any) -> Any:
    """The operation's result, as the Python library returned it. Arguments that are None are absent."""
    if cfg is not None and _cfg is not None:
        raise TypeError(f"{operation}: cfg and _cfg are one argument, and both were given")
    given = {name: value for name, value in arguments.items() if value is not None}
    given |= _options(operation, given, platform, cfg if _cfg is None else _cfg)
    return result_of(operation, FUNCTIONS[operation](**given), bool(given.get("return_status")))


def _options(operation: str, given: Mapping[str, Any], platform: Any, cfg: Any) -> dict[str, Any]:
    if cfg is not None and given.get("config") is not None:
        raise TypeError(f"{operation}: cfg and config are one argument, and both were given")
    options: dict[str, Any] = {"platform": library_platform(platform)}
    if isinstance(cfg, Mapping):
        options["config"] = cfg
    elif isinstance(cfg, BaseOperationConfig):
        options["platform"] = options["platform"] or library_platform(cfg.platform)
        options["backend"] = given.get("backend") or library_backend(cfg.backend)
        config = _config(operation, {**given, **options}, cfg)
        if config:
            options["config"] = config
    elif cfg is not None:
        raise TypeError(f"{operation}: cfg must be a config of ejkernel.modules or a mapping of fields, got {cfg!r}")
    return {name: value for name, value in options.items() if value is not None}


def _config(operation: str, given: Mapping[str, Any], cfg: BaseOperationConfig) -> dict[str, int]:
    """The sizes as fields of the kernel that the call gets."""
    for name in cfg.unused():
        say_once(f"{operation}: no kernel has what {type(cfg).__name__}.{name} sets; it is not used")
    sizes = cfg.sizes()
    if not sizes or given.get("platform") == "xla":
        return {}
    # Which kernel it is needs no measuring.
    bound, arrays = make_call(OPERATIONS[operation], {**given, "policy": "heuristics"})
    arrays = [x if hasattr(x, "dtype") else _interop.as_jax(x) for x in arrays]  # plain numbers and lists
    device = Device("cuda" if jax.default_backend() == "gpu" else "cpu")
    return dict(_fields(bound, specs_of([jax.typeof(x) for x in arrays]), device, tuple(sizes.items())))


@functools.lru_cache(maxsize=1024)
def _fields(
    bound: Call, specs: tuple[Spec, ...], device: Device, sizes: tuple[tuple[str, int], ...]
) -> Mapping[str, int]:
    """The sizes were found for other kernels, so they are wishes: a kernel gets the largest legal value that is not
    above one, and none of them where it cannot have them together."""
    info = bound.plan(specs, device).info
    kernel = info["kernel"]
    fields = next(known["config"] for known in OPERATIONS[bound.operation].kernels if known["name"] == kernel)
    legal = {field["name"]: field["legal"] for field in fields}
    config = {}
    for name, value in sizes:
        name, value = _field_of(name, value, legal, info["dims"])
        if name not in legal:
            say_once(f"{bound.operation}: kernel {kernel} has no field for {name}, which a config sets; it is not used")
            continue
        config[name] = max((v for v in legal[name] if v <= value), default=min(legal[name]))
    try:
        bound.plan(specs, device, dataclasses.replace(bound.options, config=tuple(sorted(config.items())) or None))
    except InvalidArgument as error:
        say_once(f"{bound.operation}: kernel {kernel} cannot have the sizes of a config, and has its own: {error}")
        return {}
    return config


def _field_of(name: str, value: int, legal: Mapping[str, Any], dims: Mapping[str, int]) -> tuple[str, int]:
    """A size as the field that a kernel has for it."""
    if name == "block_q" and "consumers" in legal:  # each has 64 rows of queries
        return "consumers", value // 64
    if name == "num_splits" and "split_keys" in legal:
        slots = dims["kv_len"] if "kv_len" in dims else dims["max_num_pages"] * dims["page_size"]
        return "split_keys", -(-slots // value)
    if name == "pages_per_block" and "block_k" in legal:
        return "block_k", value * dims["page_size"]
    if name in _OF_OUT and _OF_OUT[name] in legal:
        return _OF_OUT[name], value
    return name, value


_OF_OUT = {"block_m": "block_rows", "block_n": "block_columns"}  # of a product
