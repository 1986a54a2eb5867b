#!/usr/bin/env python3
"""Uses a wheel as a stranger does: check.py WHEEL.

In an empty environment, with packages from PyPI and none from a cache: installs it, makes a first call from JAX and
compares that with the formula, all within a minute; then builds and runs a CMake project against the C++ SDK in it, and
its program ejk. The tag is compared with what the wheel's programs ask of the system.
"""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tag

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 60

FIRST_CALL = """
import jax, jax.numpy as jnp, numpy
import ejkernel

query, key, value = (jax.random.normal(jax.random.key(i), (2, 128, 4, 64)) for i in range(3))
out, lse = ejkernel.flash_attention(query, key, value, causal=True)

logits = jnp.einsum("bqhd,bkhd->bhqk", query, key) / 8
logits = jnp.where(jnp.tril(jnp.ones((128, 128), bool)), logits, -jnp.inf)
expected = numpy.asarray(jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits), value))
error = numpy.abs(numpy.asarray(out) - expected).max()
assert error < 1e-5, f"flash_attention differs from the formula by {error}"
print(f"jax {jax.__version__}, largest difference from the formula {error:.1e}", flush=True)
"""


def run(*command: str | Path, folder: Path) -> str:
    """What it prints; when it fails, so does this program, with all that it said."""
    done = subprocess.run(command, cwd=folder, env=clean_environment(), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"check.py: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def clean_environment() -> dict[str, str]:
    ours = ("EJKERNEL_", "PYTHON", "VIRTUAL_ENV", "CMAKE_PREFIX_PATH", "LD_LIBRARY_PATH")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {"JAX_PLATFORMS": "cpu"}


def main() -> None:
    wheel = Path(sys.argv[1]).resolve()
    expected = tag.tag_of(wheel)
    if not wheel.name.endswith(f"-py3-none-{expected}.whl"):
        sys.exit(f"check.py: {wheel.name} should be tagged py3-none-{expected}")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = folder / "empty" / "bin" / "python"
        start = time.monotonic()
        run(sys.executable, "-m", "venv", "empty", folder=folder)
        run(python, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "install", wheel, folder=folder)
        print(run(python, "-c", FIRST_CALL, folder=folder))
        seconds = time.monotonic() - start
        print(f"{seconds:.1f} s from an empty environment to the first right result (limit: {LIMIT_SECONDS} s)")

        cmake_dir = Path(run(python, "-m", "ejkernel", "--cmake-dir", folder=folder))
        source = ROOT / "tests" / "consumers" / "cmake"
        run("cmake", "-G", "Ninja", "-S", source, "-B", "consumer", f"-Dejkernel_DIR={cmake_dir}", folder=folder)
        run("cmake", "--build", "consumer", folder=folder)
        print(f"a CMake project with find_package(ejkernel): {run(folder / 'consumer' / 'consumer', folder=folder)}")

        ejk = cmake_dir.parents[2] / "bin" / "ejk"
        run(ejk, "list", folder=folder)
        if platform.machine() == "x86_64":  # the others' wheels hold no CUDA kernels: no compiler is pinned for them
            lines = json.loads(run(ejk, "doctor", "--json", "--seconds", "0", folder=folder))["lines"]
            programs = next(line["found"] for line in lines if line["what"] == "programs")
            print(f"CUDA kernels: {programs}")
            if not re.search(r"\d+ for sm_80, \d+ for sm_90a", programs):
                sys.exit("check.py: the wheel should hold CUDA kernels for sm_80 and sm_90a")
        if seconds > LIMIT_SECONDS:
            sys.exit(f"check.py: the first right result took {seconds:.1f} s")
    print(f"{wheel.name}: all right")


if __name__ == "__main__":
    main()
