"""Configs of operations under the names of the Python library that came before. What is left out, the library chooses;
docs/python_names.md says which field of which kernel each one sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ejkernel.kernels import Backend, Platform
from ejkernel.ops.utils.datacarrier import BwdParams, FwdParams
from ejkernel.ops.utils.serialize import from_json, to_json


@dataclasses.dataclass(frozen=True)
class BaseOperationConfig:
    platform: Platform | str = "auto"
    backend: Backend | str = "any"

    def sizes(self) -> dict[str, int]:
        """What is asked of a kernel: any of block_q, block_k and stages."""
        return {}

    def unused(self) -> list[str]:
        """Fields that were set and that no kernel has."""
        return []

    def to_dict(self) -> dict[str, Any]:
        return from_json(to_json(self))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> BaseOperationConfig:
        return from_json(to_json(fields), cls)


_SIZES = {
    "q_blocksize": "block_q",
    "kv_blocksize": "block_k",
    "block_q": "block_q",
    "block_k": "block_k",
    "num_stages": "stages",
}


def _set_fields(params: Any) -> dict[str, int]:
    return {f.name: v for f in dataclasses.fields(params) if (v := getattr(params, f.name)) is not None}


@dataclasses.dataclass(frozen=True)
class FlashAttentionConfig(BaseOperationConfig):
    fwd_params: FwdParams | None = None
    bwd_params: BwdParams | None = None

    def __post_init__(self) -> None:
        for name, cls in (("fwd_params", FwdParams), ("bwd_params", BwdParams)):
            if isinstance(given := getattr(self, name), Mapping):
                object.__setattr__(self, name, cls(**given))

    def sizes(self) -> dict[str, int]:
        given = _set_fields(self.fwd_params) if self.fwd_params else {}
        return {_SIZES[name]: value for name, value in given.items() if name in _SIZES}

    def unused(self) -> list[str]:
        forward = _set_fields(self.fwd_params) if self.fwd_params else {}
        backward = ["bwd_params"] if self.bwd_params and _set_fields(self.bwd_params) else []
        return [f"fwd_params.{name}" for name in forward if name not in _SIZES] + backward


@dataclasses.dataclass(frozen=True)
class AttentionConfig(BaseOperationConfig):
    block_q: int | None = None
    block_k: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None

    def sizes(self) -> dict[str, int]:
        return {_SIZES[name]: value for name, value in _set_fields(self).items() if name in _SIZES}

    def unused(self) -> list[str]:
        return [] if self.num_warps is None else ["num_warps"]


@dataclasses.dataclass(frozen=True)
class ScaledDotProductAttentionConfig(BaseOperationConfig):
    pass


@dataclasses.dataclass(frozen=True)
class MeanPoolingConfig(BaseOperationConfig):
    block_size: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None

    def unused(self) -> list[str]:
        return [name for name in _set_fields(self) if name not in ("platform", "backend")]
