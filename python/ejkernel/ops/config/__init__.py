from ejkernel.ops.config.cache import ConfigCache, overlay_cache
from ejkernel.ops.config.persistent import PersistentCache
from ejkernel.ops.config.selection import AutotunePolicy, ConfigSelectorChain, policy_override
from ejkernel.ops.core.measure import Tuner

__all__ = [
    "AutotunePolicy",
    "ConfigCache",
    "ConfigSelectorChain",
    "PersistentCache",
    "Tuner",
    "overlay_cache",
    "policy_override",
]
