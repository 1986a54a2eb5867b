from ejkernel.ops.utils.datacarrier import BwdParams, FwdParams
from ejkernel.ops.utils.fingerprint import (
    abstractify,
    default_key_builder,
    default_key_builder_with_sharding,
    device_fingerprint,
    device_kind,
    get_device_platform,
    sharding_fingerprint,
)
from ejkernel.ops.utils.meta import label
from ejkernel.ops.utils.serialize import from_json, short_hash, stable_json, to_json

__all__ = [
    "BwdParams",
    "FwdParams",
    "abstractify",
    "default_key_builder",
    "default_key_builder_with_sharding",
    "device_fingerprint",
    "device_kind",
    "from_json",
    "get_device_platform",
    "label",
    "sharding_fingerprint",
    "short_hash",
    "stable_json",
    "to_json",
]
