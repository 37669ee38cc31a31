"""What the package never does: guess at attributes, swallow errors, unpickle, hide annotations from shape checks."""

import ast
from collections.abc import Iterator

import pytest

from tests.structure.source import Source, assert_none, findings, last_name, planted

PICKLING = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def forbidden(source: Source) -> Iterator[str]:
    """Each forbidden construct, with the reason."""
    for node in ast.walk(source.tree):
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


def test_nothing_forbidden_is_used() -> None:
    assert_none(findings(forbidden))


@pytest.mark.parametrize(
    "text",
    [
        "hasattr(x, 'y')",
        "getattr(x, 'y', None)",
        "from __future__ import annotations",
        "try:\n    f()\nexcept:\n    pass",
        "try:\n    f()\nexcept Exception:\n    pass",
        "try:\n    f()\nexcept (ValueError, builtins.BaseException) as error:\n    pass",
        "try:\n    f()\nexcept Exception as error:\n    raise ValueError('wrong') from error",
        "torch.load(path)",
        "from torch import load",
        "import pickle",
        "def f():\n    from joblib.memory import Memory",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_each_is_found(text: str) -> None:
    assert len(list(forbidden(planted(text)))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "getattr(x, name)",
        "from __future__ import division",
        "try:\n    f()\nexcept (ValueError, OSError):\n    pass",
        "try:\n    f()\nexcept BaseException:\n    clear_up()\n    raise",
        "np.load(path, allow_pickle=False)",
        "load_file(path)",
    ],
)
def test_the_permitted_is_not(text: str) -> None:
    assert list(forbidden(planted(text))) == []
