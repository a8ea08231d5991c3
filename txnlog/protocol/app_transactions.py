"""txnAppId and txnVersion of batch writes: Delta's SetTransaction, kept by each topic for itself.

A topic has a pair when its newest version of that app id is the pair's or a higher one, and is
younger than the table's delta.setTransactionRetentionDuration (by default nothing expires).
Versions of different topics are independent, as they are for Delta tables.
"""

from __future__ import annotations

from collections.abc import Mapping

from txnlog.errors import DuplicateTransactionError
from txnlog.protocol.metadata import AppTransaction
from txnlog.protocol.txn_memory import TxnMemory
from txnlog.protocol.vacuum import interval_ms

RETENTION_PROPERTY = "delta.setTransactionRetentionDuration"


def transactional_id_of(app_id: str) -> str:
    """The id under which all batch writes of an app id are decided, one after another."""
    return f"_batch-txnAppId-{app_id}"


def known_version(
    memory: TxnMemory, app_id: str, *, configuration: Mapping[str, str], now_ms: int
) -> int:
    """The newest txnVersion of an app id in a topic; -1 when there is none, or it has expired.

    `configuration` are the properties of the topic's table, `now_ms` is by the store's clock.
    """
    version = memory.applications.get(app_id, -1)
    retention_ms = interval_ms(configuration.get(RETENTION_PROPERTY, ""))
    if retention_ms is None or version < 0:
        return version
    return version if memory.applications.updated_ms[app_id] >= now_ms - retention_ms else -1


def is_written(app: AppTransaction, known: Mapping[str, int]) -> bool:
    """Whether a batch write is in its topics already; `known` maps topic -> `known_version`.

    Raises DuplicateTransactionError when only some of the topics have it.
    """
    having = sorted(topic for topic, version in known.items() if version >= app.version)
    if having and len(having) < len(known):
        lacking = sorted(known.keys() - set(having))
        raise DuplicateTransactionError(
            f"txnVersion {app.version} of txnAppId {app.app_id!r} is in "
            f"{_listed(having, known)}, and not in {_listed(lacking, known)}. To write all rows "
            "would repeat those of the former, to skip all would lose those of the latter; nothing "
            "was written. Write to the topics that lack it only, or give a txnVersion that none of "
            "them has.",
            app_id=app.app_id,
            version=app.version,
            topics=having,
            missing=lacking,
        )
    return bool(having)


def _listed(topics: list[str], known: Mapping[str, int]) -> str:
    return ", ".join(
        f"topic {topic!r} ({f'at version {known[topic]}' if known[topic] >= 0 else 'no version'})"
        for topic in topics
    )
