"""polars reads our topics through delta-rs and pyarrow, as docs/sql.md describes."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.interop.test_other_readers import history
from txnlog.cluster import Cluster
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import LogSettings

polars = pytest.importorskip("polars", reason="pip install polars")

TRUST_MS = 60_000


@pytest.mark.parametrize("checkpointed", [False, True])
def test_polars_with_pyarrow_headers_and_records_same_as_delta_rs(
    tmp_path: Path, checkpointed: bool
) -> None:
    """Its own reader takes header columns from folder names, and finds null (R11)."""
    settings = LogSettings(checkpoint_mode="off")
    cluster = Cluster.open(str(tmp_path / "root"), create=True, shards=1, settings=settings)
    topic = history(cluster)
    if checkpointed:
        assert create_checkpoint(cluster.store, "events", trust_ms=TRUST_MS) == topic.log.version
    folder = str(tmp_path / "root" / "events")
    frame = polars.read_delta(folder, use_pyarrow=True)
    order = ["partition", "base_offset", "offset_delta"]
    columns = [*order, "txn_status", "key", "value"]
    found = frame.sort(order).select(columns).rows()
    table = DeltaTable(folder).to_pyarrow_table().sort_by([(name, "ascending") for name in order])
    assert found == [tuple(row.values()) for row in table.select(columns).to_pylist()]
    assert len(found) == 3 * 6 + 3 + 3
    dataset = DeltaTable(folder).to_pyarrow_dataset()
    wanted = pc.field("txn_status").isin(["none", "committed"])
    assert dataset.count_rows(filter=wanted) == 3 * 6 + 3
    assert frame.filter(polars.col("txn_status").is_in(["none", "committed"])).height == 3 * 6 + 3
