"""A kernel that is written in Python, and one call of it."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any, Generic

from ejkernel.ops.core.types import Cfg, Out
from ejkernel.ops.utils.fingerprint import abstractify, default_key_builder, device_fingerprint, device_kind, device_of
from ejkernel.ops.utils.serialize import name_of_type, short_hash, stable_json

# Endings of hooks for a platform, the first that a kernel has serves.
_ENDINGS = {"gpu": ("cuda", "triton", "gpu", "xla"), "tpu": ("pallas", "tpu", "xla"), "cpu": ("cpu", "xla")}


@dataclasses.dataclass(frozen=True)
class Invocation(Generic[Cfg, Out]):
    """A call of a kernel. Hooks read shapes and dtypes of `args`: under a trace they are tracers."""

    kernel: Kernel[Cfg, Out]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    override_cfg: Cfg | None = None

    @property
    def abstract_args(self) -> tuple[Any, ...]:
        return abstractify(self.args)

    @property
    def abstract_kwargs(self) -> dict[str, Any]:
        return abstractify(dict(self.kwargs))

    @property
    def device_kind(self) -> str:
        return device_kind(device_of(self.args, dict(self.kwargs)))

    @property
    def device_fingerprint(self) -> str:
        return device_fingerprint(device_of(self.args, dict(self.kwargs)))

    @property
    def key(self) -> str:
        """What configs are kept under: kernel, version, device and call, as text. TypeError where an argument has no
        text that means the same in another process; a kernel's `key_builder` may say what matters instead."""
        builder = self.kernel.key_builder or default_key_builder
        return stable_json([self.kernel.op_id, self.kernel.version, self.device_fingerprint, builder(self)])

    @property
    def call_key(self) -> str:
        return short_hash(self.key)


class Kernel(Generic[Cfg, Out]):
    """An operation in Python whose config is found as the library finds its own. Subclasses define what they need of:

        run(*args, cfg, **kwargs)            and run_cuda, run_triton, run_gpu, run_pallas, run_tpu, run_cpu, run_xla
        heuristic_cfg(invocation)                  a config that always works
        candidate_cfgs(invocation), or config_space: configs to measure
        custom_vjp(primals, cfg, kwargs, cotangents)                 gradients of positional arguments, or
        fwd_with_residuals(*args, cfg, **kwargs) -> (out, residuals)
        vjp(residuals, out, cotangent, *args, cfg, **kwargs)
        prepare(*args, **kwargs) -> (args, kwargs)                   before anything else

    Each hook but `prepare` may end in a platform as `run` does. Calling a kernel is calling the default executor with
    it."""

    op_id: str
    version: str = "0"  # another one, and stored configs are not found
    key_builder: Callable[[Invocation], Any] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "op_id" not in cls.__dict__:
            cls.op_id = name_of_type(cls)

    def __init__(self, name: str | None = None, *, op_id: str | None = None):
        if name or op_id:
            self.op_id = name or op_id

    @property
    def name(self) -> str:
        return self.op_id

    def __call__(self, *args: Any, cfg: Cfg | None = None, **kwargs: Any) -> Out:
        from ejkernel.ops.execution.executor import default_executor  # which needs this module

        return default_executor()(self, *args, cfg=cfg, **kwargs)


def hook(kernel: Kernel, name: str, kind: str, cfg: Any = None) -> Callable[..., Any] | None:
    """The kernel's hook of that name for a kind of device. A config's platform, where it names one, goes first."""
    endings = _ENDINGS.get(kind, ("xla",))
    asked = getattr(cfg, "platform", None)
    asked = getattr(asked, "value", asked)
    if asked not in (None, "auto"):
        endings = (asked, *endings)
    for ending in endings:
        if (found := getattr(kernel, f"{name}_{ending}", None)) is not None:
            return found
    return getattr(kernel, name, None)


def run_of(kernel: Kernel, kind: str, cfg: Any) -> Callable[..., Any]:
    found = hook(kernel, "run", kind, cfg)
    if found is None:
        raise NotImplementedError(f"{kernel.op_id}: it has neither run nor a run_... that serves {kind}; define one")
    return found


def candidates_of(invocation: Invocation) -> list[Any]:
    """What the kernel would have measured."""
    for name in ("candidate_cfgs", "config_space"):
        if (found := hook(invocation.kernel, name, invocation.device_kind)) is not None:
            return list(found(invocation))
    return []


def heuristic_of(invocation: Invocation) -> Any:
    """The kernel's own choice; None where it has none."""
    found = hook(invocation.kernel, "heuristic_cfg", invocation.device_kind)
    return None if found is None else found(invocation)


def config_type_of(kernel: Kernel) -> type | None:
    """MyConfig of a `class MyKernel(Kernel[MyConfig, ...])`."""
    for cls in type(kernel).__mro__:
        for base in cls.__dict__.get("__orig_bases__", ()):
            if typing.get_origin(base) is Kernel and isinstance(first := typing.get_args(base)[0], type):
                return first
    return None
