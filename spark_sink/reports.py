"""The txnlog figures of one progress event of a streaming query."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from txnlog.coordinator.history import CommittedTransaction
from txnlog.protocol.source_offsets import RESERVED_KEY

Lag = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryReport:
    """A query after a micro-batch; str() is a one-line summary.

    `lag` is topic -> partition -> records that were unread when the batch was planned;
    `transactions` counts the transactions committed since the listener was added; `transaction`
    is the newest of which the figures are known, most often the one before, else None.
    """

    query_id: str
    run_id: str
    name: str | None
    batch_id: int
    timestamp: str
    input_rows: int
    processed_rows_per_second: float
    lag: Lag
    transactions: int
    transaction: CommittedTransaction | None

    @property
    def total_lag(self) -> int:
        """Unread records, over all topics and partitions."""
        return sum(sum(partitions.values()) for partitions in self.lag.values())

    @property
    def label(self) -> str:
        """The query's name, else its id."""
        return self.name or self.query_id

    def __str__(self) -> str:
        topics = ", ".join(f"{topic} {sum(lag.values())}" for topic, lag in self.lag.items())
        line = (
            f"Query {self.label}, batch {self.batch_id}: {self.input_rows} rows, "
            f"{self.processed_rows_per_second:.0f} rows/s, lag {self.total_lag}"
            f"{f' ({topics})' if topics else ''}, {self.transactions} transactions"
        )
        if self.transaction is not None:
            phases = dict(self.transaction.phases_ms)
            total_ms = phases.pop("total", 0.0)
            listed = ", ".join(f"{name} {ms:.1f}" for name, ms in phases.items())
            batch_id = self.transaction.parameters.get("batchId")
            line += f"; commit of batch {batch_id} {total_ms:.1f} ms ({listed})"
        return line


def report_of(
    progress: Mapping[str, Any], *, transactions: int, transaction: CommittedTransaction | None
) -> QueryReport:
    """The report of a StreamingQueryProgress, given as JSON."""
    return QueryReport(
        query_id=str(progress["id"]),
        run_id=str(progress["runId"]),
        name=progress.get("name"),
        batch_id=int(progress["batchId"]),
        timestamp=str(progress["timestamp"]),
        input_rows=int(progress.get("numInputRows") or 0),
        processed_rows_per_second=float(progress.get("processedRowsPerSecond") or 0),
        lag=lag_of(progress),
        transactions=transactions,
        transaction=transaction,
    )


def lag_of(progress: Mapping[str, Any]) -> dict[str, dict[int, int]]:
    """Records between the end of the batch and the end of the topics, for the txnlog sources.

    The reserved key in their offsets identifies them. A partition that several sources of the
    query read counts once, with the largest lag.
    """
    lag: dict[str, dict[int, int]] = {}
    for end, latest in txnlog_sources(progress):
        for topic, partitions in latest.items():
            read = end.get(topic, {})
            for partition, offset in partitions.items():
                if partition not in read:
                    continue
                behind = max(0, int(offset) - int(read[partition]))
                of_topic = lag.setdefault(topic, {})
                of_topic[int(partition)] = max(behind, of_topic.get(int(partition), 0))
    return lag


def txnlog_sources(
    progress: Mapping[str, Any],
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """(end, latest) of each txnlog source, positions only."""
    for source in progress.get("sources", ()):
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if RESERVED_KEY in end:
            # Spark 4.0 and 4.1 report the end of the batch as the latest offset, with its key.
            yield end, {topic: latest[topic] for topic in latest if topic != RESERVED_KEY}


def _offsets(logged: Any) -> Mapping[str, Any]:
    """An offset of any source, which may be an object, JSON text, or not JSON at all."""
    if isinstance(logged, str):
        try:
            logged = json.loads(logged)
        except (ValueError, RecursionError):
            return {}
    return logged if isinstance(logged, Mapping) else {}
