"""The shards of the transaction log and of the consumer offsets: their names, and what is where."""

from __future__ import annotations

from functools import lru_cache

from txnlog.protocol.partitioner import partition_for_key

STATE_PREFIX = "__transaction_state-"
OFFSETS_PREFIX = "__consumer_offsets-"


@lru_cache(1024)
def shard_number(name: str, count: int) -> int:
    """Which of `count` shards holds a transactional.id or a group: Kafka's partition of a key."""
    return partition_for_key(name.encode("utf-8", "surrogatepass"), count)


def state_table(shard: int) -> str:
    """Name of a shard of the transaction log."""
    return f"{STATE_PREFIX}{shard}"


def offsets_table(shard: int) -> str:
    """Name of a shard of the consumer offsets."""
    return f"{OFFSETS_PREFIX}{shard}"


def offsets_table_of(group_id: str, count: int) -> str:
    """Name of the shard of the consumer offsets that holds a group."""
    return offsets_table(shard_number(group_id, count))
