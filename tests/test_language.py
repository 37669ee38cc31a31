"""The word list: texts that users read have the standard words of the field, not private ones.

The test is a backstop: it finds words, not clumsy sentences. A line that quotes such a word says so at its end, in an
HTML comment or a code comment: `language: quoted`. The glossary and the committed readings are exempt.
"""

import ast
import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayesgeom.cli import COMMANDS, parsed

ROOT = Path(__file__).parents[1]
EXEMPT = "language: quoted"
EFFECT = r"(?:heads?|layers?|sublayers?|blocks?|MLPs?|components?|ablat\w+|battery|batteries|bits|KL|sequence)"
SPELLING = (
    r"(?:optim|normal|general|real|organ|minim|maxim|util|standard|regular|random|special|visual|vector|token|linear|"
    r"local|penal|factor|stabil)is(?:e[sdr]?|ing|ations?)\b|initialis|summaris|parameteris|recognis|"
    r"behaviour|colour|favour|neighbour|cent(?:re[sd]?|ring)\b|label(?:ling|led)\b|modell(?:ed|ing|er)\b|travell|"
    r"cancell(?:ed|ing)\b|analys(?:e|ed|ing)\b|artefact|grey\b|towards\b"
)
INSTEAD = {
    r"nulls?\b(?! hypothesis| distribution| space|\.)": "baseline or chance level",
    r"nulls?\.(?! ?json)": "baseline or chance level",
    r"fresh cop(?:y|ies)|copies at initiali[sz]ation": "untrained network",
    r"reali[sz]ed answers?": "label",
    r"(?<!memory )leak(?:s|ed|age)?\b": "off-answer probability",
    rf"damages?\b(?=.*\b{EFFECT}\b)|{EFFECT}(?:'s)? damages?\b|damaged? (?:head|layer|block)s?\b": "KL increase",
    r"taken away|removed parts?\b": "ablated component",
    r"spent values?|live hypothes[ei]s": "used value, consistent hypothesis",
    r"(?<!output )(?<!is )redirect(?:s|ed|ion)?\b(?!.{0,20}\b(?:output|stdout|stderr|standard))": "answer shift",
    r"loners?\b|tiles?\b": "batch, block",
    r"top[- ]to[- ]second": "ratio of the largest to the second-largest effect",
    r"vouch(?:es|ed)? for|gives? away|found out": "verified by, reveals, detected",
    r"arms?\b": "condition, variant, model",
    r"jump(?:s|ed|ing)?\b|crossings?\b": "discontinuity at the training length, threshold",
    # "breaks" in other senses (a broken rule, a line break) is ordinary English.
    r"(?:a|the|no) break\b|breaks? (?:at|beyond) (?:the training length|its training length|nine|\d)": "discontinuity",
    # As nouns in a private sense; a punctuation mark and the verb are ordinary English.
    r"marks? (?:to pass|of degeneration)|(?:papers'|published) marks?\b": "threshold, published threshold",
    r"shel(?:f|ves)\b": "cache, folder of named checkpoints",
    r"aside\b|beside\b|thereby\b": "atomically, next to",
    r"asked\b": "requested",
    # Inference servers and libraries offer things in ordinary English; models and modules do not.
    r"offered\b|offers? (?:a |the |its )?(?:sites?|layers?)\b": "available",
    # "A served model" is one behind an inference server.
    r"served\b(?! models?| at\b| 4-bit)": "supported",
    # A lock is held, a quantity is held fixed, and sequences are held out.
    r"(?<!lock )(?:is|are|was|were|be|been) held\b(?! out| fixed)|holds back\b": "stored",
    # "Told apart" and "told from" are ordinary English.
    r"(?:is|are|was|were|be|been) (?:said|told)\b(?! apart| from)": "reported",
    # "In place" and "in place of" are ordinary English, and the ring of the sticky chain has places.
    r"places? (?:where|of) (?:an? |the )?(?:edits?|interventions?)\b|every place\b": "site, hook point, position",
    # `Trials` is a class of the glossary: a batch of sequences. Counted trials are sequences.
    r"(?:\d|many|few|several|more|all) trials\b": "sequences",
    # "Residual stream", streamed statistics and output streams are standard.
    r"streams? of (?:trials|sequences|batches|blocks)\b": "batches",
    # Results that are kept after a failure are ordinary English.
    r"(?:activations|sequences) (?:are|were) kept\b|kept of\b": "stored",
    r"reali[sz]ed (?:labels?|values?|targets?|symbols?)": "label",
    # The papers' name is quoted where the term is introduced.
    r"(?<!')hypothesis frames?\b(?!')": "key frame",
    r"siblings?\b(?! class| file| test)|lonely\b": "name the thing",
    r"of ours\b|reads nothing|whoever|nobody": "name the thing",
    SPELLING: "American spelling",
}
PATTERNS = {re.compile(rf"\b(?:{words})", re.IGNORECASE): instead for words, instead in INSTEAD.items()}
ANY = re.compile(rf"\b(?:{'|'.join(INSTEAD)})", re.IGNORECASE)
QUOTED = re.compile(r"`[^`]*`|\"[^\"\n]*_[^\"\n]*\"|https?://\S+|\{[^{}]*\}")  # code, identifiers, addresses


def offences(text: str, where: str, first: int = 1) -> Iterator[str]:
    """Every private word in a text, with its line and what to write instead."""
    for number, line in enumerate(text.splitlines(), start=first):
        if EXEMPT in line:
            continue
        plain = QUOTED.sub(" ", line)
        if not ANY.search(plain):
            continue
        for pattern, instead in PATTERNS.items():
            for found in pattern.finditer(plain):
                yield f"{where}:{number}: {found.group()!r}: write {instead}"


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The text of a page without its code blocks, by line."""
    is_code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, line


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings and all other literals of a module, f-strings included.

    One word is a label: the header of a column, the name of a curve, a key of a table. Labels are often made from names
    such as `entropy_error`, so the parts of a name are read as words.
    """
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and EXEMPT not in lines[node.lineno - 1]:
            yield node.lineno, node.value if " " in node.value.strip() else node.value.replace("_", " ")


def help_of(command: str) -> str:
    """What `bayesgeom COMMAND --help` prints; of the command line itself if the command is empty."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        parsed([*([command] if command else []), "--help"])
    return printed.getvalue()


def cells(path: Path) -> Iterator[tuple[int, str]]:
    """The Markdown cells of a notebook, with the number of the cell."""
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"], start=1):
        if cell["cell_type"] == "markdown":
            yield number, " ".join("".join(cell["source"]).splitlines())


def texts(path: Path) -> Iterator[tuple[int, str]]:
    readers = {".md": prose, ".py": strings, ".ipynb": cells}
    return readers[path.suffix](path)


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    """Every name that a module defines, as words: of functions, classes, arguments, variables and attributes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found = name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found = name
            case _:
                continue
        yield node.lineno, as_words(found)


def as_words(names: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", names).replace("_", " ")


def misspelled(source: str) -> list[str]:
    """Names that a module defines in British spelling."""
    spelling = re.compile(rf"\b(?:{SPELLING})", re.IGNORECASE)
    if not spelling.search(as_words(source)):  # most modules: parsing them takes twenty times as long
        return []
    return [f"{line}: {name}: American spelling" for line, name in identifiers(source) if spelling.search(name)]


def pages() -> list[str]:
    roots = [ROOT / name for name in ("README.md", "AGENTS.md", "CHANGELOG.md", "benchmarks/README.md")]
    folders = ((ROOT / "docs").rglob("*.md"), (ROOT / "examples").rglob("*.md"), (ROOT / "examples").glob("*.*"))
    found = [*roots, *(path for folder in folders for path in sorted(folder))]
    names = [path.relative_to(ROOT).as_posix() for path in found if path.name != "glossary.md"]
    return [name for name in names if not name.startswith("examples/replication/results/")]


def folders() -> list[str]:
    return sorted({path.relative_to(ROOT / "bayesgeom").parts[0] for path in (ROOT / "bayesgeom").rglob("*.py")})


def faults(paths: list[Path]) -> list[str]:
    return [
        fault
        for path in paths
        for number, text in texts(path)
        for fault in offences(text, path.relative_to(ROOT).as_posix(), number)
    ]


@pytest.mark.parametrize("page", pages())
def test_pages_use_standard_words(page: str) -> None:
    found = faults([ROOT / page])
    assert not found, f"{len(found)}:\n" + "\n".join(found)


@pytest.mark.parametrize("folder", folders())
def test_texts_in_the_package_use_standard_words(folder: str) -> None:
    where = ROOT / "bayesgeom" / folder
    found = faults(sorted(where.rglob("*.py")) if where.is_dir() else [where])
    assert not found, f"{len(found)}:\n" + "\n".join(found)


@pytest.mark.parametrize("root", ["bayesgeom", "tests", "benchmarks", "examples"])
def test_identifiers_have_american_spelling(root: str) -> None:
    paths = sorted((ROOT / root).rglob("*.py"))
    assert paths
    found = [
        f"{path.relative_to(ROOT)}:{own}" for path in paths for own in misspelled(path.read_text(encoding="utf-8"))
    ]
    assert not found, f"{len(found)}:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "def dimension_utilisation(): ...",
        "def f(favoured): ...",
        "centres = 1",
        "toward, towards_condition = 1, 2",
        "class ColourScale: ...",
        "self.normalised = 1",
        "found = [centre for centre in rows]",
        "async def test_realised_answers(): ...",
    ],
)
def test_british_identifiers_are_found(source: str) -> None:
    assert misspelled(source)


def test_american_identifiers_are_not() -> None:
    source = (
        "class ModelLike: ...\ndef dimension_utilization(centers, favored): ...\ncancellation = analyses = other.grey"
    )
    assert not misspelled(source)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_uses_standard_words(command: str) -> None:
    text = help_of(command)
    assert text.startswith(f"usage: bayesgeom {command}".rstrip())
    assert not list(offences(text, f"{command} --help"))


def test_templates_of_the_report_page_use_standard_words() -> None:
    templates = sorted((ROOT / "bayesgeom").rglob("*.jinja"))
    assert templates, "the report page has a template"
    for path in templates:
        source = path.read_text(encoding="utf-8")
        shown = re.sub(r"<style>.*?</style>|<script.*?</script>|\{[{%#].*?[}%#]\}", " ", source, flags=re.DOTALL)
        assert not list(offences(shown, path.name))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("The null is 0.3.", "null"),
        ("It exceeds every null.", "null"),
        ("Fresh copies get one pass.", "untrained"),
        ("The behaviour of it", "American"),
        ("normalised values that were analysed", "American"),
        ("utilisation of dimensions", "American"),
        ("the centres of clusters", "American"),
        ("it moves towards the donor's", "American"),
        ("largest damage of a head", "KL increase"),
        ("the head's damage", "KL increase"),
        ("The swap redirects the answer.", "answer shift"),
        ("whoever knows the last symbol", "name"),
        ("The probability leaks.", "off-answer"),
        ("the arms of the comparison", "condition"),
        ("The KL jumps at 11.", "discontinuity"),
        ("There is a break.", "discontinuity"),
        ("one tile of sequences", "batch"),
        ("the marks to pass", "threshold"),
        ("on the shelf", "cache"),
        ("written aside, then renamed", "atomically"),
        ("It was asked for.", "requested"),
        ("models that offer the sites", "available"),
        ("probes that can be served", "supported"),
        ("Memory is held here.", "stored"),
        ("which was said above", "reported"),
        ("the place where an edit acts", "site"),
        ("in many trials", "sequences"),
        ("a stream of trials", "batches"),
        ("Activations were kept of 192.", "stored"),
        ("the realized value", "label"),
        ("the hypothesis frame", "key frame"),
        ("top to second", "ratio"),
    ],
)
def test_private_words_are_found(text: str, word: str) -> None:
    assert word in " ".join(offences(text, "page"))


@pytest.mark.parametrize(
    "text",
    [
        "`nulls` was renamed",
        "the null distribution of shuffled values",
        "null <!-- language: quoted -->",
        "annulled",
        "A damaged file is refused.",
        "standard output is redirected to a file",
        "the redirected output",
        "an object that is ModelLike",
        "an optimistic, realistic organism",
        "memory leaks",
        "two analyses, toward a center; cancellation, centers, a precise promise, a realist",
        "charm, army and remarks",
        "a broken rule breaks the test; a line break",
        "a punctuation mark, which marks the end",
        "The served model is behind a server that offers several models.",
        "The lock is held, a quantity is held fixed, sequences are held out.",
        "They cannot be told apart.",
        "edited in place, in place of the label",
        "the 'hypothesis frame' of the paper",
        "The other results are kept.",
        "the residual stream",
    ],
)
def test_ordinary_english_is_not(text: str) -> None:
    assert not list(offences(text, "page"))


def test_code_blocks_are_skipped_and_strings_are_read(tmp_path: Path) -> None:
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text("the text\n```text\nnobody\n```\nwhoever\n")
    module.write_text(
        '"""The behaviour."""\nname = f"{3} of ours"\nquoted = "a null"  # language: quoted\n'
        'table = {"damage": 1, "n": 2}\nchart(title="head damage", name="Null")\nrows = ["spent_values", "pos"]\n'
    )
    assert [number for number, line in texts(page) for _ in offences(line, "page")] == [5]
    assert sorted(number for number, text in texts(module) for _ in offences(text, "module")) == [1, 2, 5, 5, 6]


def test_words_of_help_are_found() -> None:
    shown = help_of("diagnose")
    assert "--n-untrained" in shown
    assert list(offences(shown.replace("untrained networks", "fresh copies"), "help"))
