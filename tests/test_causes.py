"""Errors tell their causes in their own message, since Spark shows nothing else of a chain."""

from __future__ import annotations

import logging

import pytest

from txnlog.causes import tells_causes, with_causes
from txnlog.errors import RecordTooLargeError, StorageError, TopicAuthorizationError


def caught(call: object) -> Exception:
    try:
        call()  # type: ignore[operator]
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def refused() -> None:
    try:
        try:
            raise PermissionError("read-only file system\nand pages of debug output")
        except PermissionError as error:
            raise StorageError("s3://lake/orders: the store refuses to put") from error
    except StorageError as error:
        raise TopicAuthorizationError("No permission to write topic 'orders'", topic="o") from error


def test_chain_is_told_from_the_last_error_to_the_first() -> None:
    """ "No permission" without the reason sends people looking in the wrong place."""
    told = caught(tells_causes(refused))
    assert isinstance(told, TopicAuthorizationError)
    assert str(told).splitlines() == [
        "No permission to write topic 'orders'",
        "Caused by StorageError: s3://lake/orders: the store refuses to put",
        "Caused by PermissionError: read-only file system",
    ]
    assert told.topic == "o"
    assert told.fatal


def test_told_error_stands_alone() -> None:
    """A second traceback in Spark's message hides the first line of the one that matters."""
    told = caught(tells_causes(refused))
    assert told.__cause__ is None
    assert told.__context__ is None
    frames, trace = 0, told.__traceback__
    while trace is not None:
        frames, trace = frames + 1, trace.tb_next
    assert frames <= 2, "this test's, and the one that raised"


def test_cause_that_the_message_repeats_is_told_once() -> None:
    """Most messages quote their cause already."""
    error = TopicAuthorizationError("No permission: the disk is full")
    error.__cause__ = OSError("the disk is full")
    assert str(with_causes(error)) == "No permission: the disk is full"


def test_cause_that_was_switched_off_stays_off() -> None:
    """`raise ... from None` may hide a secret (R67)."""
    error = StorageError("refused")
    error.__context__ = OSError("secret")
    assert "secret" in str(with_causes(error))
    error.__suppress_context__ = True
    assert "secret" not in str(with_causes(error))


def test_errors_that_are_not_ours_pass_with_their_traceback() -> None:
    """A bug needs its traceback, and a user's own error is the user's."""

    def bug() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError) as failure:
        tells_causes(bug)()
    assert failure.traceback[-1].name == "bug"


def test_whole_traceback_is_in_the_debug_log(caplog: pytest.LogCaptureFixture) -> None:
    """What the message leaves out must be somewhere."""

    def too_large() -> None:
        raise RecordTooLargeError("too large", row=3)

    with caplog.at_level(logging.DEBUG, logger="txnlog"), pytest.raises(RecordTooLargeError) as e:
        tells_causes(too_large)()
    assert e.value.row == 3
    assert "in too_large" in caplog.text
