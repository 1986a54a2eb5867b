"""Gradients by a kernel's own hooks: one forward, one call of the hook, whatever is differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from ejkernel.ops.core.kernel import Kernel, hook, run_of
from ejkernel.ops.utils.serialize import is_array


def function_of(kernel: Kernel, kind: str, cfg: Any) -> Callable[..., Any]:
    """The kernel with this config: through its hooks for gradients where it has them, else what JAX derives of
    `run`."""
    run = run_of(kernel, kind, cfg)
    pull = hook(kernel, "custom_vjp", kind, cfg)
    forward, backward = hook(kernel, "fwd_with_residuals", kind, cfg), hook(kernel, "vjp", kind, cfg)
    if pull is None and (forward is None or backward is None):
        return lambda *args, **kwargs: run(*args, cfg=cfg, **kwargs)

    def with_residuals(args: tuple, kwargs: dict) -> tuple[Any, Any]:
        if pull is not None:
            return run(*args, cfg=cfg, **kwargs), None
        return forward(*args, cfg=cfg, **kwargs)

    def gradients(residuals: Any, out: Any, cotangent: Any, args: tuple, kwargs: dict) -> tuple:
        if pull is not None:
            cotangents = cotangent if isinstance(cotangent, tuple) else (cotangent,)
            return pull(args, cfg, kwargs, cotangents)
        return backward(residuals, out, cotangent, *args, cfg=cfg, **kwargs)

    def function(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if is_array(leaf)]

        def filled(arrays: Any) -> tuple[tuple, dict]:
            values = list(leaves)
            for place, array in zip(places, arrays, strict=True):
                values[place] = array
            return jax.tree.unflatten(tree, values)

        @jax.custom_vjp
        def call(*arrays: Any) -> Any:
            given, named = filled(arrays)
            return run(*given, cfg=cfg, **named)

        def call_forward(*primals: Any) -> tuple[Any, Any]:
            arrays = [primal.value for primal in primals]
            _refuse_keywords(kernel, filled([primal.perturbed for primal in primals])[1])
            out, residuals = with_residuals(*filled(arrays))
            return out, (arrays, out, residuals)

        def call_backward(saved: Any, cotangent: Any) -> tuple:
            arrays, out, residuals = saved
            given, named = filled(arrays)
            zero = lambda x: isinstance(x, SymbolicZero)  # noqa: E731
            cotangent = jax.tree.map(
                lambda ct: jnp.zeros(ct.aval.shape, ct.aval.dtype) if zero(ct) else ct, cotangent, is_leaf=zero
            )
            of_args = _aligned(kernel, gradients(residuals, out, cotangent, given, named), given)
            by_place = dict(enumerate(of_args))  # positional arguments' leaves come first
            return tuple(
                None if by_place.get(place) is None else by_place[place].astype(array.dtype)
                for place, array in zip(places, arrays, strict=True)
            )

        call.defvjp(call_forward, call_backward, symbolic_zeros=True)
        return call(*(leaves[place] for place in places))

    return function


def _refuse_keywords(kernel: Kernel, perturbed: dict) -> None:
    for name, tree in perturbed.items():
        if any(leaf is True for leaf in jax.tree.leaves(tree)):
            raise TypeError(
                f"{kernel.op_id}: its hooks give gradients of positional arguments, and '{name}' is differentiated; "
                "pass it by position"
            )


def _aligned(kernel: Kernel, grads: Any, args: tuple) -> list[Any]:
    """A gradient or None for every leaf of the positional arguments."""
    if not isinstance(grads, tuple) or len(grads) != len(args):
        got = f"{len(grads)} of them" if isinstance(grads, tuple) else type(grads).__name__
        raise TypeError(
            f"{kernel.op_id}: a tuple of {len(args)} gradients was expected, one per positional argument, got {got}"
        )
    aligned: list[Any] = []
    for arg, grad in zip(args, grads, strict=True):
        count = len(jax.tree.leaves(arg))
        if grad is None:
            aligned += [None] * count
            continue
        leaves = jax.tree.leaves(grad, is_leaf=lambda x: x is None)
        if len(leaves) != count:
            raise TypeError(f"{kernel.op_id}: a gradient of {count} arrays was expected, got {len(leaves)}")
        aligned += leaves
    return aligned
