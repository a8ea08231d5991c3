"""Names of code in back-ticks, in docstrings, comments and documents, exist in the code.

Checked are names with a dot, an underscore or CamelCase, and paths of Python files. A name exists
if the code has it as an identifier or within a string that is no docstring; a dotted one if each of
its parts does, or all of it is in one string. So renaming a function finds the texts that name it.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    *("txnlog", "spark_source", "spark_sink", "checkpoint", "jobs", "benchmarks", "tests"),
    *("notebooks", "examples", "conf", "docs"),
)
# What changed once names what was there once.
HISTORY = {"CHANGELOG.md"}

_QUOTED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_FENCED = re.compile(r"```.*?```", re.DOTALL)
_NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(.*\))?")
_IS_OF_CODE = re.compile(r"\w_\w|[a-z][A-Z]|\.")
_COMMENT = re.compile(r"(?:^|  ) *# .*", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")
_PYTHON_FILE = re.compile(r"[\w./-]+\.py")

# Names that only others' code has, by whose they are; and what the code assembles.
FOREIGN = {
    *("PrepareCommit", "PrepareAbort"),  # states as `txnlog transactions` prints them
    *("FileContext", "FileContextBasedCheckpointFileManager"),  # Hadoop and Spark
    *("FileSystemBasedCheckpointFileManager", "AbortableStreamBasedCheckpointFileManager"),
    *("SparkSessionCatalog", "commitOffsets", "queryPlanning"),
    *("df.write", "df.writeStream", "spark.newSession", "toPandas"),
    *("PYTHON_DATA_SOURCE_ERROR", "FAILED_READ_FILE.FILE_NOT_EXIST", "DELTA_VERSION_NOT_FOUND"),
    *("spark.sql.files.ignoreMissingFiles", "spark.yarn.appMasterEnv.PYSPARK_PYTHON"),
    *("delta_scan", "pl.read_delta"),  # DuckDB, polars
    *("AZURE_STORAGE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "startFrom"),  # clouds
    *("engineInfo", "operationParameters"),  # Delta
    "databricks.service_credentials",
    *("ListMultipartUploadParts", "daysSinceNoncurrentTime"),
    # docs/compare: X/Open XA, PostgreSQL, Kafka's clients, Flink.
    *("xa_start", "xa_end", "xa_prepare", "xa_commit", "xa_rollback", "xa_recover"),
    *("pg_prepared_xacts", "pg_xact", "keepPreparedTxn", "processing.guarantee"),
    *("KTable.toStream", "TwoPhaseCommitSinkFunction", "beginTransaction", "preCommit"),
    *("recoverAndCommit", "recoverAndAbort"),
}


def test_names_in_back_ticks_exist() -> None:
    """A reader of a name that is gone searches everywhere."""
    wrong = [
        f"{place}: {name}"
        for place, name in quoted()
        if (found := _NAME.fullmatch(name))
        and _IS_OF_CODE.search(found[1])
        and not _PYTHON_FILE.fullmatch(name)
        and not exists(found[1])
    ]
    assert not wrong, "\n".join(wrong)


def test_attributes_in_back_ticks_exist() -> None:
    """Of classes and modules of ours; elsewhere each part alone must exist."""
    wrong = [
        f"{place}: {name}"
        for place, name in quoted()
        if (found := _NAME.fullmatch(name))
        and not _PYTHON_FILE.fullmatch(name)
        and not has_attribute(*found[1].split("."))
    ]
    assert not wrong, "\n".join(wrong)


def test_python_files_in_back_ticks_exist() -> None:
    """By the end of their path."""
    paths = [f"/{path.relative_to(ROOT).as_posix()}" for path in python_files()]
    wrong = [
        f"{place}: {name}"
        for place, name in quoted()
        if _PYTHON_FILE.fullmatch(name) and not any(path.endswith(f"/{name}") for path in paths)
    ]
    assert not wrong, "\n".join(wrong)


def exists(name: str) -> bool:
    """Whether the code has this name."""
    words, text = vocabulary()
    # Metrics: tests/monitoring/test_dashboard.py compares the page with what is exported.
    is_metric = name.startswith("txnlog_")
    return (
        is_metric
        or name in FOREIGN
        or all(part in words for part in name.split("."))
        or name in text
    )


def has_attribute(owner: str, *parts: str) -> bool:
    """False if `owner` is a class or a module of ours without the first of the parts."""
    known = members().get(owner)
    if not parts or known is None or parts[0] in known:
        return True
    return ".".join((owner, *parts)) in vocabulary()[1]  # A setting, such as client.id.


@cache
def python_files() -> list[Path]:
    """All of the project."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return [*found, *ROOT.glob("*.py")]


@cache
def quoted() -> list[tuple[str, str]]:
    """What is in back-ticks, with the file: docstrings, comments, documents without examples."""
    found = []
    for path in python_files():
        comments = _COMMENT.findall(path.read_text())
        found += [(path, text) for text in (*docstrings(path).values(), *comments)]
    found_in = [ROOT.glob("*.md"), (ROOT / "docs").rglob("*.md")]
    found_in += [(ROOT / name).glob("*.md") for name in ("tests", "benchmarks")]
    for files in found_in:
        pages = [path for path in files if path.name not in HISTORY]
        found += [(path, _FENCED.sub("", path.read_text())) for path in pages]
    return [
        (path.relative_to(ROOT).as_posix(), name)
        for path, text in found
        for name in _QUOTED.findall(text)
    ]


@cache
def vocabulary() -> tuple[frozenset[str], str]:
    """Words of the code, and the text of its strings and of conf/."""
    words: set[str] = set()
    strings = [path.read_text() for path in (ROOT / "conf").rglob("*") if path.is_file()]
    for path in python_files():
        words.update(path.relative_to(ROOT).with_suffix("").parts)
        prose = docstrings(path)
        for node in nodes(path):
            if isinstance(node, ast.Constant):
                strings += [node.value] * (isinstance(node.value, str) and node not in prose)
            else:
                words.update(value for value in vars(node).values() if isinstance(value, str))
    text = "\n".join(strings)
    return frozenset(_WORD.findall(" ".join([*words, text]))), text


@cache
def members() -> dict[str, set[str]]:
    """Class or module -> names defined, imported or set there; of all with its name.

    Without classes that have a base: its attributes may be those of others.
    """
    found: dict[str, set[str]] = {}
    derived = set()
    for path in python_files():
        found.setdefault(path.stem, set()).update(_defined(nodes(path)))
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(_defined(list(ast.walk(node))))
                derived |= {node.name} if node.bases else set()
    return {name: names for name, names in found.items() if name not in derived}


def _defined(of: list[ast.AST]) -> set[str]:
    found: set[str] = set()
    for node in of:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return found


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Those of its syntax tree."""
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def docstrings(path: Path) -> dict[ast.Constant, str]:
    """Texts that are a statement: docstrings, also those below a constant."""
    return {
        line.value: line.value.value
        for line in nodes(path)
        if isinstance(line, ast.Expr)
        and isinstance(line.value, ast.Constant)
        and isinstance(line.value.value, str)
    }
