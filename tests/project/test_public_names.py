"""The public names of the package; examples and docs import no others."""

from __future__ import annotations

import re
import subprocess
import sys
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
PUBLIC_MODULES = {"txnlog", "txnlog.admin", "txnlog.errors", "spark_source.sql", "spark_sink"}
OURS = re.compile(r"\bfrom ((?:txnlog|spark_source|spark_sink|checkpoint)[\w.]*) import")


def test_public_names_are_these() -> None:
    """An added name must be kept for ever; a removed one breaks users."""
    assert sorted(txnlog.__all__) == sorted(NAMES)
    assert set(NAMES) <= set(dir(txnlog))


@pytest.mark.parametrize("name", NAMES)
def test_public_name_can_be_imported(name: str) -> None:
    """Imports are lazy: otherwise only the first user would notice a wrong entry."""
    assert getattr(txnlog, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    """hasattr and inspection tools rely on it."""
    with pytest.raises(AttributeError, match="no attribute 'Broker'"):
        _ = txnlog.Broker  # type: ignore[attr-defined]


def test_importing_the_package_imports_no_client() -> None:
    """Spark starts a Python process for each step of a query, and each imports txnlog."""
    code = "import sys, txnlog; print([m for m in sys.modules if m.startswith('txnlog.')])"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_all_names_of_a_public_module_exist() -> None:
    for module in ("txnlog.admin", "spark_sink"):
        found = import_module(module)
        assert [name for name in found.__all__ if not hasattr(found, name)] == []


def test_version_is_that_of_the_command() -> None:
    command = [sys.executable, "-m", "txnlog.cli.main", "--version"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == f"txnlog {txnlog.__version__}\n"


def texts() -> list[Path]:
    folders = ("docs", "examples", "notebooks")
    found = [path for folder in folders for path in (ROOT / folder).iterdir()]
    return [ROOT / "README.md", *(path for path in found if path.suffix in (".md", ".py"))]


@pytest.mark.parametrize("path", texts(), ids=lambda path: path.name)
def test_examples_and_docs_import_only_public_names(path: Path) -> None:
    """Users who copy them must not depend on names that may change."""
    assert set(OURS.findall(path.read_text())) <= PUBLIC_MODULES
