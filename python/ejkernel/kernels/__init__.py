"""Kernels by algorithm, platform and backend: the library's own, and functions that a Python program registers.

from ejkernel.kernels import Backend, Platform, kernel_registry
attention = kernel_registry.get("flash_attention", Platform.XLA)
"""

from ejkernel.kernels._platforms import Backend, Platform
from ejkernel.kernels._registry import KernelRegistry, KernelSpec, kernel_registry

__all__ = ["Backend", "KernelRegistry", "KernelSpec", "Platform", "kernel_registry"]
