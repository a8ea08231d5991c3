"""A query goes on in a copy of its root: with its checkpoint, or from the group's offsets."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.conftest import Failpoint, Lab
from txnlog.admin import AdminClient

pytestmark = pytest.mark.spark

BATCH = 20


def copied(lab: Lab, name: str) -> Lab:
    """A copy of the root, and of the checkpoint."""
    root, checkpoint = lab.root.with_name(name), lab.checkpoint.with_name(f"{name}-checkpoint")
    AdminClient({"txnlog.root": str(lab.root)}).backup(str(root)).result()
    shutil.copytree(lab.checkpoint, checkpoint)
    return Lab(lab.spark, root, checkpoint)


def test_query_goes_on_in_a_copy_exactly_once(
    lab: Lab, failpoint: Failpoint, tmp_path: Path
) -> None:
    """Its last batch is decided, and neither published nor in the checkpoint's commits (R75)."""
    lab.feed(0, 3 * BATCH)
    failpoint.set("prepare_commit.after@2")
    with pytest.raises(StreamingQueryException):
        lab.run(batch_records=BATCH)
    failpoint.clear()
    copy = copied(lab, "copy")
    assert copy.values() == list(range(2 * BATCH))
    copy.run(batch_records=BATCH)
    assert copy.values() == list(range(3 * BATCH))
    copy.feed(3 * BATCH, 4 * BATCH)
    copy.run()
    copy.check(4 * BATCH)
    # The origin goes on, too, and its next copy by the offsets of the group alone.
    lab.run()
    lab.check(3 * BATCH)
    fresh = copied(lab, "fresh")
    fresh.feed(3 * BATCH, 5 * BATCH)
    fresh.run(checkpoint=tmp_path / "new")
    fresh.check(5 * BATCH)
    # A checkpoint that is newer than a copy would read other records than it says.
    lab.feed(3 * BATCH, 4 * BATCH)
    lab.run()
    shutil.rmtree(copy.checkpoint)
    shutil.copytree(lab.checkpoint, copy.checkpoint)
    with pytest.raises(StreamingQueryException, match="the checkpoint is newer"):
        copy.run()
