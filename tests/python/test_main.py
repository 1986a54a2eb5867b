"""python -m ejkernel."""

import pytest

import ejkernel
from ejkernel import __main__ as program
from ejkernel import _sdk_paths


def test_version_and_places_are_printed(monkeypatch, capsys, tmp_path):
    assert program.main(["--version"]) == 0
    assert capsys.readouterr().out == ejkernel.__version__ + "\n"
    monkeypatch.setattr(_sdk_paths, "_SDK", tmp_path)
    assert program.main(["--cmake-dir"]) == program.main(["--include-dir"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'lib' / 'cmake' / 'ejkernel'}\n{tmp_path / 'include'}\n"


def test_a_missing_sdk_is_told(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(_sdk_paths, "_SDK", tmp_path / "gone")
    assert program.main(["--cmake-dir"]) == 1
    assert "there is no C++ SDK" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["cure"], ["doctor", "--version"]])
def test_other_words_are_refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        program.main(words)
    assert ended.value.code == 2
    assert "usage: python -m ejkernel" in capsys.readouterr().err


@pytest.fixture
def tool(monkeypatch, tmp_path):
    """In the place of the library's own doctor, which examines the machine for seconds: a program with this exit code."""

    def make(exit_code: int) -> None:
        path = tmp_path / "ejk"
        path.write_text(f'#!/bin/sh\necho "examined: $1"\nexit {exit_code}\n')
        path.chmod(0o755)
        monkeypatch.setattr(_sdk_paths, "tool_path", lambda: path)

    return make


def test_the_doctor_looks_at_everything(tool, capfd):
    tool(0)
    assert program.main(["doctor"]) == 0
    out = capfd.readouterr().out
    for what in ("package", "library", "jax", "devices"):
        assert f"ok    {what}  " in out
    assert "flash_attention by kernel cpu, run by XLA" in out
    assert "examined: doctor" in out


def test_the_doctor_says_what_is_wrong(tool, monkeypatch, capfd):
    tool(1)
    assert program.main(["doctor"]) == 1
    tool(0)
    monkeypatch.setattr(program, "_plain_attention", lambda query, key, value: query + 1)
    assert program.main(["doctor"]) == 1
    out = capfd.readouterr().out
    assert "fail  first call" in out and "the result is wrong" in out
    monkeypatch.undo()
    monkeypatch.setattr(_sdk_paths, "tool_path", lambda: None)
    assert program.main(["doctor"]) == 0
    assert "not beside the library" in capfd.readouterr().out
