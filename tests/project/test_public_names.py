"""The public names of the package; examples, notebooks and docs use no others."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import txnlog

ROOT = Path(__file__).resolve().parents[2]
NAMES = [
    "AdminClient",
    "Cluster",
    "Consumer",
    "ConsumerGroupMetadata",
    "Message",
    "NewPartitions",
    "NewTopic",
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "OffsetSpec",
    "Producer",
    "TopicPartition",
    "TxnLogError",
    "__version__",
    "errors",
]
WITH_NAMES = (
    "txnlog",
    "txnlog.admin",
    "txnlog.errors",
    "txnlog.monitoring",
    "spark_source.sql",
    "spark_sink",
    "pyspark_txnlog",
    "txnlog.compat.confluent_kafka",
    *(
        f"txnlog.compat.confluent_kafka.{name}"
        for name in (
            "admin",
            "aio",
            "error",
            "schema_registry",
            "serialization",
        )
    ),
    *sorted(
        f"txnlog.testing.{path.stem}"
        for path in (ROOT / "txnlog" / "testing").glob("*.py")
        if path.name != "__init__.py"
    ),
)
PUBLIC_MODULES = {*WITH_NAMES, "txnlog.testing"}

OURS = r"(?:txnlog|spark_source|spark_sink|checkpoint|pyspark_txnlog)"
FROM = re.compile(rf"\bfrom ({OURS}(?:\.\w+)*) import (\([^)]*\)|[\w, ]+)")
IMPORT = re.compile(r"\bimport ([\w.]+(?:, ?[\w.]+)*)")
QUOTED = re.compile(rf"`({OURS}(?:\.\w+)+)")
PRIVATE = re.compile(r"(?<=[\w)\]])\._[a-z]\w*")
# Of tables, whose names begin as those of modules do.
PROPERTIES = {"txnlog.storage.fsync"}
# Attributes of pyspark, for which it has no public name.
FOREIGN = {"._jvm"}


def test_public_names_are_these() -> None:
    """An added name must be kept for ever; a removed one breaks users."""
    assert sorted(txnlog.__all__) == sorted(NAMES)
    assert set(NAMES) <= set(dir(txnlog))


@pytest.mark.parametrize("name", NAMES)
def test_public_name_can_be_imported(name: str) -> None:
    """Imports are lazy: otherwise only the first user would notice a wrong entry."""
    assert getattr(txnlog, name) is not None


@pytest.mark.parametrize("kind", [txnlog.Producer, txnlog.Consumer, txnlog.AdminClient])
def test_classes_that_calls_take_and_return_are_public(kind: type) -> None:
    """Users name them in their own annotations, and pass members of enumerations."""
    public = {name for module in WITH_NAMES for name in import_module(module).__all__}
    home = vars(import_module(kind.__module__))
    for name, call in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            named = set(re.findall(r"\b[A-Z]\w+", " ".join(call.__annotations__.values())))
            ours = {n for n in named if getattr(home.get(n), "__module__", "").startswith("txnlog")}
            assert ours <= public, name


def test_unknown_name_is_an_attribute_error() -> None:
    """hasattr and inspection tools rely on it."""
    with pytest.raises(AttributeError, match="no attribute 'Broker'"):
        _ = txnlog.Broker  # type: ignore[attr-defined]


def test_importing_the_package_imports_no_client() -> None:
    """Spark starts a Python process for each step of a query, and each imports txnlog.

    What every one of them needs, errors and the filter of the log, is there.
    """
    code = "import sys, txnlog; print(*sorted(m for m in sys.modules if m.startswith('txnlog.')))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == [
        "txnlog.errors", "txnlog.process", "txnlog.process.log_records", "txnlog.text",
    ]  # fmt: skip


@pytest.mark.parametrize("name", WITH_NAMES)
def test_all_names_of_a_public_module_exist(name: str) -> None:
    """A module without __all__ does not say which of its names users may rely on."""
    module = import_module(name)
    assert [public for public in module.__all__ if not hasattr(module, public)] == []


def test_every_error_is_public() -> None:
    """Handlers need all of them."""
    errors = import_module("txnlog.errors")
    classes = {name for name, _ in inspect.getmembers(errors, inspect.isclass)}
    assert set(errors.__all__) == {name for name in classes if name.endswith("Error")}


def test_version_is_that_of_the_command() -> None:
    command = [sys.executable, "-m", "txnlog.cli.main", "--version"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == f"txnlog {txnlog.__version__}\n"


def texts() -> list[Path]:
    folders = ("docs", "examples", "notebooks")
    kinds = (".md", ".py", ".ipynb")
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.*"))]
    # The site's hooks are no example.
    own = ROOT / "docs" / "site"
    shown = [path for path in found if path.suffix in kinds and own not in path.parents]
    return [ROOT / "README.md", *shown]


@pytest.mark.parametrize("path", texts(), ids=lambda path: path.name)
def test_examples_and_docs_use_only_public_names(path: Path) -> None:
    """Users who copy them must not depend on names that may change."""
    assert list(private_names(text_of(path))) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from txnlog.verifying.report import VerifySettings", "txnlog.verifying.report"),
        ("Use `from txnlog.cluster import Cluster`.", "txnlog.cluster"),
        ("from txnlog import (\n    Cluster,\n    Broker as B,\n)", "txnlog.Broker"),
        ("from txnlog.errors import FLAGS", "txnlog.errors.FLAGS"),
        ("import txnlog.producing.sender", "txnlog.producing.sender"),
        ('python -c "import pyspark_txnlog, spark_sink.sink"', "spark_sink.sink"),
        ("It takes `txnlog.verifying.report.VerifySettings`.", "txnlog.verifying.report"),
        ("See `spark_source.sql.conditions(view)`.", "spark_source.sql.conditions"),
        ("cluster._topics.clear()", "._topics"),
    ],
)
def test_private_name_in_a_text_is_found(text: str, name: str) -> None:
    """Otherwise the test of the docs passes whatever they name."""
    assert list(private_names(text)) == [name]


@pytest.mark.parametrize(
    "text",
    [
        "from txnlog import OFFSET_END, errors",
        "from txnlog.testing.auditor import Auditor",
        "import txnlog.errors, pyspark.sql",
        "`txnlog.root`, `txnlog.errors.<Name>Error` and `spark_sink.TxnLogListener`",
        "Tasks import txnlog on the executors.",
        "txnlog.__version__",
    ],
)
def test_public_name_in_a_text_is_not_reported(text: str) -> None:
    assert list(private_names(text)) == []


def private_names(text: str) -> Iterator[str]:
    """Modules and names of the project that are not public, in code or in backticks."""
    for module, names in FROM.findall(text):
        yield from unless_public(module, re.findall(r"\w+", re.sub(r"\bas \w+", "", names)))
    for names in IMPORT.findall(text):
        for module in re.split(", ?", names.rstrip(".")):
            if re.match(rf"{OURS}\.", module):
                yield from unless_public(module, [])
    for name in QUOTED.findall(text):
        module, names = split_name(name)
        # Without a submodule it may be a setting, or a property of a table.
        if name not in PROPERTIES and ("." in module or module.startswith("spark_")):
            yield from unless_public(module, names)
    yield from (name for name in PRIVATE.findall(text) if name not in FOREIGN)


def unless_public(module: str, names: list[str]) -> Iterator[str]:
    if module not in PUBLIC_MODULES:
        yield module
    elif names:
        public = import_module(module).__all__
        yield from (f"{module}.{name}" for name in names if name not in public)


def split_name(name: str) -> tuple[str, list[str]]:
    """The longest beginning that is a module, and what follows it."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        if path.is_dir() or path.with_suffix(".py").exists():
            return ".".join(parts[:count]), parts[count : count + 1]
    raise AssertionError(name)


def text_of(path: Path) -> str:
    """The content of a file; of a notebook, its cells."""
    text = path.read_text()
    if path.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
