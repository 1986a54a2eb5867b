"""Where the native library and the rest of the C++ SDK lie: in the installed wheel, or in a source tree's build."""

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_SDK = _PACKAGE / "_sdk"
_SOURCE_TREE = _PACKAGE.parent.parent


def library_path() -> Path:
    """The native library: EJKERNEL_LIBRARY, else the wheel's, else what ./dev built in this source tree."""
    named = os.environ.get("EJKERNEL_LIBRARY")
    if named:
        if not os.path.isabs(named) or not os.path.isfile(named):
            raise ImportError(
                f"environment: EJKERNEL_LIBRARY must be the absolute path of libejkernel.so, got '{named}'; "
                "correct the variable or unset it"
            )
        return Path(named)
    # A wheel holds it under one name, which ends in the major version; libejkernel.so there is for linkers.
    candidates = sorted(_SDK.glob("lib/libejkernel.so.*"))
    candidates += [_SOURCE_TREE / "build" / preset / "lib" / "libejkernel.so" for preset in ("release", "dev")]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ImportError(
        f"ejkernel: there is no native library in {_SDK / 'lib'}; install the wheel, or build it in a source tree "
        "(cmake --preset release && cmake --build --preset release), or set EJKERNEL_LIBRARY to the path of libejkernel.so"
    )


def tool_path() -> Path | None:
    """The program `ejk` that came with the library, where one did."""
    tool = library_path().parent.parent / "bin" / "ejk"
    return tool if tool.is_file() else None


def sdk_dir() -> Path:
    """The C++ SDK, an installation prefix: bin, include, lib, share."""
    if not _SDK.is_dir():
        raise FileNotFoundError(
            f"ejkernel: there is no C++ SDK in {_SDK}; install the wheel, which holds it (pip install .), or install the "
            "library itself (cmake --install build/release --prefix <where>)"
        )
    return _SDK


def cmake_dir() -> Path:
    """The folder of ejkernelConfig.cmake: what ejkernel_DIR or CMAKE_PREFIX_PATH takes."""
    return sdk_dir() / "lib" / "cmake" / "ejkernel"


def include_dir() -> Path:
    """What a compiler's -I takes."""
    return sdk_dir() / "include"
