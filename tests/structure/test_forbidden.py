"""What the package never does: guess at attributes, swallow errors, unpickle, hide annotations from shape checks.

Neither the package nor a test reads the fields of a report through `vars`, which mypy does not check.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.structure.source import ROOT, Source, assert_none, findings, last_name, planted

PICKLING = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def forbidden(source: Source) -> Iterator[str]:
    """Each forbidden construct, with the reason."""
    for node in source.nodes:
        reason = _reason(node)
        if reason:
            assert isinstance(node, ast.stmt | ast.expr | ast.excepthandler)
            yield f"{source.at(node)}: {reason}"


def _reason(node: ast.AST) -> str | None:
    match node:
        case ast.Call(func=ast.Name(id="hasattr")):
            return "hasattr: say what is there by a type"
        case ast.Call(func=ast.Name(id="getattr"), args=[_, _, _]):
            return "getattr with a default: say what is there by a type"
        case ast.ImportFrom(module="__future__", names=names) if any(alias.name == "annotations" for alias in names):
            return "annotations as strings: shape checks may skip them"
        case ast.ExceptHandler(type=caught, body=body) if _is_broad(caught) and not _passes_on(body):
            return "broad except: name the exception"
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load")):
            return "torch.load: checkpoints are safetensors"
        case ast.ImportFrom(module="torch", names=names) if any(alias.name == "load" for alias in names):
            return "torch.load: checkpoints are safetensors"
        case ast.Import(names=names) if any(alias.name.split(".")[0] in PICKLING for alias in names):
            return "pickling executes what it reads"
        case ast.ImportFrom(module=str(module)) if module.split(".")[0] in PICKLING:
            return "pickling executes what it reads"
        case ast.Call(keywords=keywords) if any(_allows_pickle(keyword) for keyword in keywords):
            return "pickling executes what it reads"
    return None


def _is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(last_name(name) in ("Exception", "BaseException") for name in names)


def _passes_on(body: list[ast.stmt]) -> bool:
    """Whether a handler clears up and raises the same error again."""
    return isinstance(body[-1], ast.Raise) and body[-1].exc is None


def _allows_pickle(keyword: ast.keyword) -> bool:
    return keyword.arg == "allow_pickle" and not (
        isinstance(keyword.value, ast.Constant) and keyword.value.value is False
    )


def through_vars(source: Source) -> Iterator[str]:
    """Each report whose fields are read through `vars`, and each frozen class that writes its own through it."""
    for node in source.nodes:
        match node:
            case ast.Subscript(value=ast.Call(func=ast.Name(id="vars"), args=[ast.Name(id="self")]), ctx=ast.Store()):
                yield f"{source.at(node)}: writing through vars: the class is frozen"
            case ast.Call(func=ast.Name(id="vars"), args=[own]) if _is_report(own):
                yield f"{source.at(node)}: vars of a report: use report.estimate(name), or diagnosis[ReportClass].field"


def _is_report(node: ast.expr) -> bool:
    """Whether an expression is a report by its form: its name, an entry of a diagnosis, or a loaded one."""
    match node:
        case ast.Name(id=name):
            return name == "report" or name.endswith("_report")
        case ast.Subscript(value=ast.Name(), slice=ast.Constant(value=str()) | ast.Name()):
            return True
        case ast.Call():
            return last_name(node) == "load_report"
    return False


def companions(source: Source) -> Iterator[str]:
    """Each field of a class that holds an end of an interval or a baseline of another, as an `Estimate` does."""
    for own in source.classes():
        for node in own.body:
            match node:
                case ast.AnnAssign(target=ast.Name(id=name)) if name.endswith(("_lo", "_hi", "_null")):
                    yield f"{source.at(node)}: field {name}: use an Estimate, or a name that says what it is"


def test_no_class_has_a_field_for_an_end_of_an_interval() -> None:
    assert_none(findings(companions))
    text = "class A:\n    memory: float\n    memory_hi: float = 0.0\n    hi: float\n"
    assert [own.split(": ")[1] for own in companions(planted(text))] == ["field memory_hi"]


def test_nothing_forbidden_is_used() -> None:
    assert_none(findings(forbidden))


def test_no_report_is_read_through_vars() -> None:
    paths = sorted((ROOT / "tests").rglob("*.py"))
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    tests = [planted(text, name) for name, text in texts.items() if "vars(" in text]
    assert len(tests) > 9
    assert_none([*findings(through_vars), *(found for source in tests for found in through_vars(source))])


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("vars(report)['kl_bits'].value", True),
        ("vars(diagnosis[name])[field]", True),
        ("vars(bayesgeom.load_report(folder))['mode']", True),
        ("vars(self)['reports'] = owned", True),
        ("report.estimate('kl_bits').value", False),
        ("vars(trials)[name]", False),
    ],
)
def test_reading_through_vars_is_found(text: str, is_found: bool) -> None:
    assert len(list(through_vars(planted(text)))) == is_found


@pytest.mark.parametrize(
    "text",
    [
        "hasattr(x, 'y')",
        "getattr(x, 'y', None)",
        "from __future__ import annotations",
        "try:\n    f()\nexcept:\n    pass",
        "try:\n    f()\nexcept (ValueError, builtins.BaseException) as error:\n    pass",
        "try:\n    f()\nexcept Exception as error:\n    raise ValueError('wrong') from error",
        "torch.load(path)",
        "def f():\n    from joblib.memory import Memory",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_each_is_found(text: str) -> None:
    assert len(list(forbidden(planted(text)))) == 1


def test_the_permitted_is_not() -> None:
    text = "getattr(x, name)\ntry:\n    f()\nexcept BaseException:\n    g()\n    raise\nnp.load(p, allow_pickle=False)"
    assert list(forbidden(planted(text))) == []
