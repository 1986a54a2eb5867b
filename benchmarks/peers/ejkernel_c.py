"""Our C interface through ctypes: plans over torch tensors, on the host or on torch's current CUDA stream."""

import ctypes
import json
import os

import torch

os.environ.setdefault("EJKERNEL_AUTOTUNE_POLICY", "heuristics")  # a comparison says so when it is one of tuned configs


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _NamedTensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("tensor", ctypes.POINTER(_DLTensor))]


class _PlanOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_char_p) for name in ("platform", "backend", "kernel", "config", "policy")
    ] + [("device", ctypes.c_void_p)]


class _RunOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_void_p),
    ]


_DEVICES = {"cpu": 1, "cuda": 2}
_DTYPES = {torch.float32: (2, 32), torch.float16: (2, 16), torch.bfloat16: (4, 16), torch.int32: (0, 32), torch.int8: (0, 8),
           torch.float8_e4m3fn: (10, 8)}
_INT4 = (0, 4)


def _named(tensors, int4=()):
    """The ctypes array of named tensors, and everything it points at. Those in `int4` are bytes of two codes each."""
    keep, array = [], (_NamedTensor * len(tensors))()
    for i, (name, t) in enumerate(tensors.items()):
        code, bits = _INT4 if name in int4 else _DTYPES[t.dtype]
        shape = (ctypes.c_int64 * t.dim())(*t.shape)
        strides = (ctypes.c_int64 * t.dim())(*t.stride())
        if name in int4:
            shape[-1] *= 2
            strides[:-1] = [2 * stride for stride in strides[:-1]]
        device = _Device(_DEVICES[t.device.type], t.device.index or 0)
        dl = _DLTensor(t.data_ptr(), device, t.dim(), _DataType(code, bits, 1), shape, strides, 0)
        array[i] = _NamedTensor(name.encode(), ctypes.pointer(dl))
        keep += [t, shape, strides, dl]
    return array, keep


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.ejk_version.restype = ctypes.c_char_p
        self.c.ejk_free.argtypes = [ctypes.c_void_p]
        self.c.ejk_params_free.argtypes = [ctypes.c_void_p]

    def check(self, status):
        if status != 0:
            text = ctypes.c_char_p()
            self.c.ejk_last_error(ctypes.byref(text))
            raise RuntimeError(text.value.decode())

    def version(self):
        return self.c.ejk_version().decode()


class Plan:
    """One planned call. `run()` computes the outputs, which are the caller's; the workspace is the plan's own."""

    def __init__(self, library, operation, inputs, outputs, params, config=None, kernel=None, int4=()):
        self.library, self.c = library, library.c
        self.inputs, self._keep_inputs = _named(inputs, int4)
        self.outputs, self._keep_outputs = _named(outputs)
        options = _PlanOptions(ctypes.sizeof(_PlanOptions))
        options.kernel = kernel.encode() if kernel else None
        options.config = json.dumps(config).encode() if config else None
        handle = self._params(operation, params)
        self.handle = ctypes.c_void_p()
        arguments = (operation.encode(), self.inputs, len(inputs), handle, ctypes.byref(options), ctypes.byref(self.handle))
        library.check(self.c.ejk_plan(*arguments))
        self.c.ejk_params_free(handle)
        self.info = self._info()
        size = self.info["workspace_bytes"]
        self.device = next(iter(inputs.values())).device
        self.workspace = torch.empty(max(size, 1), dtype=torch.uint8, device=self.device)  # aligned to 64 bytes by torch
        self.options = _RunOptions(ctypes.sizeof(_RunOptions), None, self.workspace.data_ptr(), size, None)

    def _params(self, operation, params):
        handle = ctypes.c_void_p()
        self.library.check(self.c.ejk_params_new(operation.encode(), ctypes.byref(handle)))
        for name, value in params.items():
            if isinstance(value, bool):
                status = self.c.ejk_params_set_bool(handle, name.encode(), int(value))
            elif isinstance(value, tuple):
                numbers = (ctypes.c_int64 * len(value))(*value)
                status = self.c.ejk_params_set_i64s(handle, name.encode(), numbers, ctypes.c_size_t(len(value)))
            elif isinstance(value, str):
                status = self.c.ejk_params_set_str(handle, name.encode(), value.encode())
            elif isinstance(value, int):
                status = self.c.ejk_params_set_i64(handle, name.encode(), ctypes.c_int64(value))
            else:
                status = self.c.ejk_params_set_f64(handle, name.encode(), ctypes.c_double(value))
            self.library.check(status)
        return handle

    def _info(self):
        text = ctypes.c_char_p()
        self.library.check(self.c.ejk_plan_info(self.handle, ctypes.byref(text)))
        info = json.loads(text.value)
        self.c.ejk_free(ctypes.cast(text, ctypes.c_void_p))
        return info

    def run(self):
        if self.device.type == "cuda":
            self.options.stream = torch.cuda.current_stream().cuda_stream
        self.library.check(
            self.c.ejk_plan_run(
                self.handle, self.inputs, len(self.inputs), self.outputs, len(self.outputs), ctypes.byref(self.options)
            )
        )

    def __del__(self):
        if getattr(self, "handle", None):
            self.c.ejk_free(self.handle)
