"""A checkpoint folder: ids, offsets, commits, and locations our stores can and cannot read."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest

from checkpoint import Checkpoint, is_readable
from checkpoint.location import store_url
from txnlog.errors import CheckpointError

SPARKS = Path(__file__).parent / "spark_checkpoints"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of what Spark wrote, in a folder whose name a URL would escape."""
    return Path(shutil.copytree(SPARKS / "v1", tmp_path / "my %20 checkpoint"))


@pytest.mark.parametrize("layout", ["v1", "v2", "v2_named"])
def test_checkpoint_of_spark_gives_id_batches_and_commits(layout: str) -> None:
    """Hazard: checksum files in the logs' folders are taken for batches (R54)."""
    checkpoint = Checkpoint(str(SPARKS / layout))
    stored = json.loads((SPARKS / layout / "metadata").read_text())
    assert checkpoint.query_id() == stored["id"]
    assert [checkpoint.committed(batch_id) for batch_id in range(4)] == [True, True, True, False]
    assert checkpoint.offsets(3) is None
    assert checkpoint.offsets(2) is not None


def test_checkpoint_without_its_last_commit_still_has_the_planned_batch(folder: Path) -> None:
    """Hazard: a planned batch that Spark will replay is taken for done, or for unplanned (R54)."""
    (folder / "commits" / "2").unlink()
    checkpoint = Checkpoint(str(folder))
    assert not checkpoint.committed(2)
    assert checkpoint.committed(1)
    assert checkpoint.planned(2).digest == Checkpoint(str(SPARKS / "v1")).planned(2).digest


@pytest.mark.parametrize("prefix", ["", "file:", "file://", "file://localhost"])
def test_checkpoint_written_as_hadoop_writes_it_is_found(folder: Path, prefix: str) -> None:
    """Hazard: file:/path with one slash, or a %20 that Hadoop does not decode."""
    assert Checkpoint(f"{prefix}{folder}/").committed(2)


def test_checkpoint_built_on_nothing_does_no_io(tmp_path: Path) -> None:
    """Hazard: constructors run in planners, and a read must not create the folder (R59)."""
    lost = tmp_path / "lost"
    checkpoint = Checkpoint(str(lost), {"aws_secret_access_key": "hunter2"})
    assert checkpoint.offsets(0) is None
    assert not checkpoint.committed(0)
    with pytest.raises(CheckpointError, match=r"lost/metadata does not exist.*fs\.defaultFS"):
        checkpoint.query_id()
    assert not lost.exists()


def test_checkpoint_pickled_reads_the_same_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Hazard: sinks are pickled to workers; an open store cannot be, a relative path moves."""
    monkeypatch.chdir(folder.parent)
    checkpoint = Checkpoint(folder.name)
    assert checkpoint.committed(2)
    sent = pickle.dumps(checkpoint)
    monkeypatch.chdir("/")
    assert pickle.loads(sent).committed(2)


def test_checkpoint_shown_keeps_its_secrets() -> None:
    """Hazard: a secret in an option or a location gets into a log (R67)."""
    shown = repr(Checkpoint("s3a://KEY:hunter2@bucket/ck", {"aws_secret_access_key": "hunter2"}))
    assert "hunter2" not in shown
    assert "bucket/ck" in shown
    with pytest.raises(CheckpointError) as caught:
        Checkpoint("hdfs://user:hunter2@name/ck")
    assert "hunter2" not in str(caught.value)


def test_checkpoint_planned_batch_without_file_names_it_and_the_fix(folder: Path) -> None:
    """Hazard: a batch commits without its offsets because the file was deleted (R59)."""
    with pytest.raises(CheckpointError, match="offsets/3 does not exist") as caught:
        Checkpoint(f"file:{folder}").planned(3)
    assert "startingOffsets=committed" in str(caught.value)
    assert "fs.defaultFS" not in str(caught.value)
    assert caught.value.context["batch_id"] == 3


@pytest.mark.parametrize("data", [b"", b"\0\0\0", b"{}", b'{"id":4}', b'{"id":"4b', b"\xff"])
def test_checkpoint_with_damaged_metadata_is_refused_by_name(folder: Path, data: bytes) -> None:
    """Hazard: with the wrong query id another query's batches are taken for this one's (R66)."""
    (folder / "metadata").write_bytes(data)
    with pytest.raises(CheckpointError, match="metadata is damaged"):
        Checkpoint(str(folder)).query_id()


@pytest.mark.parametrize("data", [b"", b"\0\0\0", b"{}", b'v1\n{"nextBatch', b"v1\n\xff", b"v1\n7"])
def test_checkpoint_with_a_damaged_commit_is_refused_by_name(folder: Path, data: bytes) -> None:
    """Hazard: a zero-filled file after a power cut is taken for a commit (R66)."""
    (folder / "commits" / "1").write_bytes(data)
    with pytest.raises(CheckpointError, match="commits/1 is damaged"):
        Checkpoint(str(folder)).committed(1)


@pytest.mark.parametrize("data", [b"v1", b'v2\n{"nextBatchWatermarkMs":0}', b"v3\n{}"])
def test_checkpoint_with_any_known_commit_version_is_read(folder: Path, data: bytes) -> None:
    """Hazard: a stateful query writes another version of the commit log."""
    (folder / "commits" / "1").write_bytes(data)
    assert Checkpoint(str(folder)).committed(1)


def test_checkpoint_with_a_later_commit_version_names_the_upgrade(folder: Path) -> None:
    """Hazard: a format of a later Spark guessed at (R66)."""
    (folder / "commits" / "1").write_bytes(b"v4\n{}")
    with pytest.raises(CheckpointError, match=r"commits/1 has version v4.*Upgrade"):
        Checkpoint(str(folder)).committed(1)


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/a/b/", "/a/b"),
        ("file:/a//b", "/a/b"),
        ("file:////a/b", "/a/b"),
        ("//a/b", "/a/b"),
        ("s3a://bucket/a/b/", "s3://bucket/a/b"),
        ("S3://bucket/a", "s3://bucket/a"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("az://container/a", "az://container/a"),
        ("abfss://c@account.dfs.core.windows.net/a", "abfss://c@account.dfs.core.windows.net/a"),
        ("wasbs://c@account.blob.core.windows.net/a", "abfss://c@account.dfs.core.windows.net/a"),
    ],
)
def test_location_our_stores_read_is_written_their_way(location: str, url: str) -> None:
    """Hazard: Spark uses s3a: and file:/, obstore does not."""
    assert store_url(location) == url
    assert is_readable(location)


@pytest.mark.parametrize(
    "location", ["hdfs://name:8020/ck", "hdfs:/ck", "wasbs://c@a/ck", "dbfs:/ck", "file://host/ck"]
)
def test_location_only_hadoop_reads_is_refused_with_the_fix(location: str) -> None:
    """Hazard: a group.id whose offsets cannot be read commits the output without them (R59)."""
    assert not is_readable(location)
    with pytest.raises(CheckpointError, match=r"cannot read.*s3://.*omit option group\.id on"):
        Checkpoint(location)


def test_empty_location_names_the_option_to_set() -> None:
    """Hazard: spark.sql.streaming.checkpointLocation set as a conf never reaches the sink."""
    assert not is_readable("")
    with pytest.raises(CheckpointError, match="on the query itself"):
        Checkpoint("")
