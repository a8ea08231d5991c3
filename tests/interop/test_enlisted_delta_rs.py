"""delta-rs writes a table while transactions of txnlog take part in it; all rows are there."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType

from tests.storage.foreign_table import decided, opened, publish, staged_part, yes
from txnlog.errors import TableChangedError, TableFeatureError
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.enlisted_log import AlreadyPublished, Published, TableReplaced


def rows(*ids: int, day: str = "mon") -> pa.Table:
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "day": pa.array([day] * len(ids), pa.string())}
    )


@pytest.fixture
def url(tmp_path: Path) -> Path:
    """A table of two commits, partitioned by day."""
    write_deltalake(tmp_path / "t", rows(1), partition_by=["day"])
    write_deltalake(tmp_path / "t", rows(2, day="tue"), mode="append")
    return tmp_path / "t"


def ids(url: Path) -> list[int]:
    return sorted(DeltaTable(url).to_pyarrow_table()["id"].to_pylist())


def compact(url: Path) -> None:
    DeltaTable(url).optimize.compact()


def vacuum(url: Path) -> None:
    """All that delta-rs thinks is no file of the table."""
    compact(url)
    DeltaTable(url).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def add_column(url: Path) -> None:
    DeltaTable(url).alter.add_columns([Field("note", PrimitiveType("string"), nullable=True)])


def set_properties(url: Path) -> None:
    DeltaTable(url).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})


def checkpoint_and_clean_up(url: Path) -> None:
    DeltaTable(url).create_checkpoint()
    DeltaTable(url).cleanup_metadata()


def delete_rows(url: Path) -> None:
    DeltaTable(url).delete("id = 1")


def restore(url: Path) -> None:
    DeltaTable(url).restore(0)


CHANGES: dict[str, tuple[Callable[[Path], object], list[int]]] = {
    "append": (lambda url: write_deltalake(url, rows(3), mode="append"), [1, 2, 3, 9]),
    "compact": (compact, [1, 2, 9]),
    "vacuum": (vacuum, [1, 2, 9]),
    "add column": (add_column, [1, 2, 9]),
    "properties": (set_properties, [1, 2, 9]),
    "checkpoint": (checkpoint_and_clean_up, [1, 2, 9]),
    "delete": (delete_rows, [2, 9]),
    "restore": (restore, [1, 9]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_foreign_change_between_decision_and_publication(url: Path, name: str) -> None:
    """The part is published after it, and is once in what delta-rs reads, also after all of it."""
    change, wanted = CHANGES[name]
    staged = staged_part(url, rows(9))
    change(url)
    assert isinstance(publish(staged), Published)
    assert ids(url) == wanted
    vacuum(url)
    checkpoint_and_clean_up(url)
    assert publish(staged) == AlreadyPublished(DeltaTable(url).version())
    assert ids(url) == wanted


@pytest.mark.parametrize("name", CHANGES)
def test_overwrite_replaces_what_is_live_then(url: Path, name: str) -> None:
    """Also rows that delta-rs has moved to another file since the decision."""
    change, _ = CHANGES[name]
    staged = staged_part(url, rows(9), mode="overwrite", partitions=[{"day": "mon"}])
    change(url)
    assert isinstance(publish(staged), Published)
    wanted = {"restore": [9]}
    assert ids(url) == wanted.get(name, [2, 9])
    whole = staged_part(url, rows(7), mode="overwrite", epoch=1)
    change(url)
    publish(whole)
    assert ids(url) == [7]


def test_new_constraint_blocks_until_it_is_dropped(url: Path) -> None:
    """Nobody has checked the staged rows with it; Arrow rows then need an engine."""
    staged = staged_part(url, rows(9))
    DeltaTable(url).alter.add_constraint({"small": "id < 5"})
    with pytest.raises(TableChangedError, match="new rule: id < 5"):
        publish(staged)
    with pytest.raises(TableFeatureError, match=r"evaluates 'delta\.constraints\.small'"):
        staged_part(url, rows(3))
    DeltaTable(url).alter.drop_constraint("small")
    assert isinstance(publish(staged), Published)
    assert ids(url) == [1, 2, 9]


def test_rows_are_given_up_by_any_writer_who_commits_their_txn(url: Path) -> None:
    """The error says which: the way out where a change cannot be undone."""
    from deltalake.transaction import Transaction

    staged = staged_part(url, rows(9))
    DeltaTable(url).alter.add_constraint({"small": "id < 5"})
    with pytest.raises(TableChangedError) as raised:
        publish(staged)
    found = re.search(r"appId '([^']+)' and the version (\d+)", raised.value.message)
    assert found is not None
    done = CommitProperties(app_transactions=[Transaction(found[1], int(found[2]))])
    nothing = DeltaTable(url).to_pyarrow_table().slice(0, 0)
    write_deltalake(url, nothing, mode="append", commit_properties=done)
    assert isinstance(publish(staged), AlreadyPublished)
    assert ids(url) == [1, 2]


def test_table_that_is_made_again_gets_nothing(url: Path) -> None:
    """mode="overwrite" with another schema keeps the id; another table has another one."""
    staged = staged_part(url, rows(9))
    for log_file in (url / "_delta_log").iterdir():
        log_file.unlink()
    write_deltalake(url, rows(5), partition_by=["day"])
    assert publish(staged) == TableReplaced(str(DeltaTable(url).metadata().id))
    assert ids(url) == [5]


def test_schema_overwrite_is_told_apart(url: Path) -> None:
    """The id stays, and the columns decide."""
    staged = staged_part(url, rows(9))
    other = pa.table({"id": ["x"], "day": ["mon"]})
    write_deltalake(url, other, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(TableChangedError, match="column 'id' has another type"):
        publish(staged)
    write_deltalake(url, rows(4), mode="overwrite", schema_mode="overwrite")
    assert isinstance(publish(staged), Published)
    assert ids(url) == [4, 9]


def test_table_of_many_commits_and_checkpoints_is_followed(tmp_path: Path) -> None:
    """From one process that follows it, and from others that open it, in a random order."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    url = tmp_path / "t"
    hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
    write_deltalake(url, rows(), partition_by=["day"])
    log = opened(ObjectStore.from_url(str(url), create=False))
    wanted: list[int] = []
    for number in range(40):
        match chosen.randrange(4):
            case 0:
                write_deltalake(url, rows(number), mode="append", post_commithook_properties=hooks)
                wanted.append(number)
            case 1:
                DeltaTable(url).create_checkpoint()
            case 2:
                compact(url)
            case _:
                publish(staged_part(url, rows(number), epoch=number))
                wanted.append(number)
        log.refresh()
        assert log.state.version == DeltaTable(url).version()
    assert ids(url) == wanted
    fresh = opened(ObjectStore.from_url(str(url), create=False))
    assert (fresh.state.txns, fresh.state.definition) == (log.state.txns, log.state.definition)


def test_writers_of_both_kinds_at_the_same_time(url: Path) -> None:
    """Two processes that publish the same parts, and delta-rs, which appends and compacts."""
    parts = [staged_part(url, rows(100 + number), epoch=number) for number in range(15)]

    def write(number: int) -> None:
        write_deltalake(url, rows(200 + number), mode="append")
        if number % 4 == 0:
            with suppress(CommitFailedError):
                compact(url)

    jobs = [
        lambda: [publish(part) for part in parts],
        lambda: [publish(part) for part in parts],
        lambda: [write(number) for number in range(15)],
    ]
    with ThreadPoolExecutor() as pool:
        outcomes = [job.result() for job in [pool.submit(job) for job in jobs]]
    assert ids(url) == [1, 2, *range(100, 115), *range(200, 215)]
    made = [each for outcome in outcomes[:2] for each in outcome]
    assert sum(isinstance(each, Published) for each in made) == len(parts)


def test_application_transactions_of_delta_rs_are_seen(url: Path) -> None:
    """And ours by delta-rs: the epoch of each producer id."""
    from deltalake.transaction import Transaction

    properties = CommitProperties(app_transactions=[Transaction("job", 5)])
    write_deltalake(url, rows(3), mode="append", commit_properties=properties)
    staged = staged_part(url, rows(9), epoch=2)
    publish(staged)
    log = opened(ObjectStore.from_url(str(url), create=False))
    assert log.state.txns == {"job": 5, staged.decided.app_id: 2}
    assert DeltaTable(url).transaction_version(staged.decided.app_id) == 2
    assert log.publish(
        log.read_part(staged.file), decided(log, 2), is_still_decided=yes
    ) == AlreadyPublished(log.state.version)
