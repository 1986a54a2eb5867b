"""The committed stubs say what the functions are."""

import ast
import inspect

import pytest

import ejkernel
from ejkernel import _stubs

STUBS = {path.name: text for path, text in _stubs.stubs().items()}


def test_the_committed_stubs_are_current(capsys):
    assert _stubs.main(["--check"]) == 0, capsys.readouterr().out


def test_stale_stubs_are_named_and_written(monkeypatch, tmp_path, capsys):
    stub = tmp_path / "__init__.pyi"
    monkeypatch.setattr(_stubs, "stubs", lambda: {stub: "new"})
    assert _stubs.main(["--check"]) == 1 and str(stub) in capsys.readouterr().out
    assert _stubs.main(["--write"]) == 0 and stub.read_text() == "new"
    assert _stubs.main(["--check"]) == 0


@pytest.mark.parametrize("name", STUBS)
def test_signatures_are_those_at_run_time(name):
    p = inspect.Parameter
    if name == "torch.pyi":
        pytest.importorskip("torch", reason="ejkernel.torch needs torch")
        import ejkernel.torch as module
    else:
        module = ejkernel
    functions = [node for node in ast.parse(STUBS[name]).body if isinstance(node, ast.FunctionDef)]
    with_status = [f.name for f in functions if f.args.vararg]
    functions = [f for f in functions if not f.args.vararg]
    assert functions and with_status == [f.name for f in functions]
    for function in functions:
        arguments = function.args
        positional = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
        stub = [(a.arg, p.POSITIONAL_OR_KEYWORD, d) for a, d in zip(arguments.args, positional, strict=True)]
        stub += [(a.arg, p.KEYWORD_ONLY, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
        runtime = inspect.signature(getattr(module, function.name)).parameters.values()
        assert [(x, kind, p.empty if d is None else ast.literal_eval(d)) for x, kind, d in stub] == [
            (x.name, x.kind, x.default) for x in runtime
        ]


def test_every_public_name_has_its_type():
    tree = ast.parse(STUBS["__init__.pyi"]).body
    names = {node.name for node in tree if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    names |= {alias.asname for node in tree if isinstance(node, ast.ImportFrom) for alias in node.names}
    names |= {node.target.id for node in tree if isinstance(node, ast.AnnAssign)}
    assert set(ejkernel.__all__) <= names


def test_results_have_the_fields_that_they_have_at_run_time():
    for node in ast.parse(STUBS["__init__.pyi"]).body:
        if isinstance(node, ast.ClassDef):
            assert tuple(field.target.id for field in node.body) == getattr(ejkernel, node.name)._fields
