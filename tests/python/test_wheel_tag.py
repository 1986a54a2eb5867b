"""tools/wheel/tag.py reads what readelf reads, and refuses what is too new."""

import importlib
import os
import re
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "wheel"))
import tag

LIBRARY = Path(os.environ["EJKERNEL_LIBRARY"])


def wheel_of(folder: Path, **files: bytes) -> Path:
    path = folder / "any-1-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def test_the_library_is_read_as_readelf_reads_it():
    def readelf(option: str) -> str:
        return subprocess.run(["readelf", "-W", option, LIBRARY], check=True, capture_output=True, text=True).stdout

    elf = tag.Elf(LIBRARY.read_bytes())
    assert elf.versions == set(re.findall(r"Name: ([A-Z]+_[0-9.]+)  Flags", readelf("-V")))
    assert elf.libraries == set(re.findall(r"Shared library: \[(.*)\]", readelf("-d")))
    assert any(version.startswith("GLIBC_") for version in elf.versions)


def test_the_library_and_its_program_run_wherever_the_tag_says(tmp_path):
    elf = tag.Elf(LIBRARY.read_bytes())
    assert tag.refusals(elf, own=set()) == []
    program = LIBRARY.parent.parent / "bin" / "ejk"
    if program.exists():  # not where the library alone is built
        assert tag.refusals(tag.Elf(program.read_bytes()), own={"libejkernel.so.0"}) == []
    assert tag.tag_of(wheel_of(tmp_path, library=LIBRARY.read_bytes(), text=b"text")) == f"manylinux_2_34_{elf.machine}"


def built_wheel(folder: Path, program: bytes) -> Path:
    about = {"WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-linux_x86_64\n", "RECORD": b""}
    files = {f"any-1.dist-info/{name}": data for name, data in about.items()}
    files = {"any/_sdk/lib/library.so": program} | files
    files["any-1.dist-info/RECORD"] = "".join(
        (tag._record(name, data) if data else f"{name},,") + "\n" for name, data in files.items()
    ).encode()
    return wheel_of(folder, **files)


def backend_over(monkeypatch, build_wheel):
    """tools/wheel/backend.py over a scikit-build-core that builds so."""
    core = types.ModuleType("scikit_build_core.build")
    core.build_wheel, core.build_sdist = build_wheel, "its own"
    monkeypatch.setitem(sys.modules, "scikit_build_core", types.ModuleType("scikit_build_core"))
    monkeypatch.setitem(sys.modules, "scikit_build_core.build", core)
    monkeypatch.delitem(sys.modules, "backend", raising=False)
    return importlib.import_module("backend")


def test_what_pip_builds_has_the_tag_that_its_programs_allow(tmp_path, monkeypatch):
    library = LIBRARY.read_bytes()
    backend = backend_over(monkeypatch, lambda folder, *_: built_wheel(Path(folder), library).name)
    name = backend.build_wheel(str(tmp_path))
    expected = f"py3-none-manylinux_2_34_{tag.Elf(library).machine}"
    assert name == f"any-1-{expected}.whl" and [path.name for path in tmp_path.iterdir()] == [name]
    assert backend.build_sdist == "its own"
    with zipfile.ZipFile(tmp_path / name) as wheel:
        about, record = (wheel.read(f"any-1.dist-info/{file}").decode() for file in ("WHEEL", "RECORD"))
        assert f"Tag: {expected}\n" in about and wheel.read("any/_sdk/lib/library.so") == library
    assert tag._record("any-1.dist-info/WHEEL", about.encode()) in record.splitlines()
    assert tag._record("any/_sdk/lib/library.so", library) in record.splitlines()
    assert tag.retag(tmp_path / name) == tmp_path / name


def test_what_pip_builds_on_a_newer_system_is_for_that(tmp_path, monkeypatch, capsys):
    newer = LIBRARY.read_bytes().replace(b"\0GLIBC_2.34\0", b"\0GLIBC_2.39\0")
    backend = backend_over(monkeypatch, lambda folder, *_: built_wheel(Path(folder), newer).name)
    assert backend.build_wheel(str(tmp_path)) == "any-1-py3-none-linux_x86_64.whl"
    assert "GLIBC_2.39, newer than 2.34; it keeps the tag of this system" in capsys.readouterr().out


def test_what_is_newer_or_unknown_is_refused_with_every_reason(tmp_path):
    elf = tag.Elf(LIBRARY.read_bytes())
    elf.versions = {"GLIBC_2.34", "GLIBC_2.35", "GLIBC_PRIVATE", "GLIBCXX_3.4.30", "GLIBCXX_3.4.3", "OPENSSL_3.0.0"}
    elf.libraries = {"libc.so.6", "libssl.so.3", "libown.so"}
    assert tag.refusals(elf, own={"libown.so"}) == [
        "needs libssl.so.3",
        "asks for GLIBCXX_3.4.30, newer than 3.4.29",
        "asks for GLIBC_2.35, newer than 2.34",
        "asks for GLIBC_PRIVATE",
        "asks for OPENSSL_3.0.0",
    ]
    newer = LIBRARY.read_bytes().replace(b"\0GLIBC_2.34\0", b"\0GLIBC_2.39\0")
    with pytest.raises(ValueError, match=r"library asks for GLIBC_2\.39, newer than 2\.34"):
        tag.tag_of(wheel_of(tmp_path, library=newer))


def test_a_wheel_without_programs_has_no_tag(tmp_path):
    with pytest.raises(ValueError, match="programs for one kind of processor"):
        tag.tag_of(wheel_of(tmp_path, text=b"text"))
