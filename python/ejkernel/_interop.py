"""NumPy arrays and torch tensors, which run by the library's plans: no JAX, no copies, results of the same kind.

What an operation updates is written in place, and the result is that very array or tensor.

Whose arrays a call has decides: torch tensors alone, or NumPy arrays without any of JAX's; everything else is JAX's.
Plain numbers and lists become arrays of the kind that the others are, in the dtypes that JAX gives them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ejkernel import _library
from ejkernel._declarations import OPERATIONS
from ejkernel._dtypes import DTYPES, dtype_of
from ejkernel._library import HOST, Device, InvalidArgument, Plan, Spec
from ejkernel._primitive import STATUS, Call

_ALIGNMENT = 64  # of workspaces, and the most that a kernel asks of an input
_PLAIN = (bool, int, float, list, tuple)


class _NumPy:
    name = "NumPy arrays"
    # Without int4, of which ml_dtypes keeps one element in a byte and the library two.
    _DTYPES = {np.dtype(dtype): name for name, dtype in DTYPES.items() if name != "i4"}

    def converted(self, call: Call, arrays: Sequence[Any]) -> list[np.ndarray]:
        return [_plain_array(x) if isinstance(x, _PLAIN) else np.asarray(x) for x in arrays]

    def check_gradients(self, call: Call, arrays: Sequence[np.ndarray]) -> None:
        """NumPy's arrays have none."""

    def check_writable(self, call: Call, name: str, array: np.ndarray) -> None:
        if not array.flags.writeable:
            raise InvalidArgument(
                f"{call.operation}: {name} must be writable, since it is updated in place, got a read-only array; "
                "pass a copy"
            )

    def note_update(self, array: np.ndarray) -> None:
        """NumPy does not count updates."""

    def device(self, array: np.ndarray) -> Device:
        return HOST

    def spec(self, call: Call, name: str, array: np.ndarray) -> Spec:
        dtype = self._DTYPES.get(array.dtype) or str(array.dtype)
        if array.flags.c_contiguous:
            return Spec(dtype, array.shape, None, _alignment(self.address(array)))
        if any(stride % array.itemsize for stride in array.strides):
            raise InvalidArgument(
                f"{call.operation}: {name} must have strides of whole elements, got {array.strides} bytes for elements "
                f"of {array.itemsize}; pass a contiguous copy"
            )
        strides = tuple(stride // array.itemsize for stride in array.strides)
        return Spec(dtype, array.shape, strides, _alignment(self.address(array)))

    def address(self, array: np.ndarray) -> int:
        return array.__array_interface__["data"][0]

    def empty(self, spec: Spec, device: Device) -> np.ndarray:
        return np.empty(spec.shape, dtype_of(spec.dtype))

    def clear(self, array: np.ndarray) -> None:
        array[...] = 0

    def stream(self, device: Device) -> int:
        return 0


class _Torch:
    name = "torch tensors"

    def __init__(self, torch: Any):
        self.torch = torch
        spellings = {name: np.dtype(dtype).name for name, dtype in DTYPES.items()}
        self._dtypes = {name: getattr(torch, text) for name, text in spellings.items() if hasattr(torch, text)}
        self._names = {dtype: name for name, dtype in self._dtypes.items()}

    def converted(self, call: Call, arrays: Sequence[Any]) -> list[Any]:
        """The tensors, all on one device, without lazy negations; plain numbers go where the first tensor is."""
        device = next(x.device for x in arrays if isinstance(x, self.torch.Tensor))
        tensors = [self.torch.as_tensor(_plain_array(x), device=device) if isinstance(x, _PLAIN) else x for x in arrays]
        if device.type not in ("cpu", "cuda"):
            raise InvalidArgument(
                f"{call.operation}: tensors must be on cpu or cuda, got {device}; move them with .to()"
            )
        for name, tensor in zip(call.given, tensors, strict=True):
            if tensor.device != device:
                raise InvalidArgument(
                    f"{call.operation}: {name} must be on {device} like {call.given[0]}, got {tensor.device}; "
                    f"move it with .to({str(device)!r})"
                )
        for name, tensor in zip(call.given, tensors, strict=True):
            if tensor.is_neg() and name in OPERATIONS[call.operation].updated_names:
                raise InvalidArgument(
                    f"{call.operation}: {name} must be writable, since it is updated in place, got a lazy negation; "
                    "pass a copy"
                )
        return [tensor.resolve_neg() for tensor in tensors]

    def check_gradients(self, call: Call, tensors: Sequence[Any]) -> None:
        if not self.torch.is_grad_enabled():
            return
        for name, tensor in zip(call.given, tensors, strict=True):
            if tensor.requires_grad:
                raise InvalidArgument(
                    f"{call.operation}: {name} must not require a gradient, which is lost here, got one that does; "
                    "call the function in ejkernel.torch if there is one of this name, or call under torch.no_grad()"
                )

    def check_writable(self, call: Call, name: str, tensor: Any) -> None:
        """torch's tensors are, as far as the library does not refuse their strides."""

    def note_update(self, tensor: Any) -> None:
        """So that autograd refuses to use what it saved before."""
        if not tensor.is_inference():
            self.torch.autograd.graph.increment_version(tensor)

    def device(self, tensor: Any) -> Device:
        return HOST if tensor.device.type == "cpu" else Device("cuda", tensor.device.index)

    def spec(self, call: Call, name: str, tensor: Any) -> Spec:
        strides = None if tensor.is_contiguous() else tuple(tensor.stride())
        dtype = self._names.get(tensor.dtype) or str(tensor.dtype)
        return Spec(dtype, tuple(tensor.shape), strides, _alignment(self.address(tensor)))

    def address(self, tensor: Any) -> int:
        return tensor.data_ptr()

    def empty(self, spec: Spec, device: Device) -> Any:
        where = "cpu" if device == HOST else f"cuda:{device.ordinal}"
        return self.torch.empty(spec.shape, dtype=self._dtypes[spec.dtype], device=where)

    def clear(self, tensor: Any) -> None:
        tensor.zero_()

    def stream(self, device: Device) -> int:
        """torch's current stream. Outputs and workspaces come from its allocator, which hands out again what was freed
        in the order of this very stream, so nothing is recorded on it and nobody waits."""
        return 0 if device == HOST else self.torch.cuda.current_stream(device.ordinal).cuda_stream


Framework = _NumPy | _Torch
_NUMPY = _NumPy()


@functools.cache
def _torch() -> _Torch:
    return _Torch(sys.modules["torch"])


def _plain_array(value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind in "iuO" and any(not -(2**31) <= x < 2**31 for x in array.flat):
        raise InvalidArgument(f"ejkernel: plain integers must fit int32, got {value!r}; pass an array of another dtype")
    return array.astype({"int64": np.int32, "float64": np.float32}.get(array.dtype.name, array.dtype))


def _alignment(address: int) -> int:
    return min(_ALIGNMENT, address & -address) or _ALIGNMENT


def _is_torch(x: Any) -> bool:
    return "torch" in sys.modules and isinstance(x, sys.modules["torch"].Tensor)


def _is_numpy(x: Any) -> bool:
    return isinstance(x, (np.ndarray, np.generic)) and not isinstance(x, np.ma.MaskedArray)


def _kind(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}"


def framework_of(call: Call, arrays: Sequence[Any]) -> Framework | None:
    """Whose arrays these are; None: JAX's."""
    if any(_is_torch(x) for x in arrays):
        for name, x in zip(call.given, arrays, strict=True):
            if not (_is_torch(x) or isinstance(x, _PLAIN)):
                raise InvalidArgument(
                    f"{call.operation}: {name} must be a torch tensor like the other inputs, got {_kind(x)}; "
                    "convert it with torch.from_dlpack, or the others with jax.numpy.from_dlpack"
                )
        return _torch()
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(arrays)):  # in lists too
        return None
    if any(_is_numpy(x) for x in arrays) and all(_is_numpy(x) or isinstance(x, _PLAIN) for x in arrays):
        return _NUMPY
    return None


def as_jax(x: Any) -> jax.Array:
    """What jnp.asarray takes, and what only speaks DLPack; a key of jax.random as its last two words. Plain numbers have
    32 bits whatever JAX is told."""
    if isinstance(x, _PLAIN) and all(isinstance(leaf, (bool, int, float)) for leaf in jax.tree.leaves(x)):
        return jnp.asarray(_plain_array(x))
    if hasattr(x, "__dlpack__") and not isinstance(x, (jax.Array, np.ndarray, np.generic)):
        return jnp.from_dlpack(x)
    array = jnp.asarray(x)
    return jax.random.key_data(array)[..., -2:] if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else array


def all_as_jax(call: Call, arrays: Sequence[Any]) -> list[jax.Array]:
    converted = []
    for name, x in zip(call.given, arrays, strict=True):
        try:
            converted.append(as_jax(x))
        except InvalidArgument:
            raise
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"{call.operation}: {name} must be an array, got {_kind(x)}") from error
    return converted


def _of(converted: Sequence[Any]) -> Framework:
    return _torch() if _is_torch(converted[0]) else _NUMPY


@functools.lru_cache(maxsize=1024)
def _planned(call: Call, specs: tuple[Spec, ...], device: Device, choices: int) -> Plan:
    return call.plan(specs, device)


def plan_of(call: Call, tensors: Sequence[Any]) -> Plan:
    """The plan for exactly these shapes, strides and alignments, kept until a choice is made for the process."""
    framework = _of(tensors)
    if call.options.platform == "xla" or call.options.kernel == "xla":
        raise _library.Unsupported(
            f"{call.operation}: the platform xla takes JAX arrays, got {framework.name}; convert them with jax.numpy"
        )
    specs = tuple(framework.spec(call, name, x) for name, x in zip(call.given, tensors, strict=True))
    return _planned(call, specs, framework.device(tensors[0]), _library.choices_made())


def run_direct(call: Call, tensors: Sequence[Any]) -> dict[str, Any]:
    """The call's wanted outputs by name, updated inputs as they were given, and "status" if it is wanted. `tensors` are
    of one kind and on one device; a GPU's work is only queued."""
    framework = _of(tensors)
    framework.check_gradients(call, tensors)
    updated = {
        name: x for name, x in zip(call.given, tensors, strict=True) if name in OPERATIONS[call.operation].updated_names
    }
    for name, x in updated.items():
        framework.check_writable(call, name, x)
    plan = plan_of(call, tensors)
    device = plan.device
    wanted = {name: spec for name, spec in plan.outputs.items() if call.wanted is None or name in call.wanted}
    outputs = {name: framework.empty(spec, device) for name, spec in wanted.items() if name not in updated}
    workspace = start = status = None
    if call.status:
        status = framework.empty(STATUS, device)
        framework.clear(status)
    if num_bytes := plan.info["workspace_bytes"]:
        workspace = framework.empty(Spec("u8", (num_bytes + _ALIGNMENT - 1,)), device)
        start = -(-framework.address(workspace) // _ALIGNMENT) * _ALIGNMENT
    plan.run(
        {name: framework.address(x) for name, x in zip(call.given, tensors, strict=True)},
        {name: framework.address(x) for name, x in outputs.items()},
        start,
        framework.stream(device),
        None if status is None else framework.address(status),
    )
    for x in updated.values():
        framework.note_update(x)
    results = updated | outputs
    results = {name: results[name] for name in plan.outputs if name in results}
    return results if status is None else results | {"status": status}
