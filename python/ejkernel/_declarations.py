"""The operations as the library declares them: everything in this package that is per operation is derived from here."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from ejkernel import _library


@dataclasses.dataclass(frozen=True)
class Field:
    """An input or output: its contract is that of docs/operations, "float[batch, q_len, …]"."""

    name: str
    contract: str
    doc: str
    optional: bool
    python_name: str | None  # another spelling, of the Python library that came before
    aliased: bool = False  # an output that is the input of its name, updated


@dataclasses.dataclass(frozen=True)
class Param:
    name: str
    type: str  # bool, int, float, string or ints
    default: Any
    doc: str
    choices: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Operation:
    name: str
    revision: int
    summary: str
    source: str
    gradient: str | None
    forms: tuple[str, ...]
    inputs: tuple[Field, ...]
    params: tuple[Param, ...]
    outputs: tuple[Field, ...]
    kernels: tuple[Mapping[str, Any], ...] = dataclasses.field(compare=False)

    @functools.cached_property
    def input_names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.inputs)

    @functools.cached_property
    def param_names(self) -> tuple[str, ...]:
        return tuple(param.name for param in self.params)

    @functools.cached_property
    def output_names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.outputs)

    @functools.cached_property
    def updated_names(self) -> frozenset[str]:
        """Inputs that calls write in place, which are outputs as well."""
        return frozenset(field.name for field in self.outputs if field.aliased)

    @functools.cached_property
    def float_names(self) -> frozenset[str]:
        """Inputs that take floats alone."""
        return frozenset(field.name for field in self.inputs if field.contract.startswith("float"))

    @functools.cached_property
    def spellings(self) -> dict[str, str]:
        """Other spellings of inputs."""
        return {field.python_name: field.name for field in self.inputs if field.python_name is not None}


def _field(json: Mapping[str, Any]) -> Field:
    return Field(
        json["name"],
        json["contract"],
        json["doc"],
        json["optional"],
        json.get("python_name"),
        json.get("aliased", False),
    )


def _param(json: Mapping[str, Any]) -> Param:
    return Param(json["name"], json["type"], json["default"], json["doc"], tuple(json.get("choices", ())))


def _operation(json: Mapping[str, Any]) -> Operation:
    return Operation(
        name=json["name"],
        revision=json["revision"],
        summary=json["summary"],
        source=json["source"],
        gradient=json["gradient"],
        forms=tuple(json["forms"]),
        inputs=tuple(_field(field) for field in json["inputs"]),
        params=tuple(_param(param) for param in json["params"]),
        outputs=tuple(_field(field) for field in json["outputs"]),
        kernels=tuple(json["kernels"]),
    )


OPERATIONS: dict[str, Operation] = {json["name"]: _operation(json) for json in _library.declarations()}
