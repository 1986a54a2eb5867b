"""Configs on disk: one file per record, written beside its place and renamed, read as a miss when anything is wrong
with it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ejkernel.ops.utils.serialize import from_json, name_of_type, stable_json, to_json

_SCHEMA = 1
_ABANDONED_SECONDS = 3600


def default_path() -> Path:
    """EJKERNEL_CACHE_DIR, else $XDG_CACHE_HOME/ejkernel, else ~/.cache/ejkernel; there, the folder python_configs."""
    root = os.environ.get("EJKERNEL_CACHE_DIR")
    base = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ejkernel"
    return base / "python_configs"


class PersistentCache:
    """Configs by key, in a folder that any number of processes share. Nothing is read or made before it is used."""

    def __init__(self, path: str | os.PathLike[str] | None = None, cfg_type: type | None = None):
        self.path = Path(path).expanduser() if path is not None else default_path()
        self.cfg_type = cfg_type

    def put(self, key: Any, config: Any) -> None:
        """Atomic: others see the old record or the new one, after a crash as well. OSError where the folder cannot be
        written."""
        content = {"schema": _SCHEMA, "key": _text(key), "type": name_of_type(type(config)), "config": to_json(config)}
        record = json.dumps(content | {"digest": _digest(content)}, indent=1)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sweep()
        handle, temporary = tempfile.mkstemp(dir=self.path, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(record)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._file(key))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def get(self, key: Any, cfg_type: type | None = None) -> Any:
        """The config, or None: there is no record, it is damaged, or it is of another type or other fields."""
        try:
            content = json.loads(self._file(key).read_text(encoding="utf-8"))
            digest = content.pop("digest")
            if content["schema"] != _SCHEMA or content["key"] != _text(key) or digest != _digest(content):
                return None
            cls = cfg_type or self.cfg_type or _loaded_type(content["type"])
            if cls is None or name_of_type(cls) != content["type"]:
                return None
            return from_json(content["config"], cls)
        except Exception:  # whatever a type makes of a record that is not its own
            return None

    def __contains__(self, key: Any) -> bool:
        return self.get(key) is not None

    def clear(self) -> None:
        """Deletes every record in the folder."""
        for file in self.path.glob("*.json"):
            file.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Deletes what processes left that died while they wrote."""
        for file in self.path.glob(".*.tmp"):
            with contextlib.suppress(OSError):
                if time.time() - file.stat().st_mtime > _ABANDONED_SECONDS:
                    file.unlink()

    def _file(self, key: Any) -> Path:
        return self.path / f"{hashlib.sha256(_text(key).encode()).hexdigest()[:32]}.json"


def _text(key: Any) -> str:
    return key if isinstance(key, str) else stable_json(key)


def _digest(content: Any) -> str:
    return hashlib.sha256(stable_json(content).encode()).hexdigest()


def _loaded_type(name: str) -> type | None:
    """The dataclass or built-in type of that name, of a module that the program has imported: a record imports
    nothing."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    wanted = dataclasses.is_dataclass(found) or found in (dict, list, int, float, str)
    return found if isinstance(found, type) and wanted else None
