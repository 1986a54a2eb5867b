"""tools/wheel/tag.py reads what readelf reads, and refuses what is too new."""

import os
import re
import subprocess
import sys
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


def test_the_library_runs_wherever_the_tag_says(tmp_path):
    elf = tag.Elf(LIBRARY.read_bytes())
    assert tag.refusals(elf, own=set()) == []
    assert tag.tag_of(wheel_of(tmp_path, library=LIBRARY.read_bytes(), text=b"text")) == f"manylinux_2_34_{elf.machine}"


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
