"""What the demo concludes about a killed driver, on tables that delta-rs wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from flights_autopsy import Autopsy, autopsy, unsettled_transactions

PRODUCER_ID = 7


def write_state(root: Path, state: str, topics: list[str], txn_epoch: int = 3) -> None:
    row = {
        "transactional_id": "q",
        "producer_id": PRODUCER_ID,
        "txn_epoch": txn_epoch,
        "state": state,
        "partitions": json.dumps([{"topic": topic} for topic in topics]),
        "pending": json.dumps({"batches": [{"topic": topic} for topic in topics]}),
    }
    write_deltalake(root / "__transaction_state-0", pa.Table.from_pylist([row]))


def write_topic(root: Path, topic: str, marker: int | None) -> None:
    markers = [] if marker is None else [Transaction(f"txnlog/{PRODUCER_ID}", marker)]
    write_deltalake(
        root / topic,
        pa.table({"value": [b"x"]}),
        commit_properties=CommitProperties(app_transactions=markers),
    )


def write_checkpoint(folder: Path, offsets: int, commits: int) -> None:
    for name, count in (("offsets", offsets), ("commits", commits)):
        (folder / name).mkdir(parents=True)
        for batch in range(count):
            (folder / name / str(batch)).touch()
            (folder / name / f".{batch}.crc").touch()


def test_autopsy_between_two_markers_counts_one_of_two(tmp_path: Path) -> None:
    """The kill the demo must show: decided, and half published (R36)."""
    write_state(tmp_path, "PREPARE_COMMIT", ["departures", "cancellations"])
    write_topic(tmp_path, "departures", 3)
    write_topic(tmp_path, "cancellations", 2)
    write_checkpoint(tmp_path / "checkpoint", 5, 4)
    found = autopsy(tmp_path, tmp_path / "checkpoint")
    assert found == Autopsy(unpublished=1, topics=2, topics_marked=1, unlogged_batches=1)
    assert not found.contradicts("marker.after")
    assert found.contradicts("prepare_commit.after")
    assert found.contradicts("sink_commit.after")
    assert "1 of 2 topics marked" in found.describe()
    assert unsettled_transactions(tmp_path) == 1


def test_autopsy_after_prepare_finds_no_marker(tmp_path: Path) -> None:
    """A topic that never saw this producer has no `txn` at all."""
    write_state(tmp_path, "PREPARE_COMMIT", ["departures"])
    write_topic(tmp_path, "departures", None)
    found = autopsy(tmp_path, tmp_path / "no-checkpoint")
    assert found == Autopsy(unpublished=1, topics=1, topics_marked=0, unlogged_batches=0)
    assert not found.contradicts("prepare_commit.after")
    assert found.contradicts("marker.after")


@pytest.mark.parametrize(("commits", "struck"), [(4, True), (5, False)])
def test_autopsy_after_sink_commit_misses_one_commits_file(
    tmp_path: Path, commits: int, struck: bool
) -> None:
    """The demo must not report a kill "before commits/<n>" if commits/<n> exists (R54)."""
    write_state(tmp_path, "PREPARE_COMMIT", ["departures"])
    write_topic(tmp_path, "departures", 3)
    write_checkpoint(tmp_path / "checkpoint", 5, commits)
    found = autopsy(tmp_path, tmp_path / "checkpoint")
    assert found.contradicts("sink_commit.after") is not struck
    assert not found.contradicts("random")
    assert unsettled_transactions(tmp_path) == 0
