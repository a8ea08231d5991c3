"""txnAppId and txnVersion of batch writes: Delta's SetTransaction, per topic.

A topic has a pair if its newest version of that app id is at least the pair's, and is younger than
the table's delta.setTransactionRetentionDuration (by default nothing expires).
Versions of different topics are independent, as they are for Delta tables (D71): with one pair for
the whole root the second of two topics was never written.
"""

from __future__ import annotations

from collections.abc import Mapping

from txnlog.errors import DuplicateTransactionError
from txnlog.protocol.metadata import AppTransaction
from txnlog.protocol.txn_memory import TxnMemory
from txnlog.protocol.vacuum import interval_ms

RETENTION_PROPERTY = "delta.setTransactionRetentionDuration"


def transactional_id_of(app_id: str) -> str:
    """The transactional.id of all batch writes of an app id, which are decided one by one."""
    return f"_batch-txnAppId-{app_id}"


def newest_version(
    memory: TxnMemory, app_id: str, *, configuration: Mapping[str, str], now_ms: int
) -> int:
    """The newest txnVersion of an app id in a topic; -1 if it has none, or it has expired.

    `configuration` are the properties of the topic's table, `now_ms` is by the store's clock.
    """
    version = memory.applications.get(app_id, -1)
    retention_ms = interval_ms(configuration.get(RETENTION_PROPERTY, ""))
    if retention_ms is None or version < 0:
        return version
    return version if memory.applications.updated_ms[app_id] >= now_ms - retention_ms else -1


def is_written(app: AppTransaction, versions: Mapping[str, int]) -> bool:
    """Whether all topics have a batch write; `versions` maps topic -> `newest_version`.

    Raises DuplicateTransactionError if only some of them have it.
    """
    having = sorted(topic for topic, version in versions.items() if version >= app.version)
    if having and len(having) < len(versions):
        lacking = sorted(versions.keys() - set(having))
        raise DuplicateTransactionError(
            f"txnVersion {app.version} of txnAppId {app.app_id!r} is in "
            f"{_listed(having, versions)}, and not in {_listed(lacking, versions)}. Writing all "
            "rows would duplicate those of the former, skipping all would lose those of the "
            "latter; nothing was written. Write only to the topics that lack it, or use a "
            "txnVersion that none of them has.",
            app_id=app.app_id,
            version=app.version,
            topics=having,
            missing=lacking,
        )
    return bool(having)


def other_records(
    app: AppTransaction, records: Mapping[str, int], memories: Mapping[str, TxnMemory]
) -> dict[str, int]:
    """Topic -> records that it has of the pair, if a write of `records` has another number of them.

    Then a write that was skipped is not the one that the topic has. A topic with a higher
    txnVersion remembers only the records of that one.
    """
    found = {}
    for topic, memory in memories.items():
        known = memory.application_records.get(app.app_id, records[topic])
        if memory.applications.get(app.app_id) == app.version and known != records[topic]:
            found[topic] = known
    return found


def _listed(topics: list[str], versions: Mapping[str, int]) -> str:
    shown = {topic: f"at version {v}" if v >= 0 else "no version" for topic, v in versions.items()}
    return ", ".join(f"topic {topic!r} ({shown[topic]})" for topic in topics)
