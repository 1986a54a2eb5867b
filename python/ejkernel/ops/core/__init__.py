from ejkernel.ops.core.kernel import Invocation, Kernel
from ejkernel.ops.core.types import Cfg, Out

__all__ = ["Cfg", "Invocation", "Kernel", "Out"]
