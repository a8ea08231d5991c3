"""Checkpoints: they equal the log they replace, damage is found, clean-up keeps what is needed."""

from __future__ import annotations

import logging
import random
from functools import partial
from pathlib import Path

import pytest

from tests.interrupting import interrupted_at
from tests.staged_files import named_file_of
from tests.storage.number_log import (
    HOUR_MS,
    OFF,
    TABLE,
    History,
    checkpoint,
    created,
    opened,
    slots,
    write,
)
from txnlog.errors import CorruptLogError, LogGapError, StorageError
from txnlog.process import threads
from txnlog.protocol.appends import prepare_append, prepare_marker
from txnlog.protocol.metadata import ProducerIdAndEpoch, StagedBatch
from txnlog.protocol.states import TransactionResult
from txnlog.storage.delta import checkpointer, log_files
from txnlog.storage.delta.actions import Commit, CommitInfo
from txnlog.storage.delta.checkpoints import Covered, continue_from
from txnlog.storage.delta.delta_log import Committed, DeltaLog, LogSettings
from txnlog.storage.delta.log_cleanup import clean_up
from txnlog.storage.delta.log_files import checkpoint_path, commit_path
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.store.seals import MAGIC
from txnlog.storage.tables.topic_log import TopicLog
from txnlog.testing.faults import Fault, FaultsAt, SharedMemory
from txnlog.testing.invariants import check_topic_rebuilds

HINT = f"{TABLE}/_delta_log/_last_checkpoint"
INLINE = LogSettings(checkpoint_interval=5, checkpoint_mode="inline")


# --- Equal to the log (R11) -----------------------------------------------------------------------


def test_checkpoint_equals_the_commits_it_replaces(store: ObjectStore) -> None:
    """A checkpoint that forgets a txn version lets a zombie write again (R11)."""
    created(store, 20)
    _, before = opened(store)
    assert checkpoint(store) == 20
    store.delete([commit_path(TABLE, version) for version in range(20)])
    log, after = opened(store)
    assert log.version == 20
    assert after.numbers == before.numbers


def test_checkpoint_on_top_of_a_checkpoint_equals_the_log(store: ObjectStore) -> None:
    """The second one is made from the first and the commits after it."""
    log = created(store, 7)
    checkpoint(store)
    store.delete([commit_path(TABLE, version) for version in range(7)])
    log.refresh()
    for number in range(8, 12):
        write(log, number)
    assert checkpoint(store) == 11
    _, view = opened(store)
    assert view.numbers == {f"{n}": n for n in range(1, 12)}


def test_checkpoint_with_nothing_new_is_not_made_again(store: ObjectStore) -> None:
    """Two processes may both find that it is time."""
    created(store, 3)
    assert checkpoint(store) == 3
    before = slots(store)
    assert checkpoint(store) == 3
    assert slots(store) == before


def test_topic_memory_rebuilt_from_a_checkpoint_equals_warm_memory(store: ObjectStore) -> None:
    """Headers, markers, sequences and ends must come back letter for letter (R11, R19)."""
    topic = TopicLog(store, TABLE, settings=LogSettings(checkpoint_mode="off"))
    topic.create(partitions=3, config={"retention.ms": "5"})
    for epoch in range(12):
        batches = [staged(topic, p, epoch) for p in range(3) if (p + epoch) % 3]
        eager = epoch % 4 == 0
        if eager:
            topic.transact(
                lambda state, e=epoch, b=batches: prepare_append(
                    state,
                    b,
                    producer=ProducerIdAndEpoch(7, e),
                    base_sequences={},
                    transactional=True,
                )
            )
        result = TransactionResult.ABORT if epoch == 8 else TransactionResult.COMMIT
        topic.transact(
            lambda state, e=epoch, b=() if eager else batches, r=result: prepare_marker(
                state,
                topic_id=topic.topic_id,
                transaction=ProducerIdAndEpoch(7, e),
                result=r,
                batches=b,
            )
        )
        topic.transact(
            lambda state, e=epoch: prepare_append(
                state,
                [staged(topic, 0, 100 + e)],
                producer=ProducerIdAndEpoch(100 + e, 0),
                base_sequences={0: 0},
                transactional=False,
            )
        )
        if epoch in (5, 9):
            checkpoint(store)
        check_topic_rebuilds(topic)
    checkpoint(store)
    clean_up(store, TABLE, retention_ms=-1)
    check_topic_rebuilds(topic)


def staged(topic: TopicLog, partition: int, number: int) -> StagedBatch:
    return named_file_of(
        topic,
        f"part-{partition}-{number}.parquet",
        partition=partition,
        records=1 + number % 3,
        size_bytes=100 + number,
        times_us=(-5 + number, 1_700_000_000_123_456 + number),
    )


# --- The hint -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hint",
    [
        b'{"version":3,"size":1}',
        b'{"version":999999,"size":1}',
        b'{"version":-7}',
        b'{"version":"seven"}',
        b'{"version":123456789012345678901234567890}',
        b'{"version":3.5}',
        b'{"version":null}',
        b"[]",
        b"7",
        b"",
        bytes(40),
        b"\xff\xfe\x00garbled",
        b'{"version":3,"si',
        None,
    ],
)
def test_hint_stale_ahead_garbled_or_missing_is_harmless(
    store: ObjectStore, hint: bytes | None
) -> None:
    """`_last_checkpoint` is written after the checkpoint, and may be anything (R66)."""
    log = created(store, 3)
    checkpoint(store)
    for number in range(4, 8):
        write(log, number)
    checkpoint(store)
    write(log, 8)
    clean_up(store, TABLE, retention_ms=-1)
    if hint is None:
        store.delete([HINT])
    else:
        store.put(HINT, hint)
    reader, view = opened(store)
    assert reader.version == 8
    assert view.numbers == {f"{n}": n for n in range(1, 9)}
    assert checkpoint(store) == 8


# --- Damage (R66) ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["empty", "zeros", "half", "tail", "noise", "json"])
def test_open_damaged_checkpoint_is_an_error_that_names_the_file(
    store: ObjectStore, how: str
) -> None:
    """A checkpoint that reads as an empty table would hand out every offset again (R66)."""
    created(store, 5)
    checkpoint(store)
    path = checkpoint_path(TABLE, 5)
    data = store.get(path)
    damaged = {
        "empty": b"",
        "zeros": bytes(len(data)),
        "half": data[: len(data) // 2],
        "tail": data[:-1],
        "noise": random.Random(3).randbytes(len(data)),
        "json": b'{"add":{}}',
    }[how]
    store.put(path, damaged)
    store.delete([commit_path(TABLE, 0)])
    with pytest.raises(CorruptLogError, match=f"{5:020}.checkpoint.parquet"):
        opened(store)


def test_open_checkpoint_with_a_flipped_bit_is_an_error(store: ObjectStore, seed: int) -> None:
    """Parquet has no checksum of its footer, and a reader may even crash on a flipped bit (R66)."""
    created(store, 5)
    checkpoint(store)
    path = checkpoint_path(TABLE, 5)
    data = store.get(path)
    store.delete([commit_path(TABLE, 0)])
    rng = random.Random(seed)
    for _ in range(150):
        flipped = bytearray(data)
        at = rng.randrange(len(data))
        flipped[at] ^= 1 << rng.randrange(8)
        store.put(path, bytes(flipped))
        if 0 <= at - data.rindex(MAGIC) < len(MAGIC):
            # The mark of the seal alone is damaged: an unsealed file, with every row right.
            assert opened(store)[0].version == 5
            continue
        with pytest.raises(CorruptLogError, match=f"{5:020}.checkpoint.parquet"):
            opened(store)
    store.put(path, data)
    assert opened(store)[0].version == 5


def test_open_checkpoint_made_by_another_tool_is_read(tmp_path: Path) -> None:
    """Users may run Delta's own tools, which write checkpoints without our checksum."""
    from deltalake import DeltaTable

    store = ObjectStore.from_url(str(tmp_path / "root"))
    created(store, 5)
    DeltaTable(str(tmp_path / "root" / TABLE)).create_checkpoint()
    store.delete([commit_path(TABLE, version) for version in range(6)])
    log, view = opened(store)
    assert (log.version, len(view.numbers)) == (5, 5)


def test_checkpoint_is_readable_by_delta_rs(tmp_path: Path) -> None:
    """Our checksum is in the file, in a place that Parquet readers ignore."""
    from deltalake import DeltaTable

    store = ObjectStore.from_url(str(tmp_path / "root"))
    log = created(store, 5)
    checkpoint(store)
    store.delete([commit_path(TABLE, version) for version in range(5)])
    write(log, 6)
    table = DeltaTable(str(tmp_path / "root" / TABLE))
    assert table.version() == 6
    assert table.transaction_version("3") == 3


# --- Making one while committing ------------------------------------------------------------------


def test_commit_whose_checkpoint_fails_is_committed_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A commit that landed must never be reported as an error by what comes after it."""
    shared = SharedMemory()
    store = shared.open()
    log = created(store, 4, INLINE)
    store.plan = FaultsAt(dict.fromkeys(range(2, 11), Fault.FAIL_BEFORE))
    with caplog.at_level(logging.WARNING):
        assert write(log, 5) == Committed(5)
    assert "A checkpoint of orders failed" in caplog.text
    store.plan = lambda verb, path: Fault.NONE
    for number in range(6, 11):
        assert isinstance(write(log, number), Committed)
    assert log_files.list_log(store, TABLE).checkpoints == [10]


def test_checkpoint_that_took_too_long_is_thrown_away() -> None:
    """It may have read another writer's stray file, which its checkpoint would keep (R70)."""
    shared = SharedMemory()
    created(shared.open(), 3)
    store = shared.open(
        plan=FaultsAt({}, interlude=lambda: shared.clock.advance_ms(HOUR_MS), interlude_at=2)
    )
    with pytest.raises(StorageError, match="more than 30 min .* run `txnlog housekeeping`"):
        checkpoint(store)
    assert log_files.list_log(shared.open(), TABLE).checkpoints == []


@pytest.mark.parametrize("mode", ["inline", "background"])
def test_commits_make_checkpoints_at_the_interval(mode: str) -> None:
    """Without them a cold start reads every commit there ever was."""
    store = SharedMemory().open()
    log = created(store, 0, LogSettings(checkpoint_interval=5, checkpoint_mode=mode))
    for number in range(1, 24):
        write(log, number)
        checkpointer.wait_for_background()
    made = [name for name in slots(store) if name.endswith(".parquet")]
    assert made == [f"{version:020}.checkpoint.parquet" for version in (5, 10, 15, 20)]


def test_checkpoints_of_a_fast_writer_rest_and_are_made_all_the_same() -> None:
    """They took a third of the time of a producer that commits a thousand times a second.

    Most of its commits need not be read again.
    """
    shared = SharedMemory()
    read = []

    def slow(verb: str, path: str) -> Fault:
        if verb == "get" and path.endswith("0.json"):
            read.append(int(path[-25:-5]))
        shared.clock.advance_ms(10 if verb == "put" and path.endswith(".parquet") else 0)
        return Fault.NONE

    store = shared.open(plan=slow)
    settings = LogSettings(checkpoint_interval=5, checkpoint_mode="background")
    log = created(store, 0, settings)
    for number in range(1, 44):
        shared.clock.advance_ms(200 if number == 34 else 1)
        write(log, number)
        checkpointer.wait_for_background()
    made = [name for name in slots(store) if name.endswith(".parquet")]
    assert made == [f"{version:020}.checkpoint.parquet" for version in (5, 30, 35)]
    assert read == [0, 10, 30]


def test_no_checkpoint_is_made_of_kept_commits_that_are_not_in_the_log() -> None:
    """An older copy may have been restored; the newest commit is read, and its chain shows it."""
    store = SharedMemory().open()
    log = created(store, 1, OFF)
    covered = Covered(checkpoint(store), store.clock.boot_ms())
    kept = {2: Commit(2, CommitInfo(), (), "digest of another commit")}
    for number in (2, 3):
        write(log, number)
    settings = LogSettings(checkpoint_interval=1)
    with pytest.raises(CorruptLogError, match="does not follow|replaced"):
        continue_from(store, TABLE, settings, covered, Covered(3, covered.since_ms), kept)
    assert log_files.list_log(store, TABLE).checkpoints == [1]


@pytest.mark.parametrize("others", [0, 3])
def test_writers_of_one_log_share_the_time_for_its_checkpoints(others: int) -> None:
    """Sixteen processes, a twentieth of the time each, were most of the work of two processors."""
    shared = SharedMemory()

    def slow(verb: str, path: str) -> Fault:
        shared.clock.advance_ms(10 if verb == "put" and path.endswith(".parquet") else 0)
        return Fault.NONE

    settings = LogSettings(checkpoint_interval=5, checkpoint_mode="background")
    log = created(shared.open(plan=slow), 0, settings)
    other, _ = opened(shared.open())
    while log.version < 120:
        # Of the versions with which a checkpoint is due, one in 1 + `others` is this process's.
        is_ours = (log.version + 1) % (5 * (1 + others)) == 0
        writer = log if is_ours else other
        writer.refresh()
        write(writer, 1)
        log.refresh()
        checkpointer.wait_for_background()
    rests_ms = log._checkpointer._rests_until_ms - shared.clock.boot_ms()
    assert rests_ms == 19 * (1 + others) * 10


def test_interrupt_while_a_checkpoint_is_queued_does_not_prevent_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task that was noted, and never queued, would cover all later commits of the process."""
    store = SharedMemory().open()
    settings = LogSettings(checkpoint_interval=1, checkpoint_mode="background")
    log = created(store, 1, settings)
    # A task queued in the thread that is replaced below would cover the first commit after it.
    checkpointer.wait_for_background()
    places = (checkpointer.__file__, threads.__file__)
    number, place = 0, ""
    while place is not None:
        number += 1
        monkeypatch.setattr(checkpointer, "_THREAD", threads.Threads("test", 1))
        head = Commit(log.version, CommitInfo(), ())
        after_commit = partial(log._checkpointer.after_commit, head, store.clock.boot_ms())
        place = interrupted_at(number, after_commit, places)
        checkpointer.wait_for_background()
        # The same number each time: a table of many actions has fewer checkpoints.
        assert isinstance(write(log, 1), Committed)
        checkpointer.wait_for_background()
        assert log_files.list_log(store, TABLE).checkpoints[-1] == log.version, place
        checkpointer._THREAD.end()
    assert number > 10, "hardly anything was interrupted"


def test_open_when_everything_listed_vanishes_again_and_again_ends(store: ObjectStore) -> None:
    """Every loop is bounded, and says what is wrong in the end."""
    created(store, 3)
    log = DeltaLog(store, TABLE, History(), settings=OFF)
    listed = log_files.list_log(store, TABLE)
    store.delete([commit_path(TABLE, 3)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_files, "list_log", lambda *_, **__: listed)
        with pytest.raises(LogGapError, match="could not be read"):
            log.refresh()
