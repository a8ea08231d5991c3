"""docs/configuration.md explains exactly the settings in conf/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TEXT = (DOCS / "configuration.md").read_text()
READERS = ("txnlog", "checkpoint", "spark_source", "spark_sink", "jobs")


FILES = (
    "spark-defaults.conf",
    "spark-s3a.conf",
    "spark4.0.conf",
    "spark4.1.conf",
    "spark4.3.conf",
    "log4j2.properties",
)


@pytest.mark.parametrize("file", FILES)
def test_configuration_page_explains_every_line(file: str) -> None:
    """Users would copy an unexplained setting to where it does harm, or never dare to remove it."""
    in_file = settings(ROOT / "conf" / file)
    assert in_file
    explained = explained_in(f"conf/{file}")
    assert sorted(explained) == sorted(in_file), "and what is gone from the file goes from the page"


def test_configuration_page_summarises_every_spark_setting() -> None:
    """The table at the top says which lines to copy to a cluster."""
    table = TEXT[: TEXT.index("\n## ")]
    missing = [name for name in settings(ROOT / "conf/spark-defaults.conf") if name not in table]
    assert not missing


def test_configuration_page_names_every_environment_variable() -> None:
    """Operators do not find an undocumented variable."""
    read = re.compile(r"\bTXNLOG_[A-Z_]+\b|environ(?:\.get\(|\[)\"([A-Z_]+)\"")
    variables = {
        found[1] or found[0]
        for folder in READERS
        for path in (ROOT / folder).rglob("*.py")
        for found in read.finditer(path.read_text())
    }
    assert "TXNLOG_CHECKPOINT_INTERVAL" in variables
    assert not sorted(name for name in variables if f"`{name}`" not in TEXT)


def test_docs_index_links_every_page_and_notebook() -> None:
    """A page without links is not read; a broken link is worse."""
    links = linked(DOCS / "README.md")
    assert not [link for link in links if not link.exists()]
    # A folder may have an index of its own.
    for index in DOCS.glob("*/README.md"):
        links |= linked(index) if index in links else set()
    notebooks = set((ROOT / "notebooks").glob("*.ipynb"))
    assert not sorted({*DOCS.rglob("*.md"), *notebooks} - links - {DOCS / "README.md"})


def linked(page: Path) -> set[Path]:
    """Files that a page links to."""
    links = re.findall(r"\]\(([^):#]+)[^)]*\)", page.read_text())
    return {(page.parent / link).resolve() for link in links}


def settings(file: Path) -> list[str]:
    """The names in a properties file."""
    lines = [line for line in file.read_text().splitlines() if line.strip()]
    return [re.split(r"[\s=]", line)[0] for line in lines if not line.startswith("#")]


def explained_in(section: str) -> list[str]:
    """Names in `code` in a section's third-level headings and in the first column of its table."""
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
    places = re.findall(r"^### (`.*`)$|^\| (`[^|]*`) \|", text, re.M)
    return [name for place in places for name in re.findall(r"`([^`]+)`", "".join(place))]
