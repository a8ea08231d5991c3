"""Work that continues past errors reports every one of them."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable

import pytest

from tests.world import PLAIN, TOPICS, world
from txnlog.cluster import Cluster
from txnlog.connector.causes import with_causes
from txnlog.errors import (
    CorruptLogError,
    GroupAuthorizationError,
    IllegalGenerationError,
    LogGapError,
    StorageError,
    StorePermissionError,
    TopicAuthorizationError,
    TxnLogError,
    UnexpectedError,
)
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.housekeeping.housekeeper import Housekeeper, HousekeepingSettings
from txnlog.housekeeping.log_cleanup import LogCleanup
from txnlog.housekeeping.producer_expiry import ProducerExpiry
from txnlog.housekeeping.retention import Retention
from txnlog.housekeeping.vacuum import Vacuum
from txnlog.process.failures import PARTS_SHOWN_MAX, Failures, parts_of
from txnlog.storage.delta.delta_log import DeltaLog
from txnlog.testing.faults import Fault, SharedMemory


def raised(*errors: TxnLogError) -> TxnLogError:
    failures = Failures("Work")
    for number, error in enumerate(errors):
        with failures.of(f"part {number}"):
            raise error
    with pytest.raises(TxnLogError) as found:
        failures.check()
    return found.value


def test_one_failure_is_raised_unchanged() -> None:
    """Handlers depend on its class."""
    error = CorruptLogError("x")
    assert raised(error) is error
    Failures("Work").check()


@pytest.mark.parametrize(
    ("errors", "kind", "code", "flags"),
    [
        ([StorageError("a"), StorageError("b")], StorageError, 15, (True, False, False)),
        ([StorageError("a"), CorruptLogError("b")], TxnLogError, 15, (False, False, True)),
        (
            [TopicAuthorizationError("a"), GroupAuthorizationError("b")],
            StorePermissionError, 29, (False, False, False),
        ),
        ([IllegalGenerationError("a"), StorageError("b")], TxnLogError, 22, (False, True, False)),
        ([StorageError("a"), LogGapError("b"), CorruptLogError("c")], TxnLogError, 15,
         (False, False, True)),
        ([LogGapError("a"), CorruptLogError("b")], CorruptLogError, 2, (False, False, True)),
    ],
)  # fmt: skip
def test_several_failures_are_one_error_with_the_flags_for_a_handler(
    errors: list[TxnLogError], kind: type[TxnLogError], code: int, flags: tuple[bool, bool, bool]
) -> None:
    """Called again because the first failed for want of a reply, the work fails for ever (R42)."""
    found = raised(*errors)
    assert type(found) is kind
    assert (found.code, found.errors) == (code, tuple(errors))
    assert (found.retriable, found.abortable, found.fatal) == flags
    for number, error in enumerate(errors):
        assert f"part {number}: {type(error).__name__}: {error.message}" in found.message
    assert len(pickle.loads(pickle.dumps(with_causes(found))).errors) == len(errors)


def test_message_of_very_many_failures_is_bounded() -> None:
    """A store that is away fails every file of a thousand."""
    errors = [StorageError(f"number {n}") for n in range(PARTS_SHOWN_MAX + 5)]
    found = raised(*errors)
    lines = found.lines
    assert lines[0] == f"Work: {len(errors)} parts failed."
    assert lines[PARTS_SHOWN_MAX].endswith(f"number {PARTS_SHOWN_MAX - 1}")
    assert lines[PARTS_SHOWN_MAX + 1 :] == ("... and 5 more",)
    assert parts_of(found) == tuple(errors)
    assert parts_of(errors[0]) == (errors[0],)


def test_cause_of_the_first_failure_is_shown() -> None:
    """Spark shows an error with its causes, which are those of the first."""
    first = StorageError("a")
    first.__cause__ = OSError("the disk is gone")
    shown = with_causes(raised(first, StorageError("b")))
    assert shown.message.endswith("Caused by OSError: the disk is gone")


def test_failures_of_a_part_with_parts_are_each_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Housekeeping's duties process all topics."""
    with caplog.at_level(logging.WARNING):
        found = raised(raised(StorageError("a"), StorageError("b")), StorageError("c"))
    assert [error.message for error in found.errors] == ["a", "b", "c"]
    assert "part 0, part 1: StorageError: b" in found.message
    assert sorted(record.getMessage()[-1] for record in caplog.records) == ["a", "b", "c"]


def test_bug_in_one_part_is_an_error_of_that_part(caplog: pytest.LogCaptureFixture) -> None:
    """One table on which a library fails must not stop the work on all others (R37)."""
    failures = Failures("Work", logging.DEBUG)
    for part in ("first", "second"):
        with failures.of(part):
            _ = {"first": 1 // 0} if part == "first" else {}["x"]
    with pytest.raises(UnexpectedError, match="Work: first failed with ZeroDivisionError") as found:
        failures.check()
    assert [type(error.__cause__) for error in found.value.errors] == [ZeroDivisionError, KeyError]
    assert "Work: second failed" in caplog.text
    logged = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert logged == [ZeroDivisionError, KeyError]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_request_to_stop_passes(stop: type[BaseException]) -> None:
    """Ctrl-C ends the work, not one part of it."""
    with pytest.raises(stop), Failures("Work").of("part"):
        raise stop


def broken(shared: SharedMemory) -> Cluster:
    """A process that can read no topic."""
    cluster = Cluster.open(shared.open(), create=True, shards=2, settings=PLAIN)
    # Its clock has been recorded for long enough that ages are reliable.
    shared.clock.advance_ms(2 * 3_600_000)
    store = cluster.store
    store.plan = lambda verb, path: (  # type: ignore[attr-defined]
        Fault.FAIL_BEFORE if verb in ("get", "list") and path.startswith(TOPICS) else Fault.NONE
    )
    return cluster


@pytest.mark.parametrize(
    "work",
    [
        lambda cluster: Compactor(cluster).step(10**9),
        lambda cluster: Retention(cluster).enforce_all(),
        lambda cluster: LogCleanup(cluster).run(),
        lambda cluster: ProducerExpiry(cluster).run(),
        lambda cluster: Vacuum(cluster).run(),
        lambda cluster: Housekeeper(cluster, HousekeepingSettings(lease_ms=1_000)).run_once(),
    ],
    ids=["compactor", "retention", "log files", "producers", "vacuum", "housekeeper"],
)
def test_maintenance_reports_every_topic_that_failed(work) -> None:  # type: ignore[no-untyped-def]
    """Only the first was reported: the second showed after the first was repaired (R37)."""
    cluster = broken(world())
    with pytest.raises(StorageError) as found:
        work(cluster)
    assert found.value.retriable
    assert len(found.value.errors) >= len(TOPICS)
    for topic in TOPICS:
        assert topic in found.value.message


@pytest.mark.parametrize(
    "work",
    [
        lambda cluster: Compactor(cluster).step(10**9),
        lambda cluster: Retention(cluster).enforce_all(),
        lambda cluster: LogCleanup(cluster).run(),
        lambda cluster: ProducerExpiry(cluster).run(),
        lambda cluster: Vacuum(cluster).run(),
    ],
    ids=["compactor", "retention", "log files", "producers", "vacuum"],
)
def test_bug_in_one_topic_stops_the_work_on_no_other(
    work: Callable[[Cluster], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only errors of txnlog were collected: any other ended the work on all later topics (R37)."""
    cluster = Cluster.open(world().open(), settings=PLAIN)
    reached = []
    read = DeltaLog.refresh

    def refresh(log: DeltaLog, **given: bool) -> None:
        if log.path in TOPICS:
            reached.append(log.path)
            if log.path == TOPICS[0]:
                raise ZeroDivisionError
        read(log, **given)

    monkeypatch.setattr(DeltaLog, "refresh", refresh)
    with pytest.raises(UnexpectedError, match=TOPICS[0]) as found:
        work(cluster)
    assert isinstance(found.value.__cause__, ZeroDivisionError)
    assert reached.index(TOPICS[1]) > reached.index(TOPICS[0])
