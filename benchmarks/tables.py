"""Transactions of a producer with a topic, a Delta table, or both, beside delta-rs alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from statistics import median, quantiles
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.figures import Comparison, Figure, reported
from benchmarks.folders import new_folder
from benchmarks.scale import Scale
from txnlog.admin import AdminClient, NewTopic
from txnlog.producer import Producer

TOPIC = "orders"
ROWS = 100
WARM_UPS = 3
BOTH, TOPIC_ONLY, TABLE_ONLY, DELTA = "both", "a topic", "a table", "delta-rs"
NAME = f"transaction of {ROWS} rows"


def measure(scale: Scale) -> list[Figure]:
    """On a disk; a transaction with both also as a reader of the table sees it."""
    root = new_folder()
    return compare({"txnlog.root": root}, f"{root}-tables", None, scale.client_transactions // 4)


def compare(
    settings: Mapping[str, Any], tables: str, storage: dict[str, str] | None, transactions: int
) -> list[Figure]:
    """All in turns. `tables` is a folder, which delta-rs opens with `storage`."""
    rows = pa.table({"id": range(ROWS), "amount": [float(n) for n in range(ROWS)]})
    values = [b"v" * 16] * ROWS
    with ExitStack() as stack:
        admin = AdminClient(settings)
        admin.create_topics([NewTopic(TOPIC, 1)])
        urls = {name: f"{tables}/{name}" for name in ("first", "second", "delta-rs")}
        for url in urls.values():
            write_deltalake(url, rows, storage_options=storage)
        enlisted = {name: urls[name] for name in ("first", "second")}
        for made in admin.enlist_tables(enlisted).values():
            made.result()
        producers = [
            stack.enter_context(Producer({**settings, "transactional.id": f"bench-{number}"}))
            for number in range(3)
        ]
        for producer in producers:
            producer.init_transactions()

        def transaction(producer: Producer, *, topic: bool = True, table: str = "") -> None:
            with producer.transaction():
                for value in values if topic else ():
                    producer.produce(TOPIC, value)
                if table:
                    producer.append(table, rows)

        # Kept open, as ours are.
        alone = DeltaTable(urls["delta-rs"], storage_options=storage)
        variants: dict[str, Callable[[], None]] = {
            BOTH: lambda: transaction(producers[0], table="first"),
            TOPIC_ONLY: lambda: transaction(producers[1]),
            TABLE_ONLY: lambda: transaction(producers[2], topic=False, table="second"),
            DELTA: lambda: write_deltalake(alone, rows, mode="append"),
        }
        times_ms = _in_turns(variants, transactions)
        visible_ms = _until_visible(variants[BOTH], urls["first"], storage, transactions)
    comparison = Comparison(f"{NAME}, p50", "ms", times_ms, ours=BOTH)
    return [
        *comparison.each(),
        comparison.ratio(TOPIC_ONLY),
        comparison.ratio(TABLE_ONLY),
        comparison.ratio(DELTA),
        reported(f"from begin to visible in delta-rs, {BOTH}, p50", median(visible_ms), "ms"),
        reported("the same, p99", quantiles(visible_ms, n=100)[-1], "ms"),
    ]


def _in_turns(
    variants: Mapping[str, Callable[[], None]], transactions: int
) -> dict[str, list[float]]:
    times_ms: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(-WARM_UPS, transactions):
        order: Sequence[str] = list(variants) if turn % 2 else list(variants)[::-1]
        for name in order:
            took_ms = _ms(variants[name])
            if turn >= 0:
                times_ms[name].append(took_ms)
    return times_ms


def _until_visible(
    write: Callable[[], None], url: str, storage: dict[str, str] | None, transactions: int
) -> list[float]:
    """Until another reader of the table has read the commit."""
    reader = DeltaTable(url, storage_options=storage)
    reader.update_incremental()

    def write_and_read() -> None:
        before = reader.version()
        write()
        reader.update_incremental()
        assert reader.version() == before + 1

    return [_ms(write_and_read) for _ in range(transactions)]


def _ms(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000
