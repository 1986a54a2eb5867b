"""Type stubs of what is made from the declarations, which editors and checkers cannot see: __init__.pyi and torch.pyi.

    python -m ejkernel._stubs --check | --write

Contracts are metadata of Annotated[Array, "float[batch, q_len, …]"], as jaxtyping's are but in the library's own words.
They have forms, ranks that differ and dtypes of other inputs, for which jaxtyping has none, and nothing is installed.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path

import ejkernel
from ejkernel import _settings
from ejkernel._declarations import OPERATIONS, Field, Operation, Param
from ejkernel._functions import FUNCTIONS, RESULTS, result_type

_HEADER = """\
# Made by `python -m ejkernel._stubs --write` from the library's declarations.
# fmt: off
# ruff: noqa: I001
"""

_INIT = """\
from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, overload

# JAX arrays, NumPy arrays or torch tensors: results are of the kind that is passed.
Array = TypeVar("Array")
"""

_TORCH = """\
from collections.abc import Mapping
from typing import Annotated, Any, Literal, overload

from torch import Tensor as Array

"""


def _union(kind: str, default: object) -> str:
    return f"{kind} | None" if default is None else kind


def _literal(texts: Iterable[str]) -> str:
    return f"Literal[{', '.join(map(_quoted, texts))}]"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _value(value: object) -> str:
    return _quoted(value) if isinstance(value, str) else repr(value)


def _array(field: Field) -> str:
    return f"Annotated[Array, {_quoted(field.contract)}]"


def _param(param: Param) -> str:
    if param.name.endswith("dtype"):
        return "Any"  # what numpy.dtype takes, torch's dtypes and the library's names
    if param.choices:
        return _literal(param.choices)
    return {"string": "str", "ints": "int | tuple[int, int]"}.get(param.type, param.type)


_OPTIONS = {
    "platform": "str",
    "backend": "str",
    "kernel": "str",
    "config": "Mapping[str, int]",
    "policy": _literal(_settings.POLICIES),
    "return_status": "Literal[False]",
}


def _type_of(op: Operation, name: str) -> str:
    if name in op.input_names:
        return _array(op.inputs[op.input_names.index(name)])
    if name in op.param_names:
        return _param(op.params[op.param_names.index(name)])
    return _OPTIONS[name]


def _function(op: Operation) -> str:
    """Two overloads: one that has everything, and one that says what return_status=True changes."""
    lines, keyword_only = [], False
    for parameter in inspect.signature(FUNCTIONS[op.name]).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            lines.append("    *,")
        kind = _type_of(op, parameter.name)
        if parameter.default is parameter.empty:
            lines.append(f"    {parameter.name}: {kind},")
        else:
            lines.append(f"    {parameter.name}: {_union(kind, parameter.default)} = {_value(parameter.default)},")
    with_status = f"def {op.name}(*args: Any, return_status: Literal[True], **kwargs: Any) -> tuple[Array, ...]: ..."
    doc = f'    """{op.summary}"""'
    return "\n".join(
        ["@overload", f"def {op.name}(", *lines, f") -> {_returned(op)}:", doc, "@overload", with_status, ""]
    )


def _may_be_absent(field: Field) -> bool:
    """In some form, or where an input is absent."""
    return field.optional or any(form.strip() == "-" for form in field.contract.split(";"))


def _result(op: Operation) -> str:
    lines = [f"    {f.name}: {_array(f)}{' | None' if _may_be_absent(f) else ''}" for f in op.outputs]
    return "\n".join([f"class {result_type(op).__name__}(NamedTuple, Generic[Array]):", *lines, ""])


def _returned(op: Operation) -> str:
    return f"{result_type(op).__name__}[Array]" if len(op.outputs) > 1 else _array(op.outputs[0])


def _other_names() -> list[str]:
    """What __init__.py has besides operations and their results."""
    lines = []
    for name in ejkernel.__all__:
        value = getattr(ejkernel, name)
        if name in FUNCTIONS or name in RESULTS:
            continue
        if inspect.ismodule(value):
            lines.append(f"from ejkernel import {name} as {name}")
        elif isinstance(value, str):
            lines.append(f"{name}: str")
        else:
            lines.append(f"from {value.__module__} import {name} as {name}")
    return [line + "\n" for line in sorted(lines, key=lambda line: (not line.startswith("from "), line))]


def _init_stub() -> str:
    results = [_result(op) for op in OPERATIONS.values() if len(op.outputs) > 1]
    return _HEADER + "\n".join([_INIT, "".join(_other_names()), *results, *map(_function, OPERATIONS.values())])


def _torch_stub() -> str:
    ops = [op for op in OPERATIONS.values() if op.gradient is not None]
    results = sorted(result_type(op).__name__ for op in ops if len(op.outputs) > 1)
    imports = f"{_TORCH}from ejkernel import {', '.join(results)}\n"
    return _HEADER + "\n".join([imports, *map(_function, ops)])


def stubs() -> dict[Path, str]:
    """Every stub's path and what it should say."""
    folder = Path(__file__).parent
    return {folder / "__init__.pyi": _init_stub(), folder / "torch.pyi": _torch_stub()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ejkernel._stubs", description="Type stubs from the declarations.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument(
        "--check", action="store_true", help="name the stubs that are not what they should be; 1 if any"
    )
    action.add_argument("--write", action="store_true", help="write them")
    write = parser.parse_args(arguments).write
    stale = [path for path, text in stubs().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if write:
            path.write_text(stubs()[path], encoding="utf-8")
        print(f"{'wrote' if write else 'stale, write it with python -m ejkernel._stubs --write:'} {path}")
    return 1 if stale and not write else 0


if __name__ == "__main__":
    sys.exit(main())
