"""`kernel_registry`: the library's kernels and the functions that a Python program adds, by algorithm, platform and
backend."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Callable
from typing import Any

import jax

from ejkernel._declarations import OPERATIONS
from ejkernel._functions import FUNCTIONS
from ejkernel._library import InvalidArgument, Unsupported
from ejkernel.kernels._platforms import Backend, Platform, library_backend, library_platform


@dataclasses.dataclass(frozen=True)
class KernelSpec:
    """One implementation of an algorithm. The library's have their kernel's name, functions from Python their own."""

    platform: Platform
    backend: Backend
    algorithm: str
    implementation: Callable[..., Any]
    name: str
    priority: int = 0


_RETURNED = {
    "attention": 2,
    "page_append": 2,
    "ragged_page_attention_v3": 2,
    "recurrent_attention": 2,
    "gla_attention": 2,
    "lightning_attention": 2,
    "rnn": 3,
}
# Algorithms that the Python library called by another name than its functions.
_OPERATION_OF = {
    "recurrent": "recurrent_attention",
    "gla": "gla_attention",
    "lightning_attn": "lightning_attention",
}


def _name_of(algorithm: str) -> str:
    return _OPERATION_OF.get(algorithm.lower(), algorithm.lower())


def result_of(operation: str, outputs: Any, with_status: bool = False) -> Any:
    """What the Python library's functions return of an operation's outputs: the first one, or a pair. A status word
    that was asked for comes last."""
    if not isinstance(outputs, tuple):
        return outputs
    returned = tuple(outputs[: _RETURNED.get(operation, 1)]) + tuple(outputs[-1:] if with_status else ())
    return returned if len(returned) > 1 else returned[0]


def declared_signature(operation: str) -> inspect.Signature:
    """Inputs and parameters as the library declares them; options of a call (platform, config, ...) are no part of
    it."""
    signature = inspect.signature(FUNCTIONS[operation])
    op = OPERATIONS[operation]
    declared = (*op.input_names, *op.param_names)
    return signature.replace(parameters=[p for p in signature.parameters.values() if p.name in declared])


def _of_library(operation: str, **options: str) -> Callable[..., Any]:
    """The library's function with these options, and the declared signature."""

    def implementation(*args: Any, **kwargs: Any) -> Any:
        outputs = FUNCTIONS[operation](*args, **options, **kwargs)
        return result_of(operation, outputs, bool(kwargs.get("return_status")))

    implementation.__name__ = implementation.__qualname__ = operation
    implementation.__doc__ = FUNCTIONS[operation].__doc__
    implementation.__signature__ = declared_signature(operation)
    return implementation


def _text(parameters: list[inspect.Parameter], index: int) -> str:
    if index >= len(parameters):
        return "nothing"
    p = parameters[index]
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(p.kind, "")
    return f"{stars}{p.name}" + ("" if p.default is inspect.Parameter.empty else f"={p.default!r}")


def check_signature(algorithm: str, function: Callable[..., Any], expected: inspect.Signature) -> None:
    """Refuses a function whose argument names, order or defaults differ, naming the first difference."""
    want = list(expected.parameters.values())
    have = list(inspect.signature(function).parameters.values())
    for i in range(max(len(want), len(have))):
        if _text(want, i) != _text(have, i):
            raise InvalidArgument(
                f"{algorithm}: argument {i + 1} of '{function.__name__}' must be {_text(want, i)}, "
                f"got {_text(have, i)}; the arguments are {expected}"
            )


class KernelRegistry:
    def __init__(self) -> None:
        self._added: dict[str, list[KernelSpec]] = {}
        self._lock = threading.Lock()

    def register(
        self, algorithm: str, platform: Platform | str, backend: Backend | str, priority: int = 0
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator that adds a function. Its signature must be the operation's, or that of the algorithm's first
        function where the library has no such operation."""
        algorithm = _name_of(algorithm)
        platform, backend = Platform(platform), Backend(backend)

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            with self._lock:
                specs = self._added.get(algorithm, [])
                if any((s.platform, s.backend) == (platform, backend) for s in specs):
                    raise InvalidArgument(
                        f"{algorithm}: a function for {platform.value} and {backend.value} is registered already"
                    )
                if algorithm in OPERATIONS:
                    check_signature(algorithm, function, declared_signature(algorithm))
                elif specs:
                    check_signature(algorithm, function, inspect.signature(specs[0].implementation))
                spec = KernelSpec(platform, backend, algorithm, function, function.__name__, priority)
                self._added[algorithm] = sorted([*specs, spec], key=lambda s: -s.priority)
            return function

        return add

    def get(
        self,
        algorithm: str,
        platform: Platform | str | None = None,
        backend: Backend | str | None = None,
    ) -> Callable[..., Any]:
        """A function of the algorithm: one that was registered for this platform and backend, else the library's, which
        picks its kernel at each call."""
        algorithm = _name_of(algorithm)
        platform = None if platform in (None, "auto") else Platform(platform)
        backend = None if backend is None else Backend(backend)
        # Who names neither gets what this process's device runs.
        wanted = backend or (Backend(jax.default_backend()) if platform is None else Backend.ANY)
        added = self._added.get(algorithm, [])
        for spec in added:
            if platform in (None, spec.platform) and (wanted is Backend.ANY or spec.backend in (wanted, Backend.ANY)):
                return spec.implementation
        if algorithm in OPERATIONS:
            asked = {"platform": library_platform(platform), "backend": library_backend(backend)}
            return _of_library(algorithm, **{name: value for name, value in asked.items() if value is not None})
        if not added:
            raise Unsupported(f"{algorithm}: no such algorithm; there are {', '.join(self.list_algorithms())}")
        known = "".join(f"\n  {s.name}: for {s.platform.value} and {s.backend.value}" for s in added)
        asked = platform.value if platform else "any platform"
        raise Unsupported(f"{algorithm}: nothing is registered for {asked} and backend {wanted.value}{known}")

    def list_algorithms(self) -> list[str]:
        return sorted({*OPERATIONS, *self._added})

    def list_implementations(self, algorithm: str) -> list[KernelSpec]:
        """What was registered, by priority, then the library's kernels in the order in which it tries them."""
        algorithm = _name_of(algorithm)
        specs = list(self._added.get(algorithm, []))
        for kernel in OPERATIONS[algorithm].kernels if algorithm in OPERATIONS else ():
            function = _of_library(algorithm, kernel=kernel["name"])
            platform, backend = Platform(kernel["platform"]), Backend(kernel["backend"])
            specs.append(KernelSpec(platform, backend, algorithm, function, kernel["name"]))
        return specs


kernel_registry = KernelRegistry()
