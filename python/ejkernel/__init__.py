"""ejkernel: deep-learning kernels, many implementations of each operation, one call.

    import ejkernel
    out, lse = ejkernel.flash_attention(query, key, value, causal=True)

Operations take and return JAX arrays, inside jit, grad, vmap and shard_map or outside. Which kernel and config a call gets
is decided while it is traced; `ejkernel.explain` says why. NumPy arrays and torch tensors give NumPy arrays and torch
tensors, without JAX; `ejkernel.torch` has the operations that torch differentiates.
"""

from ejkernel._check_jax import check_jax

check_jax()

from ejkernel import _library  # noqa: E402
from ejkernel._functions import FUNCTIONS as _FUNCTIONS  # noqa: E402
from ejkernel._functions import RESULTS as _RESULTS  # noqa: E402
from ejkernel._library import (  # noqa: E402
    EjkernelError,
    Internal,
    InvalidArgument,
    NoConfig,
    OutOfMemory,
    Unsupported,
)

__version__ = _library.version()
globals().update(_FUNCTIONS | _RESULTS)

__all__ = [
    "EjkernelError",
    "Internal",
    "InvalidArgument",
    "NoConfig",
    "OutOfMemory",
    "Unsupported",
    "__version__",
    *_FUNCTIONS,
    *_RESULTS,
]
