"""The library's `reference` kernels on numpy arrays, without JAX: what the tests compare with."""

import numpy as np

from ejkernel import _library
from ejkernel._declarations import OPERATIONS
from ejkernel._dtypes import DTYPES as JAX_DTYPES
from ejkernel._functions import make_call
from ejkernel._interop import run_direct

DTYPES = {name: np.dtype(dtype) for name, dtype in JAX_DTYPES.items()}


def reference(operation: str, inputs: dict, params: dict) -> dict:
    """Results of the reference kernel as numpy arrays by name. None stands for what is absent. Copies of updated inputs
    are updated."""
    given = {name: np.array(x, order="C") for name, x in inputs.items() if x is not None}
    call, arrays = make_call(OPERATIONS[operation], {**given, **params, "platform": "reference"})
    return run_direct(call, arrays)


def declarations() -> dict:
    """Every operation's inputs, parameters and outputs, by name."""
    return {declared["name"]: declared for declared in _library.declarations()}
