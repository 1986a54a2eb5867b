"""Operations that update an input (updates.py), which none but a plug-in's is small enough for: in a process that has it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PLUGIN = Path(os.environ["EJKERNEL_LIBRARY"]).parent.parent / "plugins" / "toy_append.so"


def test_inputs_are_updated(tmp_path):
    if not PLUGIN.exists():
        pytest.skip("the plug-in is built with the tests")
    plugin = tmp_path / PLUGIN.name
    shutil.copyfile(PLUGIN, plugin)
    plugin.chmod(0o644)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "updates.py")]
    result = subprocess.run(command, env=os.environ | {"EJKERNEL_PLUGINS": str(plugin)}, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
