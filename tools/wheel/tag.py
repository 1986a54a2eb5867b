#!/usr/bin/env python3
"""Names a wheel after the systems that it runs on: tag.py WHEEL.

Reads which versions of the C and C++ libraries its programs ask for and, where manylinux_2_34 has them all (Debian 12,
Ubuntu 22.04, Red Hat 9 and later), gives it that tag; otherwise fails with what is too new.
"""

import base64
import hashlib
import re
import struct
import sys
import zipfile
from pathlib import Path

# What a manylinux_2_34 system holds: its libraries, and the newest version of each kind of their symbols.
GLIBC = (2, 34)
NEWEST = {"GLIBC": GLIBC, "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (7, 0, 0)}
LIBRARIES = {
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libstdc++.so.6",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}
MACHINES = {62: "x86_64", 183: "aarch64"}

SHT_DYNAMIC, SHT_GNU_VERNEED = 6, 0x6FFFFFFE
DT_NEEDED = 1


class Elf:
    """What a 64-bit little-endian ELF file asks of other libraries."""

    def __init__(self, data: bytes):
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        self.machine: str = MACHINES[struct.unpack_from("<H", data, 18)[0]]
        self.libraries: set[str] = set()
        self.versions: set[str] = set()
        self._data = data
        (table,) = struct.unpack_from("<Q", data, 40)
        size, count = struct.unpack_from("<HH", data, 58)
        # Of a section: type, offset, length, and the section of its strings.
        sections = [struct.unpack_from("<4xI16xQQI", data, table + size * i) for i in range(count)]
        for kind, offset, length, link in sections:
            if kind == SHT_GNU_VERNEED:
                self._read_versions(offset, strings=sections[link][1])
            elif kind == SHT_DYNAMIC:
                self._read_libraries(offset, length, strings=sections[link][1])

    def _string(self, offset: int) -> str:
        return self._data[offset : self._data.index(b"\0", offset)].decode()

    def _read_libraries(self, offset: int, length: int, strings: int) -> None:
        for tag, value in struct.iter_unpack("<qQ", self._data[offset : offset + length]):
            if tag == DT_NEEDED:
                self.libraries.add(self._string(strings + value))

    def _read_versions(self, offset: int, strings: int) -> None:
        while True:  # one entry for each library, and in it one for each version
            first, following = struct.unpack_from("<8xII", self._data, offset)
            at = offset + first
            while True:
                name, behind = struct.unpack_from("<8xII", self._data, at)
                self.versions.add(self._string(strings + name))
                if not behind:
                    break
                at += behind
            if not following:
                return
            offset += following


def refusals(elf: Elf, own: set[str]) -> list[str]:
    """Why it does not run on every manylinux_2_34 system; `own` are the libraries that come with it."""
    found = [f"needs {name}" for name in sorted(elf.libraries - LIBRARIES - own)]
    for version in sorted(elf.versions):
        kind, _, number = version.rpartition("_")
        newest = NEWEST.get(kind)
        if newest is None or not all(part.isdigit() for part in number.split(".")):
            found.append(f"asks for {version}")
        elif tuple(int(part) for part in number.split(".")) > newest:
            found.append(f"asks for {version}, newer than {'.'.join(map(str, newest))}")
    return found


def tag_of(wheel: Path) -> str:
    """The platform tag that the wheel's files allow. Raises ValueError with every reason against it."""
    with zipfile.ZipFile(wheel) as archive:
        programs = {
            name: Elf(archive.read(name)) for name in archive.namelist() if archive.open(name).read(4) == b"\x7fELF"
        }
    own = {Path(name).name for name in programs}
    reasons = [f"{name} {reason}" for name, elf in programs.items() for reason in refusals(elf, own)]
    machines = {elf.machine for elf in programs.values()}
    if len(machines) != 1:
        reasons.append(f"programs for one kind of processor were expected, there are {sorted(machines)}")
    if reasons:
        raise ValueError(f"{wheel.name} is no manylinux_{GLIBC[0]}_{GLIBC[1]} wheel: " + "; ".join(reasons))
    return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machines.pop()}"


def retag(wheel: Path) -> Path:
    """The wheel under the name and with the tag that its programs allow; the old one is gone. Raises as tag_of does."""
    platform = tag_of(wheel)
    target = wheel.with_name("-".join([*wheel.stem.split("-")[:-1], platform]) + ".whl")
    if target == wheel:
        return wheel
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(target, "w") as new:
        changed = {}
        for entry in old.infolist():  # RECORD, with every file's digest, is the last
            data = old.read(entry)
            if entry.filename.endswith(".dist-info/WHEEL"):
                data = re.sub(rb"(?m)^(Tag: \S+-)[^-\s]+$", rb"\g<1>" + platform.encode(), data)
                changed[entry.filename] = _record(entry.filename, data)
            elif entry.filename.endswith(".dist-info/RECORD"):
                lines = data.decode().splitlines()
                data = "".join(changed.get(line.split(",")[0], line) + "\n" for line in lines).encode()
            new.writestr(entry, data)
    wheel.unlink()
    return target


def _record(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


def main() -> None:
    (wheel,) = map(Path, sys.argv[1:])
    try:
        wheel = retag(wheel)
    except ValueError as error:
        sys.exit(f"tag.py: {error}")
    print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
