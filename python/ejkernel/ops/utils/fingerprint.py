"""What a config that was measured depends on besides the call: the device, and how arrays are spread over devices."""

from __future__ import annotations

import functools
import platform
from typing import Any

import jax

from ejkernel.ops.utils.serialize import _sharding, is_array, stable_json


def device_of(*trees: Any) -> jax.Device:
    """The device of the first array that has one; tracers have none, then JAX's default device."""
    for leaf in jax.tree.leaves(trees):
        if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
            return next(iter(leaf.sharding.device_set))
    default = jax.config.jax_default_device
    return default if isinstance(default, jax.Device) else jax.devices(default)[0]


def device_kind(device: jax.Device | None = None) -> str:
    """ "gpu", "tpu" or "cpu"."""
    kind = (device or device_of()).platform
    return "gpu" if kind in ("cuda", "rocm") else kind


def get_device_platform(device: jax.Device | None = None) -> str:
    """The platform whose kernels serve the device first: "cuda", "cpu" or "xla"."""
    return {"gpu": "cuda", "cpu": "cpu"}.get(device_kind(device), "xla")


@functools.cache
def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def device_fingerprint(device: jax.Device | None = None) -> str:
    """Kind, product and the runtime's version of a device: "cpu|AMD EPYC 9575F|cpu|jax 0.10.2"."""
    device = device or device_of()
    product = _processor() if device.platform == "cpu" else device.device_kind
    runtime = " ".join(device.client.platform_version.split())
    return f"{device_kind(device)}|{product}|{runtime}|jax {jax.__version__}"


def sharding_fingerprint(array: Any) -> str | None:
    """Axes of the mesh and the partition, without the devices' numbers; None for what has no sharding."""
    sharding = getattr(array, "sharding", None)
    return _sharding(sharding) if isinstance(sharding, jax.sharding.Sharding) else None


def abstractify(tree: Any) -> Any:
    """The tree with ShapeDtypeStructs for its arrays."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array(x) else x, tree)


def _without_floats(tree: Any) -> Any:
    """Of floating-point arguments (a scale, a probability) a key holds that they are there."""
    return jax.tree.map(lambda x: "float" if isinstance(x, float) else x, tree)


def default_key_builder(invocation: Any) -> str:
    """Shapes and dtypes of arrays, other arguments by value, but floating-point ones."""
    return stable_json([_without_floats(invocation.args), _without_floats(dict(invocation.kwargs))])


def default_key_builder_with_sharding(invocation: Any, args: Any = None, kwargs: Any = None) -> str:
    """As `default_key_builder`, and how each array is sharded. Takes an Invocation, or (kernel, args, kwargs)."""
    if args is not None or kwargs is not None:
        from ejkernel.ops.core.kernel import Invocation  # which needs this module

        invocation = Invocation(kernel=invocation, args=tuple(args or ()), kwargs=dict(kwargs or {}))
    leaves = jax.tree.leaves((invocation.args, dict(invocation.kwargs)))
    return stable_json([default_key_builder(invocation), [sharding_fingerprint(leaf) for leaf in leaves]])
