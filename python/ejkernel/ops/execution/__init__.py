from ejkernel.ops.core.measure import Measurement, Tuner, benchmark
from ejkernel.ops.execution.batch import pmap_with_config, vmap_with_config
from ejkernel.ops.execution.executor import ConfigChooser, Executor, default_executor
from ejkernel.ops.execution.tuning import autotune, autotune_recorded

__all__ = [
    "ConfigChooser",
    "Executor",
    "Measurement",
    "Tuner",
    "autotune",
    "autotune_recorded",
    "benchmark",
    "default_executor",
    "pmap_with_config",
    "vmap_with_config",
]
