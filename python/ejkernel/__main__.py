"""python -m ejkernel: where the parts of the package are, and whether they work on this machine."""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from collections.abc import Callable

import jax
import jaxlib
import numpy as np

import ejkernel
from ejkernel import _library, _sdk_paths

_TOLERANCE = 5e-3  # of float32, which a GPU's matrix units may round to 10 bits; what is wrong is wrong by about 1


def _plain_attention(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """softmax(query keyᵀ / √head_dim) value over [batch, length, heads, head_dim], in float64."""
    scores = np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(query.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(axis=-1, keepdims=True), value)


def _package() -> str:
    return f"{ejkernel.__version__}, Python {platform.python_version()}"


def _native_library() -> str:
    return f"{_library.version()}, {_sdk_paths.library_path()}"


def _jax() -> str:
    return f"{jax.__version__}, jaxlib {jaxlib.__version__}, default backend {jax.default_backend()}"


def _devices() -> str:
    return ", ".join(f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices())


def _first_call() -> str:
    """A small call on the default backend, compared with the formula."""
    arrays = np.random.default_rng(0).standard_normal((3, 1, 16, 2, 32))
    inputs = [np.float32(x) for x in arrays]
    lowered = jax.jit(lambda *qkv: ejkernel.flash_attention(*qkv, policy="heuristics").out).lower(*inputs)
    error = np.abs(np.asarray(lowered.compile()(*inputs)) - _plain_attention(*arrays)).max()
    calls = ejkernel.planned_calls_in(lowered.as_text())
    how = f"kernel {calls[0]['call']['kernel']}, run by XLA" if calls else "platform xla, compiled by XLA"
    found = f"flash_attention by {how}; {error:.1e} from the formula"
    if not error < _TOLERANCE:
        raise AssertionError(f"{found}: the result is wrong; please report this text")
    return found


def _line(what: str, look: Callable[[], str]) -> bool:
    """One line of the examination; whether nothing was wrong."""
    try:
        verdict, found = "ok", look()
    except Exception as error:  # whatever it is, the examination goes on
        verdict, found = "fail", str(error)
    print(f"{verdict:<4}  {what:<11}  {found}", flush=True)
    return verdict == "ok"


def doctor() -> int:
    """The package's lines, then those of the library's own doctor; 1 when something is wrong."""
    lines = {
        "package": _package,
        "library": _native_library,
        "jax": _jax,
        "devices": _devices,
        "first call": _first_call,
    }
    works = [_line(what, look) for what, look in lines.items()]
    tool = _sdk_paths.tool_path()
    if tool is None:
        print("      ejk          not beside the library; its own examination is left out")
        return int(not all(works))
    print(f"\n{tool} doctor", flush=True)
    works.append(subprocess.run([tool, "doctor"], check=False).returncode == 0)
    return int(not all(works))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ejkernel", description="Where ejkernel is, and whether it works.")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("command", nargs="?", choices=["doctor"], help="examine package, library, JAX and machine")
    asked.add_argument("--version", action="store_true", help="the version of package and library")
    asked.add_argument("--cmake-dir", action="store_true", help="what CMake's ejkernel_DIR takes")
    asked.add_argument("--include-dir", action="store_true", help="what a compiler's -I takes")
    chosen = parser.parse_args(arguments)
    if chosen.command == "doctor":
        return doctor()
    try:
        if chosen.version:
            print(ejkernel.__version__)
        else:
            print(_sdk_paths.cmake_dir() if chosen.cmake_dir else _sdk_paths.include_dir())
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
