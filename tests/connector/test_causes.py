"""Errors include their causes in their message, since Spark shows nothing else of a chain."""

from __future__ import annotations

import logging

import pytest

from txnlog.connector.causes import line_of_cause, reports_causes, with_causes
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


def test_message_lists_causes_from_the_last_error_to_the_first() -> None:
    """ "No permission" without the reason makes users search in the wrong place."""
    reported = caught(reports_causes(refused))
    assert isinstance(reported, TopicAuthorizationError)
    assert str(reported).splitlines() == [
        "No permission to write topic 'orders'",
        "Caused by StorageError: s3://lake/orders: the store refuses to put",
        "Caused by PermissionError: read-only file system",
    ]
    assert reported.topic == "o"
    assert not reported.retriable


def test_reported_error_has_one_traceback() -> None:
    """A second traceback in Spark's message hides the first line of the one that matters."""
    reported = caught(reports_causes(refused))
    assert reported.__cause__ is None
    assert reported.__context__ is None
    frames, trace = 0, reported.__traceback__
    while trace is not None:
        frames, trace = frames + 1, trace.tb_next
    assert frames <= 2, "this test's, and the one that raised"


def test_cause_that_the_message_repeats_is_listed_once() -> None:
    """Most messages quote their cause already."""
    error = TopicAuthorizationError("No permission: the disk is full")
    error.__cause__ = OSError("the disk is full")
    assert str(with_causes(error)) == "No permission: the disk is full"


def test_suppressed_cause_is_not_listed() -> None:
    """`raise ... from None` may hide a secret (R67)."""
    error = StorageError("refused")
    error.__context__ = OSError("secret")
    assert "secret" in str(with_causes(error))
    error.__suppress_context__ = True
    assert "secret" not in str(with_causes(error))


def test_errors_of_other_code_keep_their_traceback() -> None:
    """A bug needs its traceback, and a user's own error is the user's."""

    def bug() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError) as failure:
        reports_causes(bug)()
    assert failure.traceback[-1].name == "bug"


def test_whole_traceback_is_in_the_debug_log(caplog: pytest.LogCaptureFixture) -> None:
    """The log must have what the message omits."""

    def too_large() -> None:
        raise RecordTooLargeError("too large", row=3)

    with caplog.at_level(logging.DEBUG, logger="txnlog"), pytest.raises(RecordTooLargeError) as e:
        reports_causes(too_large)()
    assert e.value.row == 3
    assert "in too_large" in caplog.text


# --- Spark's error messages -----------------------------------------------------------------------

JAVA_FRAMES = """
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.read(PythonRunner.scala:120)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2898)
"""
PYTHON_FRAMES = """Traceback (most recent call last):
  File "/spark/python/lib/pyspark.zip/pyspark/worker.py", line 3467, in main
    func, profiler, deserializer, serializer = read_command(pickleSer, infile)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
STAGE = "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 4 times"
BY_PY4J = f"An error occurred while calling z:org.apache.spark.Api.collect.\n: {STAGE}: "
BY_PYSPARK = "An exception was thrown from the Python worker:\n"
PYTHON = BY_PY4J + "org.apache.spark.api.python.PythonException: " + PYTHON_FRAMES
MISSING = "ModuleNotFoundError: No module named 'txnlog'"
LOST = f"{STAGE}: ExecutorLostFailure"
DAMAGED = "txnlog.errors.CorruptLogError: Data file a.parquet is damaged"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{PYTHON}{MISSING}\n{JAVA_FRAMES}", MISSING),
        (f"{PYTHON}{DAMAGED}\nof two lines\n{JAVA_FRAMES}", DAMAGED),
        (f"{PYTHON}{MISSING}\n\nDuring handling ...:\n\n{PYTHON_FRAMES}{DAMAGED}\n", DAMAGED),
        (f"{PYTHON}x.PickleError: Caused by {PYTHON_FRAMES}{MISSING}\n{JAVA_FRAMES}", MISSING),
        (
            f"{PYTHON}{MISSING}{JAVA_FRAMES}Caused by: {PYTHON_FRAMES}{MISSING}{JAVA_FRAMES}",
            MISSING,
        ),
        (f"{BY_PYSPARK}{PYTHON_FRAMES}{MISSING}", MISSING),
        # With SPARK_HIDE_TRACEBACK.
        (f"{BY_PYSPARK}{MISSING}", MISSING),
        (f"{PYTHON}KeyboardInterrupt\n{JAVA_FRAMES}", "KeyboardInterrupt"),
        (f"{BY_PY4J}ExecutorLostFailure{JAVA_FRAMES}", LOST),
        ("\n[DELTA_TABLE_NOT_FOUND] no such table\nhint", "[DELTA_TABLE_NOT_FOUND] no such table"),
        ("", "Exception"),
    ],
)
def test_line_of_cause_is_the_line_with_the_error(text: str, line: str) -> None:
    """The first line is py4j's, and the same for every error."""
    assert line_of_cause(Exception(text)) == line
