"""A table whose rows are to be staged where any VACUUM deletes them."""

from __future__ import annotations

from typing import Any, cast

import pytest
from msgspec.structs import replace

from spark_sink.table_staging import StagedWrites
from tests.tables import NAME, with_table
from tests.world import process, world
from txnlog.errors import TableFeatureError
from txnlog.settings.config import Config


def test_table_of_visible_staging_is_refused() -> None:
    """Spark stages below `_txnlog`, where rows could outlive their erasure (R72)."""
    shared = world()
    cluster = process(shared)
    with_table(shared, cluster)
    cluster.enlist(NAME, replace(cluster.enlisted()[NAME], staging="visible"))
    with pytest.raises(TableFeatureError, match="staging=visible"):
        StagedWrites(cluster, cast(Config, None), cast(Any, None), NAME, "append")
