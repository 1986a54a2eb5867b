"""Configs of operations under the names of the Python library that came before. What is left out, the library chooses;
docs/python_names.md says which field of which kernel each one sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from ejkernel.kernels import Backend, Platform
from ejkernel.ops.utils.datacarrier import BwdParams, FwdParams
from ejkernel.ops.utils.serialize import from_json, to_json


def _set_fields(params: Any) -> dict[str, Any]:
    """What is neither None nor 0."""
    return {f.name: v for f in dataclasses.fields(params) if (v := getattr(params, f.name))}


# What a size asks of a kernel: a field of it, or one of two that follow from the call's shapes (_call.py).
_SIZES = {
    "q_blocksize": "block_q",
    "kv_blocksize": "block_k",
    "block_q": "block_q",
    "block_k": "block_k",
    "num_stages": "stages",
}


@dataclasses.dataclass(frozen=True)
class BaseOperationConfig:
    platform: Platform | str = "auto"
    backend: Backend | str = "any"

    known_sizes: ClassVar[Mapping[str, str]] = _SIZES

    def _asked(self) -> dict[str, Any]:
        return {name: v for name, v in _set_fields(self).items() if name not in ("platform", "backend")}

    def sizes(self) -> dict[str, int]:
        """What is asked of a kernel."""
        return {self.known_sizes[name]: v for name, v in self._asked().items() if name in self.known_sizes}

    def unused(self) -> list[str]:
        """Fields that were set and that no kernel has."""
        return [name for name in self._asked() if name not in self.known_sizes]

    def to_dict(self) -> dict[str, Any]:
        return from_json(to_json(self))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> BaseOperationConfig:
        return from_json(to_json(fields), cls)


@dataclasses.dataclass(frozen=True)
class _ConfigOfParams(BaseOperationConfig):
    """Sizes in carriers of their own, which may be given as mappings."""

    fwd_params: FwdParams | None = None

    def __post_init__(self) -> None:
        for name, cls in (("fwd_params", FwdParams), ("bwd_params", BwdParams)):
            if isinstance(given := getattr(self, name, None), Mapping):
                object.__setattr__(self, name, cls(**given))

    def _asked(self) -> dict[str, Any]:
        return _set_fields(self.fwd_params) if self.fwd_params else {}

    def unused(self) -> list[str]:
        return [f"fwd_params.{name}" for name in super().unused()]


@dataclasses.dataclass(frozen=True)
class FlashAttentionConfig(_ConfigOfParams):
    bwd_params: BwdParams | None = None

    def unused(self) -> list[str]:
        return super().unused() + (["bwd_params"] if self.bwd_params and _set_fields(self.bwd_params) else [])


@dataclasses.dataclass(frozen=True)
class RaggedDecodeAttentionConfig(_ConfigOfParams):
    known_sizes = {**_SIZES, "num_key_splits": "num_splits"}


@dataclasses.dataclass(frozen=True)
class AttentionConfig(BaseOperationConfig):
    block_q: int | None = None
    block_k: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None


@dataclasses.dataclass(frozen=True)
class ScaledDotProductAttentionConfig(BaseOperationConfig):
    pass


@dataclasses.dataclass(frozen=True)
class MeanPoolingConfig(BaseOperationConfig):
    block_size: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None

    known_sizes = {}


@dataclasses.dataclass(frozen=True)
class PageAttentionConfig(BaseOperationConfig):
    num_splits: int = 0
    pages_per_compute_block: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None

    known_sizes = {"num_splits": "num_splits", "num_stages": "stages"}


@dataclasses.dataclass(frozen=True)
class RaggedPageAttentionConfig(BaseOperationConfig):
    num_kv_pages_per_block: int | None = None
    num_queries_per_block: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None

    known_sizes = {
        "num_queries_per_block": "block_q",
        "num_kv_pages_per_block": "pages_per_block",
        "num_stages": "stages",
    }


@dataclasses.dataclass(frozen=True)
class RaggedPageAttentionv3Config(RaggedPageAttentionConfig):
    chunk_prefill_size: int | None = None


@dataclasses.dataclass(frozen=True)
class RecurrentAttentionConfig(BaseOperationConfig):
    block_q: int | None = None
    block_k: int | None = None
    block_d: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None

    known_sizes = {"block_d": "block_v"}


@dataclasses.dataclass(frozen=True)
class GLAttentionConfig(RecurrentAttentionConfig):
    pass


@dataclasses.dataclass(frozen=True)
class LightningAttentionConfig(RecurrentAttentionConfig):
    pass


@dataclasses.dataclass(frozen=True)
class GroupedMatmulConfig(BaseOperationConfig):
    block_m: int | None = None
    block_n: int | None = None
    block_k: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    bypass_xla_tiling: bool = False

    known_sizes = {"block_m": "block_m", "block_n": "block_n", "block_k": "block_k", "num_stages": "stages"}


@dataclasses.dataclass(frozen=True)
class RnnConfig(GroupedMatmulConfig):
    """Of the sums over the input, which are one product for many steps."""
