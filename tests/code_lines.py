"""Lines of code, without blanks, comments, docstrings: `python -m tests.code_lines [REVISION ...]`.

Of several revisions, as those before and after a change, one line each.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRODUCT = ("txnlog", "spark_sink", "spark_source", "checkpoint")
FOLDERS = (*PRODUCT, "tests", "benchmarks", "jobs", "conf")
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def count(source: str) -> int:
    """The lines of a module on which a token of code stands."""
    docs = {line for node in ast.walk(ast.parse(source)) for line in _doc_lines(node)}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {
        line
        for token in tokens
        if token.type not in SILENT
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - docs)


def _doc_lines(node: ast.AST) -> Iterator[int]:
    """Of a string that is a statement: a docstring, of an attribute too."""
    value = node.value if isinstance(node, ast.Expr) else None
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield from range(value.lineno, (value.end_lineno or value.lineno) + 1)


def _sources(revision: str | None) -> Iterator[tuple[str, str]]:
    """Of each Python file that git knows: its path and its text, now or in a revision."""
    if revision is None:
        for path in _git("ls-files", "--", *FOLDERS).decode().splitlines():
            if path.endswith(".py") and (ROOT / path).exists():
                yield path, (ROOT / path).read_text(encoding="utf-8")
        return
    with tarfile.open(fileobj=io.BytesIO(_git("archive", revision, "--", *FOLDERS))) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".py") else None
            if file is not None:
                yield member.name, file.read().decode()


def _git(*arguments: str) -> bytes:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout


def main(arguments: list[str]) -> None:
    """Print a row per top-level folder, and the sum of those that are shipped."""
    if len(arguments) > 1:
        for revision in arguments:
            lines, _ = _counted(revision)
            shipped = sum(lines[folder] for folder in PRODUCT)
            print(f"{revision:15}{shipped:8} lines of code shipped{lines['tests']:8} of tests")
        return
    lines, files = _counted(arguments[0] if arguments else None)
    for folder in FOLDERS:
        print(f"{folder:15}{files[folder]:6} files{lines[folder]:8} lines of code")
    shipped = sum(lines[folder] for folder in PRODUCT)
    print(
        f"{'shipped':15}{sum(files[folder] for folder in PRODUCT):6} files{shipped:8} lines of code"
    )


def _counted(revision: str | None) -> tuple[Counter[str], Counter[str]]:
    """Lines of code and files of each folder."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path, source in _sources(revision):
        folder = path.split("/")[0]
        lines[folder] += count(source)
        files[folder] += 1
    return lines, files


if __name__ == "__main__":
    main(sys.argv[1:])
