"""A kernel over a batch, or over devices, with one config for all slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from ejkernel.ops.core.kernel import Kernel
from ejkernel.ops.execution.executor import Executor, default_executor
from ejkernel.ops.utils.serialize import is_array

Axes = int | None | Sequence[Any]


def vmap_with_config(
    kernel: Kernel | Executor, *more: Any, in_axes: Axes = 0, out_axes: Any = 0, executor: Executor | None = None
) -> Callable[..., Any]:
    """jax.vmap of a kernel whose config is chosen once, for the shapes of a slice; keyword arguments go whole to each
    slice, and `cfg` is the config if it is given. Takes (kernel, in_axes) or (executor, kernel, in_axes)."""
    kernel, executor, in_axes = _taken(kernel, more, executor, in_axes)

    def mapped(*args: Any, **kwargs: Any) -> Any:
        cfg = kwargs.pop("cfg", None)
        config = executor.choose_config(kernel, *_slices(args, in_axes), cfg=cfg, **kwargs)
        return jax.vmap(lambda *xs: executor(kernel, *xs, cfg=config, **kwargs), in_axes, out_axes)(*args)

    return mapped


def pmap_with_config(
    kernel: Kernel | Executor,
    *more: Any,
    in_axes: Axes = 0,
    axis_name: str = "devices",
    executor: Executor | None = None,
) -> Callable[..., Any]:
    """jax.pmap likewise: a slice per device."""
    kernel, executor, in_axes = _taken(kernel, more, executor, in_axes)

    def mapped(*args: Any, **kwargs: Any) -> Any:
        cfg = kwargs.pop("cfg", None)
        config = executor.choose_config(kernel, *_slices(args, in_axes), cfg=cfg, **kwargs)
        function = jax.pmap(
            lambda *xs: executor(kernel, *xs, cfg=config, **kwargs), axis_name=axis_name, in_axes=in_axes
        )
        return function(*args)

    return mapped


def _taken(first: Any, more: tuple, executor: Executor | None, in_axes: Axes) -> tuple[Kernel, Executor, Any]:
    if isinstance(first, Executor):
        if not more:
            raise TypeError("ejkernel: an executor is followed by the kernel that it maps")
        first, executor, more = more[0], first, more[1:]
    if len(more) > 1:
        raise TypeError(f"ejkernel: in_axes is the last argument by position, {len(more)} were given in its place")
    if more:
        in_axes = more[0]
    return first, executor or default_executor(), tuple(in_axes) if isinstance(in_axes, list) else in_axes


def _slices(args: tuple, in_axes: Any) -> list[Any]:
    """Shapes of one slice of each argument."""
    axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)

    def slice_of(x: Any, axis: int | None) -> Any:
        if axis is None or not is_array(x):
            return x
        shape = list(x.shape)
        del shape[axis]
        return jax.ShapeDtypeStruct(tuple(shape), x.dtype)

    return [jax.tree.map(lambda x, axis=axis: slice_of(x, axis), arg) for arg, axis in zip(args, axes, strict=True)]
