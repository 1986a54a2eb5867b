"""Names of platforms and devices in the Python library that came before, and what they mean here."""

from __future__ import annotations

import enum

import jax

from ejkernel._library import Unsupported
from ejkernel._notices import say_once


class Platform(str, enum.Enum):
    """What a kernel is written for."""

    TRITON = "triton"
    PALLAS = "pallas"
    CUDA = "cuda"
    XLA = "xla"
    CPU = "cpu"
    REFERENCE = "reference"


class Backend(str, enum.Enum):
    """The kind of device that a kernel serves."""

    GPU = "gpu"
    TPU = "tpu"
    CPU = "cpu"
    ANY = "any"


def library_platform(platform: str | Platform | None) -> str | None:
    """A platform as the library's calls take it. `triton` and `pallas` mean `cuda` on a CUDA device, and nothing
    elsewhere."""
    if platform is None or platform == "auto":
        return None
    platform = Platform(platform)
    if platform not in (Platform.TRITON, Platform.PALLAS):
        return platform.value
    kind = jax.default_backend()
    if kind not in ("gpu", "cuda"):
        raise Unsupported(
            f"ejkernel: platform='{platform.value}' means cuda, which needs a CUDA device, and JAX's default device is "
            f"{kind}; leave the platform out, or name xla or {kind}"
        )
    say_once(f"ejkernel: platform='{platform.value}' means cuda here: there are CUDA kernels in its place")
    return Platform.CUDA.value


def library_backend(backend: str | Backend | None) -> str | None:
    """A backend as the library's calls take it."""
    return None if backend is None or backend == "any" else Backend(backend).value
