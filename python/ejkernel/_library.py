"""The C ABI (ejkernel/c_api.h) through ctypes: declarations, plans, runs and errors, for everything above it.

Tensors are described by `Spec`s, which have a dtype in the library's spelling and a shape; what is run gets addresses.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ejkernel._sdk_paths import library_path


class EjkernelError(Exception):
    """What the library refuses or cannot do; its text says what was expected, what was given and what to do."""


class InvalidArgument(EjkernelError, ValueError):
    """The caller must change the call."""


class Unsupported(EjkernelError, NotImplementedError):
    """Nothing here can do it; the text lists every kernel's reason."""


class Internal(EjkernelError, RuntimeError):
    """A bug of ours, or the driver's."""


class NoConfig(EjkernelError, LookupError):
    """Heuristics are switched off, and no config was given, scoped or cached."""


class OutOfMemory(EjkernelError, MemoryError):
    """An allocation failed."""


_ERRORS = {1: InvalidArgument, 2: Unsupported, 3: Internal, 4: NoConfig, 5: OutOfMemory}

# ---- the structs of c_api.h and DLPack ----


class _DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("tensor", ctypes.POINTER(_DLTensor))]


class _PlanOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("platform", ctypes.c_char_p),
        ("backend", ctypes.c_char_p),
        ("kernel", ctypes.c_char_p),
        ("config", ctypes.c_char_p),
        ("policy", ctypes.c_char_p),
        ("device", ctypes.POINTER(_DLDevice)),
    ]


class _RunOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_void_p),
    ]


class _Xla(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("instantiate", ctypes.c_void_p),
        ("initialize", ctypes.c_void_p),
        ("execute", ctypes.c_void_p),
    ]


# DLPack's code and bits of each dtype.
_DLPACK_DTYPES = {
    "f64": (2, 64),
    "f32": (2, 32),
    "f16": (2, 16),
    "bf16": (4, 16),
    "e4m3": (10, 8),
    "e5m2": (12, 8),
    "i64": (0, 64),
    "i32": (0, 32),
    "u32": (1, 32),
    "i8": (0, 8),
    "u8": (1, 8),
    "i4": (0, 4),
    "bool": (6, 8),
}
_DLPACK_DEVICES = {"cpu": 1, "cuda": 2}

try:
    _ejk = ctypes.CDLL(str(library_path()))
except OSError as error:
    raise ImportError(
        f"ejkernel: {library_path()} must be its native library, got a file that does not load ({error}); install the "
        "package again, or correct EJKERNEL_LIBRARY"
    ) from error
for _name in ("ejk_version",):
    getattr(_ejk, _name).restype = ctypes.c_char_p
_ejk.ejk_free.argtypes = [ctypes.c_void_p]
_ejk.ejk_free.restype = None
_ejk.ejk_tune.argtypes = [ctypes.c_void_p, ctypes.c_double, ctypes.POINTER(ctypes.c_void_p)]
_ejk.ejk_params_set_i64.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64]
_ejk.ejk_params_set_f64.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_double]


def _check(status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        _ejk.ejk_last_error(ctypes.byref(text))
        raise _ERRORS[status](text.value.decode())


def _text_of(function: str, *arguments: Any) -> str:
    """The text that a function of the library hands out."""
    text = ctypes.c_void_p()
    _check(getattr(_ejk, function)(*arguments, ctypes.byref(text)))
    try:
        return ctypes.string_at(text).decode()
    finally:
        _ejk.ejk_free(text)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


# ---- what is described ----


@dataclasses.dataclass(frozen=True)
class Spec:
    """A tensor without its data. `strides` are in elements; None: row-major without gaps. `alignment`: the power of two
    that its address is a multiple of, 64 at most; kernels may ask for more than an element's size."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    alignment: int = 64


@dataclasses.dataclass(frozen=True)
class Options:
    """What a caller asks for besides the call itself; see ejk_plan_options."""

    platform: str | None = None
    backend: str | None = None
    kernel: str | None = None
    config: tuple[tuple[str, int], ...] | None = None
    policy: str | None = None
    overlay: tuple[tuple[str, int], ...] | None = None  # a scope's config: where the kernel cannot have it, it is none


NO_OPTIONS = Options()


@dataclasses.dataclass(frozen=True)
class Device:
    kind: str = "cpu"
    ordinal: int = 0


HOST = Device()


def _dl_tensor(spec: Spec, device: Device, data: int | None = None) -> _DLTensor:
    code, bits = _DLPACK_DTYPES[spec.dtype]
    rank = len(spec.shape)
    return _DLTensor(
        data=data,
        device=_DLDevice(_DLPACK_DEVICES[device.kind], device.ordinal),
        ndim=rank,
        dtype=_DLDataType(code, bits, 1),
        shape=(ctypes.c_int64 * rank)(*spec.shape),
        strides=None if spec.strides is None else (ctypes.c_int64 * rank)(*spec.strides),
    )


def _planned_tensor(operation: str, name: str, spec: Spec, device: Device) -> _DLTensor:
    """What a plan is told of an input: the address is made up, far from the ends of memory, and aligned as the spec."""
    if spec.dtype not in _DLPACK_DTYPES:
        raise InvalidArgument(
            f"{operation}: {name} must have one of the dtypes {', '.join(_DLPACK_DTYPES)}, got {spec.dtype}; "
            "convert its elements first"
        )
    return _dl_tensor(spec, device, None if spec.alignment >= 64 else (1 << 40) + spec.alignment)


def _tensor_list(tensors: Mapping[str, _DLTensor]) -> ctypes.Array:
    return (_Tensor * len(tensors))(*(_Tensor(name.encode(), ctypes.pointer(t)) for name, t in tensors.items()))


class _Params:
    """An ejk_params_t with these values set over the defaults."""

    def __init__(self, operation: str, values: Mapping[str, Any]):
        self.handle = ctypes.c_void_p()
        _check(_ejk.ejk_params_new(operation.encode(), ctypes.byref(self.handle)))
        try:
            for name, value in values.items():
                self._set(name.encode(), value)
        except BaseException:
            _ejk.ejk_free(self.handle)
            raise

    def _set(self, name: bytes, value: Any) -> None:
        if value is None:
            _check(_ejk.ejk_params_set_str(self.handle, name, None))
        elif isinstance(value, bool):
            _check(_ejk.ejk_params_set_bool(self.handle, name, int(value)))
        elif isinstance(value, int):
            _check(_ejk.ejk_params_set_i64(self.handle, name, value))
        elif isinstance(value, float):
            _check(_ejk.ejk_params_set_f64(self.handle, name, value))
        elif isinstance(value, str):
            _check(_ejk.ejk_params_set_str(self.handle, name, value.encode()))
        else:
            numbers = (ctypes.c_int64 * len(value))(*value)
            _check(_ejk.ejk_params_set_i64s(self.handle, name, numbers, ctypes.c_size_t(len(value))))

    def __enter__(self) -> ctypes.c_void_p:
        return self.handle

    def __exit__(self, *_: object) -> None:
        _ejk.ejk_free(self.handle)


class Plan:
    """A kernel and a config bound to exact shapes, dtypes and parameters (ejk_plan). Runs nothing until `run`."""

    def __init__(
        self,
        operation: str,
        inputs: Mapping[str, Spec],
        params: Mapping[str, Any],
        options: Options = NO_OPTIONS,
        device: Device = HOST,
    ):
        self._handle = ctypes.c_void_p()
        self.device = device
        self._inputs = dict(inputs)
        dl_device = _DLDevice(_DLPACK_DEVICES[device.kind], device.ordinal)
        asked = _PlanOptions(
            size=ctypes.sizeof(_PlanOptions),
            platform=_bytes(options.platform),
            backend=_bytes(options.backend),
            kernel=_bytes(options.kernel),
            config=None if options.config is None else json.dumps(dict(options.config)).encode(),
            policy=_bytes(options.policy),
            device=ctypes.pointer(dl_device),
        )
        tensors = _tensor_list({name: _planned_tensor(operation, name, spec, device) for name, spec in inputs.items()})
        with _Params(operation, params) as handle:
            _check(
                _ejk.ejk_plan(
                    operation.encode(),
                    tensors,
                    ctypes.c_size_t(len(tensors)),
                    handle,
                    ctypes.byref(asked),
                    ctypes.byref(self._handle),
                )
            )

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            _ejk.ejk_free(self._handle)

    @functools.cached_property
    def info(self) -> dict[str, Any]:
        """Outputs, dims, workspace, kernel, config, tier, explanation and more: see plan_json in runtime/json.h."""
        return json.loads(_text_of("ejk_plan_info", self._handle))

    @functools.cached_property
    def outputs(self) -> dict[str, Spec]:
        """The outputs that this call has, by name."""
        return {o["name"]: Spec(o["dtype"], tuple(o["shape"])) for o in self.info["outputs"] if o is not None}

    def run(
        self,
        inputs: Mapping[str, int],
        outputs: Mapping[str, int],
        workspace: int | None = None,
        stream: int = 0,
        status: int | None = None,
    ) -> None:
        """Runs on memory at these addresses; outputs that are left out are not computed. Bits of faults are set in the
        status word. A GPU's work is only queued."""
        given = _tensor_list({n: _dl_tensor(self._inputs[n], self.device, at) for n, at in inputs.items()})
        wanted = _tensor_list({n: _dl_tensor(self.outputs[n], self.device, at) for n, at in outputs.items()})
        options = _RunOptions(
            size=ctypes.sizeof(_RunOptions),
            stream=stream or None,
            workspace=workspace,
            workspace_bytes=self.info["workspace_bytes"] if workspace else 0,
            status=status,
        )
        _check(
            _ejk.ejk_plan_run(
                self._handle,
                given,
                ctypes.c_size_t(len(given)),
                wanted,
                ctypes.c_size_t(len(wanted)),
                ctypes.byref(options),
            )
        )

    def tune(self, seconds: float) -> dict[str, Any]:
        """Measures other configs for at most so long and keeps the best one; what came of it (ejk_tune)."""
        found = json.loads(_text_of("ejk_tune", self._handle, float(seconds)))
        _count_choice()
        return found

    def set_config(self, config: Mapping[str, int]) -> None:
        """From now on in this process plans for the same problem and kernel take it."""
        _check(_ejk.ejk_config_set(self._handle, json.dumps(dict(config)).encode()))
        _count_choice()


_num_choices = 0


def _count_choice() -> None:
    global _num_choices
    _num_choices += 1


def choices_made() -> int:
    """How often a config was set or tuned for this process. Plans from before may be others than would be made now."""
    return _num_choices


# ---- what is asked of the library as a whole ----


def version() -> str:
    return _ejk.ejk_version().decode()


def declarations() -> list[dict[str, Any]]:
    """Every operation as the library declares it, kernels included: see operations_json in runtime/json.h."""
    return json.loads(_text_of("ejk_operations"))["operations"]


def xla_handlers(platform: str) -> _Xla:
    """Addresses of XLA FFI handlers, for "cpu" or "cuda"."""
    handlers = _Xla(size=ctypes.sizeof(_Xla))
    _check(_ejk.ejk_xla_handlers(platform.encode(), ctypes.byref(handlers)))
    return handlers


def canonical_params(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Parameters as something that can be hashed: what was set, in the order of names."""
    return tuple(
        sorted(
            (name, tuple(v) if isinstance(v, Sequence) and not isinstance(v, str) else v) for name, v in values.items()
        )
    )
