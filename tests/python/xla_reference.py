"""The library's `reference` kernels on numpy arrays, through the C interface: what the tests compare with."""

import ctypes
import json
import os

import ml_dtypes
import numpy as np

_CODES = {  # (DLPack code, numpy type) by the library's name
    "f64": (2, np.float64),
    "f32": (2, np.float32),
    "f16": (2, np.float16),
    "bf16": (4, ml_dtypes.bfloat16),
    "e4m3": (10, ml_dtypes.float8_e4m3fn),
    "e5m2": (12, ml_dtypes.float8_e5m2),
    "i8": (0, np.int8),
    "i32": (0, np.int32),
    "u32": (1, np.uint32),
    "bool": (6, np.bool_),
}
DTYPES = {name: np.dtype(numpy_type) for name, (_, numpy_type) in _CODES.items()}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Named(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("tensor", ctypes.POINTER(_DLTensor))]


class _PlanOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("platform", ctypes.c_char_p),
        ("backend", ctypes.c_char_p),
        ("kernel", ctypes.c_char_p),
        ("config", ctypes.c_char_p),
        ("policy", ctypes.c_char_p),
        ("device", ctypes.c_void_p),
    ]


_library = ctypes.CDLL(os.environ["EJKERNEL_LIBRARY"])
_OPTIONS = _PlanOptions(size=ctypes.sizeof(_PlanOptions), platform=b"reference")


def reference(operation: str, inputs: dict, params: dict) -> dict:
    """Results of the reference kernel as numpy arrays by name. None stands for what is absent."""
    inputs = {name: np.asarray(x, order="C") for name, x in inputs.items() if x is not None}
    handle, plan, text = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_char_p()
    given = _named(inputs)
    _check(_library.ejk_params_new(operation.encode(), ctypes.byref(handle)))
    try:
        for name, value in params.items():
            _set(handle, name, value)
        options = ctypes.byref(_OPTIONS)
        count = ctypes.c_size_t(len(given))
        _check(_library.ejk_plan(operation.encode(), given, count, handle, options, ctypes.byref(plan)))
        _check(_library.ejk_plan_info(plan, ctypes.byref(text)))
        planned = [output for output in json.loads(text.value)["outputs"] if output is not None]
        outputs = {output["name"]: np.zeros(output["shape"], DTYPES[output["dtype"]]) for output in planned}
        results = _named(outputs)
        call = operation.encode(), given, count, results, ctypes.c_size_t(len(results))
        _check(_library.ejk_execute(*call, handle, options, None))
    finally:
        _library.ejk_free(text)
        _library.ejk_free(plan)
        _library.ejk_params_free(handle)
    return outputs


def declarations() -> dict:
    """Every operation's inputs, parameters and outputs, by name."""
    text = ctypes.c_char_p()
    _check(_library.ejk_operations(ctypes.byref(text)))
    declared = {operation["name"]: operation for operation in json.loads(text.value)["operations"]}
    _library.ejk_free(text)
    return declared


def _set(params, name: str, value):
    name = name.encode()
    if value is None:
        return
    if isinstance(value, bool):
        _check(_library.ejk_params_set_bool(params, name, value))
    elif isinstance(value, int):
        _check(_library.ejk_params_set_i64(params, name, ctypes.c_int64(value)))
    elif isinstance(value, float):
        _check(_library.ejk_params_set_f64(params, name, ctypes.c_double(value)))
    elif isinstance(value, str):
        _check(_library.ejk_params_set_str(params, name, value.encode()))
    else:
        numbers = (ctypes.c_int64 * len(value))(*value)
        _check(_library.ejk_params_set_i64s(params, name, numbers, ctypes.c_size_t(len(value))))


def _named(arrays: dict):
    """An array of ejk_tensor; the numpy arrays must outlive it."""
    return (_Named * len(arrays))(
        *(_Named(name.encode(), ctypes.pointer(_tensor(array))) for name, array in arrays.items())
    )


def _tensor(array: np.ndarray) -> _DLTensor:
    return _DLTensor(
        data=array.ctypes.data,
        device_type=1,
        ndim=array.ndim,
        code=_CODES[_NAMES[array.dtype]][0],
        bits=8 * array.dtype.itemsize,
        lanes=1,
        shape=(ctypes.c_int64 * array.ndim)(*array.shape),
    )


def _check(status: int):
    if status != 0:
        text = ctypes.c_char_p()
        _library.ejk_last_error(ctypes.byref(text))
        raise RuntimeError(text.value.decode())
