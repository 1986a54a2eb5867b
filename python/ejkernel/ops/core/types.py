"""Type variables of kernels."""

from typing import TypeVar

Cfg = TypeVar("Cfg")
Out = TypeVar("Out")
