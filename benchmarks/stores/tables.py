"""Transactions with Delta tables of others on S3, beside delta-rs."""

from __future__ import annotations

from benchmarks.figures import Figure
from benchmarks.scale import Scale
from benchmarks.stores.server import s3_server
from benchmarks.tables import compare


def measure(scale: Scale) -> list[Figure]:
    """As `benchmarks.tables`, behind a round trip."""
    with s3_server() as server:
        far = server.far
        return compare(
            far.settings("topics"), far.root("tables"), dict(far.storage), scale.store_transactions
        )
