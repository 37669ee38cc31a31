"""Check of a `tokenizer.json` in a process of its own, with limits of memory and time.

The file holds a program: replacements that may grow, regular expressions, tables. The library that reads it, in Rust,
ends the whole process if memory runs out, panics on some values, and cannot be interrupted. This module imports nothing
of bayesgeom: it is the program of that process, too.
"""

import subprocess
import sys
from pathlib import Path

_SECONDS, _BYTES = 10, 2 * 2**30
_GROWTH = 64  # tokens or characters that a tokenizer may make of one character
_TEXTS = ("The quick brown fox: 12, 345.", "a" * 48 + "!", " " * 48 + "x", "0" * 48, "ab" * 24, "é漢 🙂\n", "")


def fault_of(file: Path) -> str:
    """Return what is wrong with a `tokenizer.json`, or "" if it encodes and decodes a few texts within the limits."""
    program = [sys.executable, "-I", __file__, str(file)]
    try:
        done = subprocess.run(program, capture_output=True, timeout=3 * _SECONDS, check=False)  # noqa: S603  (ours)
    except subprocess.TimeoutExpired:
        return f"it takes more than {_SECONDS} s"
    if done.returncode < 0:
        return f"it needs more than {_SECONDS} s or {_BYTES // 2**30} GiB"
    if done.returncode:  # the last line of a traceback names the exception; panics of Rust are written before
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["its program fails"]
        return lines[-1].removeprefix("pyo3_runtime.")[:200]
    return ""


def _main(path: str) -> str:
    """What is wrong, in the process with limits."""
    import resource

    from tokenizers import Tokenizer

    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    tokenizer = Tokenizer.from_file(path)
    tokenizer.no_padding()  # as transformers does
    tokenizer.no_truncation()
    for text in _TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        n = max(len(ids), len(tokenizer.decode(ids)), len(tokenizer.encode(text).ids))
        if tokenizer.normalizer is not None:
            n = max(n, len(tokenizer.normalizer.normalize_str(text)))
        if n > _GROWTH * (len(text) + 16):
            return f"it makes {n:,} tokens or characters of {len(text)}"
    return ""


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]) or 0)
