"""Configs as JSON, and anything that a key is made of as JSON that is the same in every process."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def name_of_type(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def is_array(value: Any) -> bool:
    """Arrays, tracers and ShapeDtypeStructs; NumPy's scalars are values."""
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, np.generic)


# ---- keys ----


def _typed(value: Any) -> Any:
    """The value with the types that JSON does not have, as {"$...": ...}. Of arrays, shape and dtype."""
    if isinstance(value, enum.Enum):
        return {"$enum": f"{name_of_type(type(value))}.{value.name}"}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return {"$scalar": str(value.dtype), "value": value.item()}
    if is_array(value):
        return {"$array": str(value.dtype), "shape": list(value.shape)}
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return {"$dtype": np.dtype(value).name}
    if hasattr(value, "dtype") and callable(value):  # jnp.float32
        return {"$dtype": np.dtype(value.dtype).name}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _typed(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"$type": name_of_type(type(value)), "fields": fields}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _typed(item) for key, item in value.items()}
        return {"$map": sorted(([_typed(key), _typed(item)] for key, item in value.items()), key=_dump)}
    if isinstance(value, set | frozenset):
        return {"$set": sorted((_typed(item) for item in value), key=_dump)}
    if isinstance(value, list | tuple):
        return [_typed(item) for item in value]
    if isinstance(value, functools.partial):
        return {"$partial": _typed(value.func), "args": _typed(value.args), "keywords": _typed(value.keywords)}
    if isinstance(value, jax.sharding.Sharding):
        return {"$sharding": _sharding(value)}
    name = getattr(value, "__qualname__", None)
    if callable(value) and name is not None and "<" not in name:  # no lambda, nothing local
        return {"$callable": f"{value.__module__}:{name}"}
    raise TypeError(f"ejkernel: {value!r} of type {type(value).__qualname__} means nothing in another process")


def _sharding(sharding: jax.sharding.Sharding) -> str:
    if isinstance(sharding, jax.sharding.NamedSharding):
        return f"{dict(sharding.mesh.shape)} {sharding.spec}"
    return f"{type(sharding).__name__} {len(sharding.device_set)}"


def stable_json(value: Any) -> str:
    """Equal for equal values, in every process; different for 1, 1.0 and True, for two dtypes, for two classes with
    equal fields. TypeError for what has no such text: lambdas, local functions, objects known by address alone."""
    return _dump(_typed(value))


def short_hash(value: Any) -> str:
    return hashlib.sha256(stable_json(value).encode()).hexdigest()[:16]


# ---- configs ----


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    raise TypeError(
        f"ejkernel: a config holds numbers, texts, enumerators, lists, mappings and dataclasses; got {value!r}"
    )


def to_json(config: Any) -> str:
    """The fields, sorted by name."""
    return _dump(_plain(config))


def _read(value: Any, annotation: Any) -> Any:
    """JSON's value as what the annotation says."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            try:
                return _read(value, option)
            except (TypeError, ValueError):
                pass
        raise TypeError(f"ejkernel: {value!r} is none of {annotation}")
    if annotation is typing.Any or isinstance(annotation, typing.TypeVar):
        return value
    if annotation in (None, type(None)):
        if value is not None:
            raise TypeError(f"ejkernel: None was expected, got {value!r}")
        return None
    if origin is typing.Literal:
        if value not in arguments:
            raise TypeError(f"ejkernel: one of {arguments} was expected, got {value!r}")
        return value
    if dataclasses.is_dataclass(annotation):
        return _read_dataclass(value, annotation)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return annotation(value)
    kind = origin or annotation
    if kind in (list, tuple, Sequence):
        if not isinstance(value, list):
            raise TypeError(f"ejkernel: a list was expected, got {value!r}")
        of_each = [a for a in arguments if a is not Ellipsis] or [Any]
        each = of_each if len(of_each) == len(value) else [of_each[0]] * len(value)
        return (list if kind is list else tuple)(_read(item, a) for item, a in zip(value, each, strict=True))
    if kind in (dict, Mapping):
        if not isinstance(value, dict):
            raise TypeError(f"ejkernel: a mapping was expected, got {value!r}")
        return {key: _read(item, arguments[1]) if arguments else item for key, item in value.items()}
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, annotation) or (annotation is int and isinstance(value, bool)):
        raise TypeError(f"ejkernel: {annotation.__name__} was expected, got {value!r}")
    return value


def _read_dataclass(value: Any, cls: type) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"ejkernel: the fields of {cls.__qualname__} were expected, got {value!r}")
    annotations = typing.get_type_hints(cls)
    known = [f.name for f in dataclasses.fields(cls) if f.init]
    for name in value:
        if name not in known:
            raise TypeError(f"ejkernel: '{name}' is no field of {cls.__qualname__}; they are {', '.join(known)}")
    return cls(**{name: _read(item, annotations[name]) for name, item in value.items()})


def from_json(text: str, cls: Any = Any) -> Any:
    """What `to_json` wrote, as a `cls`: nested dataclasses, enumerators and tuples included. Without `cls`, JSON's
    own types."""
    return _read(json.loads(text), cls)
