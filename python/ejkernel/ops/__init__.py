"""Kernels written in Python, with configs found as the library finds its own: override, overlay, memory, persistent,
autotune, heuristics, error.

    class Scale(Kernel[ScaleConfig, jax.Array]):
        def run(self, x, *, cfg): ...
        def heuristic_cfg(self, invocation): return ScaleConfig()

    out = Executor(ConfigSelectorChain())(Scale(), x)

docs/python_names.md says what differs from the Python library that had these names first.
"""

from ejkernel._labels import (
    autotune_lowered,
    extract_labels_from_hlo_text,
    find_labels_in_lowered,
    labels_to_configs,
)
from ejkernel.ops.config import (
    AutotunePolicy,
    ConfigCache,
    ConfigSelectorChain,
    PersistentCache,
    Tuner,
    overlay_cache,
    policy_override,
)
from ejkernel.ops.core import Cfg, Invocation, Kernel, Out
from ejkernel.ops.execution import (
    ConfigChooser,
    Executor,
    Measurement,
    autotune,
    autotune_recorded,
    benchmark,
    pmap_with_config,
    vmap_with_config,
)
from ejkernel.ops.registry import clear_invocations, get_invocations, record_invocation
from ejkernel.ops.utils import (
    BwdParams,
    FwdParams,
    abstractify,
    default_key_builder,
    default_key_builder_with_sharding,
    device_fingerprint,
    device_kind,
    from_json,
    get_device_platform,
    label,
    sharding_fingerprint,
    short_hash,
    stable_json,
    to_json,
)

__all__ = [
    "AutotunePolicy",
    "BwdParams",
    "Cfg",
    "ConfigCache",
    "ConfigChooser",
    "ConfigSelectorChain",
    "Executor",
    "FwdParams",
    "Invocation",
    "Kernel",
    "Measurement",
    "Out",
    "PersistentCache",
    "Tuner",
    "abstractify",
    "autotune",
    "autotune_lowered",
    "autotune_recorded",
    "benchmark",
    "clear_invocations",
    "default_key_builder",
    "default_key_builder_with_sharding",
    "device_fingerprint",
    "device_kind",
    "extract_labels_from_hlo_text",
    "find_labels_in_lowered",
    "from_json",
    "get_device_platform",
    "get_invocations",
    "label",
    "labels_to_configs",
    "overlay_cache",
    "pmap_with_config",
    "policy_override",
    "record_invocation",
    "sharding_fingerprint",
    "short_hash",
    "stable_json",
    "to_json",
    "vmap_with_config",
]
