"""Where the package looks for the native library and the SDK."""

import os
import shutil
from importlib import util
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "python" / "ejkernel" / "_sdk_paths.py"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A source tree with nothing but the module."""
    monkeypatch.delenv("EJKERNEL_LIBRARY", raising=False)
    (tmp_path / "python" / "ejkernel").mkdir(parents=True)
    shutil.copy(SOURCE, tmp_path / "python" / "ejkernel")
    return tmp_path.resolve()


def paths_in(tree: Path):
    spec = util.spec_from_file_location("sdk_paths", tree / "python" / "ejkernel" / "_sdk_paths.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_the_nearest_library_is_taken(tree, monkeypatch):
    paths = paths_in(tree)
    with pytest.raises(ImportError, match="there is no native library in .*_sdk/lib; install the wheel, or build it"):
        paths.library_path()
    dev = touch(tree / "build" / "dev" / "lib" / "libejkernel.so")
    assert paths.library_path() == dev
    release = touch(tree / "build" / "release" / "lib" / "libejkernel.so")
    assert paths.library_path() == release
    touch(tree / "python" / "ejkernel" / "_sdk" / "lib" / "libejkernel.so")  # a script for linkers
    wheel = touch(tree / "python" / "ejkernel" / "_sdk" / "lib" / "libejkernel.so.0")
    assert paths.library_path() == wheel
    monkeypatch.setenv("EJKERNEL_LIBRARY", str(dev))
    assert paths.library_path() == dev
    monkeypatch.setenv("EJKERNEL_LIBRARY", "")
    assert paths.library_path() == wheel


@pytest.mark.parametrize("value", ["libejkernel.so", "/nowhere/libejkernel.so", os.sep])
def test_a_wrong_variable_is_refused_by_name(tree, monkeypatch, value):
    touch(tree / "build" / "dev" / "lib" / "libejkernel.so")
    monkeypatch.setenv("EJKERNEL_LIBRARY", value)
    with pytest.raises(ImportError, match=f"^environment: EJKERNEL_LIBRARY must be .*, got '{value}'; "):
        paths_in(tree).library_path()


def test_the_sdk_is_the_wheels(tree):
    paths = paths_in(tree)
    for place in (paths.sdk_dir, paths.cmake_dir, paths.include_dir):
        with pytest.raises(FileNotFoundError, match="there is no C\\+\\+ SDK in .*_sdk; install the wheel"):
            place()
    sdk = tree / "python" / "ejkernel" / "_sdk"
    sdk.mkdir()
    assert paths.sdk_dir() == sdk
    assert paths.cmake_dir() == sdk / "lib" / "cmake" / "ejkernel"
    assert paths.include_dir() == sdk / "include"
