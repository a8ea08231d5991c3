"""The Python blocks of docs/compare run, and print the text blocks below them."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "compare"
PAGES = sorted(path.name for path in FOLDER.glob("*.md"))
WITH_SPARK = ["kafka-streams.md"]
WITH_POSTGRES = ["postgres-mvcc.md", "two-phase-commit.md"]
ALONE = sorted({*PAGES} - {*WITH_SPARK, *WITH_POSTGRES})

_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def play(page: str, **names: Any) -> None:
    """Run the blocks of a page in one namespace."""
    text = (FOLDER / page).read_text()
    for found in _BLOCK.finditer(text):
        code, shown = found.groups()
        line = text.count("\n", 0, found.start(1))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # The traceback of an error has the line of the page.
            exec(compile("\n" * line + code, str(FOLDER / page), "exec"), names)
        assert printed.getvalue() == (shown or ""), f"{page}:{line}"
    for name in names.values():
        if type(name).__module__.startswith(("psycopg", "sqlite3")):
            name.close()


@pytest.fixture
def dsn() -> Iterator[str]:
    """Of a PostgreSQL server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples")
        from postgres_server import running_server  # type: ignore[import-not-found]

        with running_server() as server:
            yield server.dsn
        sys.modules.pop("postgres_server")


@pytest.mark.parametrize("page", ALONE)
def test_blocks_of_the_page_print_what_it_shows(page: str, tmp_path: Path) -> None:
    """A comparison that is not true is worse than none."""
    play(page, root=str(tmp_path / "lake"))


@pytest.mark.parametrize("page", WITH_POSTGRES)
def test_blocks_with_postgres_print_what_the_page_shows(
    page: str, tmp_path: Path, dsn: str
) -> None:
    """The other system is the real one."""
    play(page, root=str(tmp_path / "lake"), dsn=dsn)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("page", WITH_SPARK)
def test_blocks_with_spark_print_what_the_page_shows(
    page: str, tmp_path: Path, spark: SparkSession
) -> None:
    """Also the state of a query."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    try:
        play(page, root=str(tmp_path / "lake"), folder=str(tmp_path), spark=spark)
    finally:
        spark.conf.set(name, before)


def test_every_page_is_run_or_has_no_code() -> None:
    """A page in the wrong list would not run."""
    assert {*WITH_SPARK, *WITH_POSTGRES} <= {*PAGES}
    texts = {page: (FOLDER / page).read_text() for page in PAGES}
    assert [page for page in PAGES if "(dsn" in texts[page]] == WITH_POSTGRES
    assert [page for page in PAGES if "spark.read" in texts[page]] == WITH_SPARK
    # A block in another form would be left out.
    fences = [line for text in texts.values() for line in text.splitlines() if "```" in line]
    assert {*fences} <= {"```", "```python", "```text", "```mermaid", "```console"}
