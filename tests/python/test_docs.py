"""The Python of the pages runs as it is written."""

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/jax.md"])
def test_python_blocks_run_in_order(page, capsys):
    text = (SOURCE / page).read_text()
    blocks = list(BLOCK.finditer(text))
    assert blocks or page != "docs/jax.md"
    namespace = {}
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], page, "exec"), namespace)  # errors name the page's line
    if page == "docs/jax.md":
        assert "flash_attention: key head_dim must equal query head_dim 32, got 16" in capsys.readouterr().out
