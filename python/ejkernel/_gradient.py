"""Reverse mode for every operation that declares a gradient, from names alone: an input of the gradient operation is the
forward's input of that name, its output of that name, or `d_<output>`, the cotangent of that output; a parameter is the
forward's of that name, or the extent of the forward's dimension of that name; outputs are named after the inputs they
belong to. The same rule is in runtime/gradient.h."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero

from ejkernel import _library, _primitive, _settings
from ejkernel._declarations import OPERATIONS
from ejkernel._primitive import Call


def residual_name(operation: str, output: str) -> str:
    """What `jax.checkpoint` policies call an output that the gradient needs: "ejkernel.flash_attention.lse"."""
    return f"ejkernel.{operation}.{output}"


def gradient_call(call: Call, dims: Mapping[str, int], given: Sequence[str], wanted: Sequence[str]) -> Call:
    """The gradient operation's call for a forward call with these dimensions."""
    gradient = OPERATIONS[OPERATIONS[call.operation].gradient]
    params = dict(call.params)
    values = {name: params[name] for name in gradient.param_names if name in params}
    values |= {name: dims[name] for name in gradient.param_names if name in dims}
    return Call(
        operation=gradient.name,
        given=tuple(given),
        params=tuple(sorted(values.items())),
        options=_settings.apply(gradient.name, _options_of_gradient(call)),
        wanted=tuple(name for name in gradient.output_names if name in wanted),
    )


def _options_of_gradient(call: Call) -> Any:
    """A platform that is asked for holds for the gradient as well; a kernel and its config are the forward's alone.
    The gradient's own config may come from a scope."""
    options = call.options
    return type(options)(platform=options.platform, backend=options.backend, policy=options.policy)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(call: Call, *arrays: jax.Array) -> list[jax.Array]:
    return _primitive.bind(call, arrays)


def _forward(call: Call, *primals: Any) -> tuple[list[jax.Array], Any]:
    arrays = [primal.value for primal in primals]
    outputs = _primitive.bind(call, arrays)
    names = _primitive.output_names(call, arrays)
    status = outputs[len(names) :]
    outputs = outputs[: len(names)]
    saved = [checkpoint_name(x, residual_name(call.operation, name)) for name, x in zip(names, outputs, strict=True)]
    perturbed = tuple(name for name, primal in zip(call.given, primals, strict=True) if primal.perturbed)
    gradient = OPERATIONS[OPERATIONS[call.operation].gradient]
    for name, array in zip(call.given, arrays, strict=True):
        if name in perturbed and name not in gradient.output_names and _is_float(array):
            raise _library.Unsupported(
                f"{call.operation}: there is no derivative for {name}, and it is differentiated; pass "
                f"jax.lax.stop_gradient({name})"
            )
    return saved + status, (arrays, saved, _Names(perturbed))


@jax.tree_util.register_static
class _Names(tuple):
    """Names that travel with residuals."""


def _backward(call: Call, residuals: Any, cotangents: Sequence[Any]) -> tuple[Any, ...]:
    arrays, saved, perturbed = residuals
    gradient = OPERATIONS[OPERATIONS[call.operation].gradient]
    wanted = [name for name in gradient.output_names if name in perturbed]
    if not wanted:
        return tuple(None for _ in arrays)
    names = _primitive.output_names(call, arrays)
    cotangents = cotangents[: len(names)]  # a status word has none
    for name, cotangent in zip(names, cotangents, strict=True):
        if f"d_{name}" not in gradient.input_names and not isinstance(cotangent, SymbolicZero) and _is_float(cotangent):
            raise _library.Unsupported(
                f"{call.operation}: its output {name} has no derivative, and what is differentiated depends on it; use "
                f"jax.lax.stop_gradient({name})"
            )
    have = dict(zip(call.given, arrays, strict=True)) | dict(zip(names, saved, strict=True))
    zero = [f"d_{name}" for name, ct in zip(names, cotangents, strict=True) if isinstance(ct, SymbolicZero)]
    have |= {f"d_{name}": _materialised(ct) for name, ct in zip(names, cotangents, strict=True)}
    given = [f.name for f in gradient.inputs if f.name in have and not (f.optional and f.name in zero)]
    dims = _primitive.described(call, _primitive.specs_of(arrays))["dims"]
    backward = gradient_call(call, dims, given, wanted)
    results = dict(zip(backward.wanted, _primitive.bind(backward, [have[name] for name in given]), strict=True))
    return tuple(results.get(name) for name in call.given)


def _is_float(array: Any) -> bool:
    """What has derivatives: those of integers are of the dtype float0."""
    return jax.numpy.issubdtype(array.dtype, jax.numpy.floating)


def _materialised(cotangent: Any) -> jax.Array:
    if not isinstance(cotangent, SymbolicZero):
        return cotangent
    return jax.numpy.zeros(cotangent.aval.shape, cotangent.aval.dtype)


_differentiable.defvjp(_forward, _backward, symbolic_zeros=True)


def evaluate(call: Call, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """The call's outputs, differentiable where the operation is, and its status word if it is wanted."""
    # Out here, where JAX differentiates it: the gradient of what every device has is the sum of theirs.
    arrays = _primitive.alike(arrays)
    if OPERATIONS[call.operation].gradient is None:
        return _primitive.bind(call, arrays)
    try:
        return _differentiable(call, *arrays)
    except NotImplementedError as error:
        # In a shard_map that no jit surrounds. Nothing is differentiated here: that would have met its own trace first.
        if "symbolic_zeros" not in str(error):
            raise
        return _primitive.bind(call, arrays)
