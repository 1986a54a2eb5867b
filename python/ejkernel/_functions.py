"""One function per operation, made from its declaration: signature, documentation, checks."""

from __future__ import annotations

import collections
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ejkernel import _gradient, _interop, _library, _primitive, _settings
from ejkernel._declarations import OPERATIONS, Operation, Param
from ejkernel._dtypes import name_of
from ejkernel._library import Options
from ejkernel._primitive import Call

_OPTION_DOCS = {
    "platform": "the kernel's platform (cuda, cpu, xla, reference): that one or an error; default: the first that serves",
    "backend": "the kind of device a kernel serves (cpu, gpu, tpu)",
    "kernel": "one kernel by name, as strict as a platform",
    "config": "fields to set over the kernel's config, {'block_q': 64}; wins over every other source, is never stored",
    "policy": "where a config may come from: autotune (anywhere), heuristics (no measuring), cached (what is known)",
}
_STATUS_DOC = "also return, last, uint32[1]: bits of what was wrong with the contents of index arrays, 0 for nothing"


@functools.cache
def result_type(op: Operation) -> type:
    """The named tuple of an operation with several outputs: FlashAttentionResult(out, lse)."""
    name = "".join(word.capitalize() for word in op.name.split("_")) + "Result"
    return collections.namedtuple(name, op.output_names, module="ejkernel")


def canonical_param(op: Operation, param: Param, value: Any, values: Mapping[str, Any]) -> Any:
    """A Python value as the library takes it."""
    if value is None:
        return None
    if param.type == "ints":
        if not isinstance(value, (list, tuple)) and getattr(value, "ndim", 0) == 0:
            value = _settings.integer(op.name, param.name, value)
            one_sided = values.get("causal") or "causal" not in op.param_names  # decode sees nothing later at all
            return (value, 0) if one_sided else (value, value)
        return tuple(_settings.integer(op.name, param.name, v) for v in value)
    if param.name.endswith("dtype"):
        try:
            return name_of(value)
        except TypeError as error:
            raise _library.InvalidArgument(f"{op.name}: {param.name} must be a dtype, got {value!r}") from error
    if param.type == "bool":
        if isinstance(value, str):  # "False" is true
            raise _library.InvalidArgument(f"{op.name}: {param.name} must be True or False, got {value!r}")
        return bool(value)
    if param.type == "int":
        return _settings.integer(op.name, param.name, value)
    return _settings.real(op.name, param.name, value) if param.type == "float" else value


def make_call(op: Operation, given: Mapping[str, Any]) -> tuple[Call, list[Any]]:
    """The call that keyword arguments describe, and its arrays in declared order. Absent inputs may be None."""
    given = {op.spellings.get(name, name): value for name, value in given.items()}
    known = (*op.input_names, *op.param_names, *_OPTION_DOCS, "return_status")
    for name in given:
        if name not in known:
            raise TypeError(f"{op.name}: '{name}' is no argument of it; they are {', '.join(known)}")
    present = tuple(name for name in op.input_names if given.get(name) is not None)
    missing = [f.name for f in op.inputs if not f.optional and f.name not in present]
    if len(op.forms) < 2 and missing:  # with several forms the library says which input which form needs
        raise TypeError(f"{op.name}: {missing[0]} must be given")
    params = {p.name: canonical_param(op, p, given[p.name], given) for p in op.params if p.name in given}
    set_params = {p.name: params[p.name] for p in op.params if p.name in params and params[p.name] != p.default}
    config = given.get("config")
    options = _settings.apply(
        op.name,
        Options(
            platform=_settings.text(op.name, "platform", given.get("platform")),
            backend=_settings.text(op.name, "backend", given.get("backend")),
            kernel=_settings.text(op.name, "kernel", given.get("kernel")),
            config=None if config is None else _settings.config_fields(op.name, config),
            policy=_settings.text(op.name, "policy", given.get("policy")),
        ),
    )
    call = Call(
        op.name, present, _library.canonical_params(set_params), options, status=bool(given.get("return_status"))
    )
    return call, [_as_floats(given[n]) if n in op.float_names else given[n] for n in present]


def _as_floats(value: Any) -> Any:
    """Plain integers as what an input takes that takes no integers: k_scale=1."""
    if isinstance(value, (list, tuple)):
        return [_as_floats(x) for x in value]
    return float(value) if type(value) is int else value


def _signature(op: Operation) -> inspect.Signature:
    """Inputs by position in declared order, everything else by keyword."""
    p = inspect.Parameter
    inputs = [p(f.name, p.POSITIONAL_OR_KEYWORD, default=p.empty if _leads(op, f.name) else None) for f in op.inputs]
    params = [p(param.name, p.KEYWORD_ONLY, default=param.default) for param in op.params]
    options = [p(name, p.KEYWORD_ONLY, default=None) for name in _OPTION_DOCS]
    status = p("return_status", p.KEYWORD_ONLY, default=False)
    return inspect.Signature([*inputs, *params, *options, status])


def _leads(op: Operation, name: str) -> bool:
    """Whether an input is required and stands before all that may be left out in some form."""
    for field in op.inputs:
        if field.optional or " ; -" in field.contract or field.contract.startswith("- ;"):
            return False
        if field.name == name:
            return True
    return False


def _doc(op: Operation) -> str:
    lines = [op.summary, ""]
    if op.forms:
        lines += [f"Forms: {', '.join(op.forms)} (contracts stand in this order, separated by semicolons).", ""]
    lines += ["Args:"]
    lines += [f"  {field.name}: {field.contract}. {field.doc}" for field in op.inputs]
    lines += [
        f"  {param.name}: {param.doc}" + (f" ({', '.join(param.choices)})" if param.choices else "")
        for param in op.params
    ]
    lines += [f"  {name}: {doc}" for name, doc in (_OPTION_DOCS | {"return_status": _STATUS_DOC}).items()]
    lines += ["", "Returns:"]
    lines += [
        f"  {field.name}: {field.contract}. {field.doc}"
        + (" (the input of this name, updated)" if field.aliased else "")
        for field in op.outputs
    ]
    lines += ["", f"Source: {op.source}", f"Docs: docs/operations/{op.name}.md"]
    return "\n".join(lines)


def make_function(
    op: Operation, run: Callable[[Call, list[Any]], dict[str, Any]], module: str = "ejkernel"
) -> Callable[..., Any]:
    """The operation as a function that runs calls by `run`, which returns the outputs by name, "status" if wanted."""
    signature = _signature(op)
    several = len(op.outputs) > 1
    result = result_type(op) if several else None
    positional = op.input_names

    def function(*args: Any, **kwargs: Any) -> Any:
        if len(args) > len(positional):
            raise TypeError(f"{op.name}: takes {len(positional)} inputs by position, {len(args)} were given")
        given = dict(zip(positional, args))
        for name, value in kwargs.items():
            name = op.spellings.get(name, name)
            if name in given:
                raise TypeError(f"{op.name}: {name} is given twice")
            given[name] = value
        call, arrays = make_call(op, given)
        outputs = run(call, arrays)
        if call.status:
            return (*(outputs.get(name) for name in op.output_names), outputs["status"])
        if not several:
            return outputs[op.output_names[0]]
        return result(**{name: outputs.get(name) for name in op.output_names})

    function.__name__ = function.__qualname__ = op.name
    function.__module__ = module
    function.__doc__ = _doc(op)
    function.__signature__ = signature
    return function


def run(call: Call, arrays: list[Any]) -> dict[str, Any]:
    """The call's outputs by name, of the kind that the arrays are, and "status" if it is wanted."""
    if (framework := _interop.framework_of(call, arrays)) is not None:
        return _interop.run_direct(call, framework.converted(call, arrays))
    arrays = _interop.all_as_jax(call, arrays)
    names = _primitive.output_names(call, arrays)
    results = _gradient.evaluate(call, arrays)
    return dict(zip((*names, "status") if call.status else names, results, strict=True))


FUNCTIONS: dict[str, Callable[..., Any]] = {name: make_function(op, run) for name, op in OPERATIONS.items()}
RESULTS: dict[str, type] = {
    result_type(op).__name__: result_type(op) for op in OPERATIONS.values() if len(op.outputs) > 1
}
