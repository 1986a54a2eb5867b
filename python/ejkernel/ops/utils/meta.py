"""Names in lowered programs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax


def label(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: what the function computes carries the name in lowered programs and profiles."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def labelled(*args: Any, **kwargs: Any) -> Any:
            with jax.named_scope(name):
                return function(*args, **kwargs)

        return labelled

    return decorate
