"""What clients report: errors once, statistics when due, log records to a given logger."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from txnlog.errors import ConcurrentTransactionsError, StorageError
from txnlog.process.client_events import ClientEvents
from txnlog.process.log_forwarding import Forwarding, configure

LOGGER = logging.getLogger("txnlog")


class Kept(logging.Handler):
    """Keeps the messages that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """The process's logger as it was."""
    level = LOGGER.level
    yield
    LOGGER.setLevel(level)
    for handler in list(LOGGER.handlers):
        if isinstance(handler, Forwarding):
            LOGGER.removeHandler(handler)


def test_errors_in_a_row_that_are_alike_are_reported_once() -> None:
    """A store that is away for an hour fails each heartbeat."""
    told: list[Exception] = []
    events = ClientEvents(error_cb=told.append, stats_cb=None, interval_ms=0, boot_ms=lambda: 0)
    first, other, again = StorageError("1"), ConcurrentTransactionsError("2"), StorageError("3")
    for error in (first, StorageError("1b"), other):
        events.failed(error)
    assert told == []
    assert events.serve(dict) == 2
    events.recovered()
    events.failed(again)
    events.serve(dict)
    assert told == [first, other, again]


def test_statistics_are_given_at_their_interval() -> None:
    now = [0]
    told: list[str] = []
    events = ClientEvents(
        error_cb=None, stats_cb=told.append, interval_ms=100, boot_ms=lambda: now[0]
    )
    for now[0] in (50, 100, 150, 250, 300, 350):
        events.serve(lambda: {"at": now[0]})
    assert [json.loads(text)["at"] for text in told] == [100, 250, 350]


def test_given_logger_gets_the_records_once() -> None:
    """Also when both propagate to the same handlers."""
    mine, root = logging.getLogger("mine.application"), logging.getLogger()
    own, shared = Kept(), Kept()
    mine.addHandler(own)
    root.addHandler(shared)
    mine.setLevel(logging.INFO)
    try:
        for _ in range(2):
            configure(mine, is_debugging=False)
        LOGGER.info("joined")
        LOGGER.debug("too much")
        assert own.messages == ["joined"]
        assert shared.messages == ["joined"]
        configure(mine, is_debugging=True)
        mine.setLevel(logging.DEBUG)
        LOGGER.debug("asked for")
        assert own.messages[-1] == "asked for"
    finally:
        mine.removeHandler(own)
        root.removeHandler(shared)


def test_level_stays_without_the_settings() -> None:
    before = LOGGER.level
    configure(None, is_debugging=False)
    assert LOGGER.level == before
