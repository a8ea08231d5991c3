"""Parts in a Delta table of delta-rs, in an object store: both write it at the same time.

On S3 only: delta-rs lists wrongly on Azurite, and takes no token for the fake of GCS.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.storage.foreign_table import publish, staged_part
from tests.stores.servers import Server
from txnlog.storage.tables.enlisted_log import AlreadyPublished


def rows(*ids: int, name: str = "a b/%20c=é") -> pa.Table:
    names = pa.array([name] * len(ids), pa.string())
    return pa.table({"id": pa.array(ids, pa.int64()), "name": names})


@pytest.mark.parametrize(
    "any_server", ["moto", pytest.param("versitygw", marks=pytest.mark.stores)], indirect=True
)
def test_delta_rs_and_parts_write_one_table(any_server: Server) -> None:
    """Special characters in paths, put-if-absent of both, an overwrite of a partition."""
    place = any_server.place()
    options = place.environment
    write_deltalake(place.url, rows(1), partition_by=["name"], storage_options=options)
    store = place.open()
    parts = [staged_part(store, rows(100 + n), epoch=n) for n in range(5)]

    def write(number: int) -> None:
        write_deltalake(place.url, rows(200 + number), mode="append", storage_options=options)

    jobs = [
        lambda: [publish(part) for part in parts],
        lambda: [publish(part) for part in parts],
        lambda: [write(number) for number in range(5)],
    ]
    with ThreadPoolExecutor() as pool:
        for job in [pool.submit(job) for job in jobs]:
            job.result()
    assert isinstance(publish(parts[-1]), AlreadyPublished)

    def ids() -> list[int]:
        found = DeltaTable(place.url, storage_options=options).to_pyarrow_table()
        return sorted(found["id"].to_pylist())

    assert ids() == [1, *range(100, 105), *range(200, 205)]
    write_deltalake(place.url, rows(7, name="x"), mode="append", storage_options=options)
    DeltaTable(place.url, storage_options=options).create_checkpoint()
    replaced = [{"name": rows(0)["name"][0].as_py()}]
    publish(staged_part(place.open(), rows(9), mode="overwrite", partitions=replaced, epoch=5))
    assert ids() == [7, 9]
