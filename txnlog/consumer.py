"""The consumer: confluent-kafka's names and calls, on a cluster without brokers.

Heartbeats and asynchronous commits run on a background thread; everything else, including all
callbacks, runs in the caller's calls. A consumer is for one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa

from txnlog.cluster import Cluster
from txnlog.consuming.consumption import Consumption
from txnlog.consuming.lookups import describe_topics, positions_for_times, watermarks
from txnlog.consuming.rebalances import Callbacks
from txnlog.consuming.record_stream import RecordStream
from txnlog.consuming.starts import check_position
from txnlog.errors import ClientStateError, TxnLogError
from txnlog.messages import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    ClusterMetadata,
    ConsumerGroupMetadata,
    Message,
    TopicPartition,
)
from txnlog.process.forking import refusal, watch
from txnlog.settings import arguments
from txnlog.settings.arguments import INT32_MAX
from txnlog.settings.config import parse_config

T = TypeVar("T")

_SEEKS = (OFFSET_BEGINNING, OFFSET_END)
_STARTS = (*_SEEKS, OFFSET_STORED, OFFSET_INVALID)

IDLE_MS_MIN = 1.0
IDLE_LOCAL_MS_MAX = 10.0
IDLE_REMOTE_MS_MAX = 100.0
"""Longest sleep of a poll, which also follows its group. See metadata.poll.interval.ms."""
RETRY_MS = 100
RETRY_MS_MAX = 1_000
"""How long a poll waits that follows one that failed, and that follows many: Kafka's
retry.backoff.ms and retry.backoff.max.ms. Never longer than its time-out."""


class Consumer:
    """Reads topics, alone or as a member of a group. The constructor does no I/O.

    `config` has confluent-kafka's names; see docs/clients.md. Time-outs are in seconds, -1 waits
    indefinitely. Raises ConfigError.
    """

    def __init__(
        self,
        config: dict[str, Any],
        *,
        cluster: Cluster | None = None,
        background: bool = True,
    ) -> None:
        if cluster is not None:
            config = {"txnlog.root": cluster.root, **config}
        self._config = parse_config(config, "consumer")
        self._read_committed = self._config.get("isolation.level") == "read_committed"
        self._given = cluster
        self._background = background
        self._opened: Consumption | None = None
        self._inherited: Consumption | None = None
        """In the child of a fork, that of the parent: kept, and never used."""
        self._is_closed = False
        self._failures = 0
        """How many polls in a row have failed."""
        watch(self)

    def __repr__(self) -> str:
        return f"Consumer({self._config!r})"

    # -- which partitions --------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Sequence[str],
        on_assign: Callable[..., Any] | None = None,
        on_revoke: Callable[..., Any] | None = None,
        on_lost: Callable[..., Any] | None = None,
    ) -> None:
        """Read topics, by name or "^pattern", as a member of the group; replaces a subscription.

        A later poll calls the callbacks with (consumer, partitions): `on_revoke` while this
        consumer still owns the partitions, `on_lost` (or `on_revoke`, if there is none) when
        another consumer does already. Raises ConfigError without group.id.
        """
        callbacks = Callbacks(
            self,
            arguments.function("on_assign", on_assign),
            arguments.function("on_revoke", on_revoke),
            arguments.function("on_lost", on_lost),
        )
        names = arguments.each("topics", topics, arguments.text)
        self._consumption().subscribe(names, callbacks)

    def unsubscribe(self) -> None:
        """Leave the group and stop reading."""
        self._consumption().unsubscribe()

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read exactly these partitions, without being a member of a group.

        Without an offset, reading starts at the group's committed one, else by auto.offset.reset.
        With a group.id this begins a new generation: consumers of older ones can no longer commit.
        Inside on_assign it sets start positions. Raises UnknownTopicOrPartitionError.
        """
        wanted = arguments.topic_partitions("partitions", partitions, partition_least=0)
        for partition in wanted:
            check_position(partition, _STARTS)
        self._consumption().assign(wanted)

    def unassign(self) -> None:
        """Remove all assigned partitions."""
        self._consumption().assign([])

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Add partitions to those of assign(); in on_assign, give partitions start positions.

        Raises ClientStateError for a partition that is assigned already,
        UnknownTopicOrPartitionError.
        """
        wanted = arguments.topic_partitions("partitions", partitions, partition_least=0)
        for partition in wanted:
            check_position(partition, _STARTS)
        self._consumption().incremental_assign(wanted)

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Remove some of the partitions of assign().

        In on_revoke and on_lost this is allowed and changes nothing: all of them go.
        Raises ClientStateError for a partition that is not assigned.
        """
        wanted = arguments.topic_partitions("partitions", partitions, partition_least=0)
        self._consumption().incremental_unassign(wanted)

    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return [TopicPartition(*key) for key in sorted(self._consumption().readers)]

    def memberid(self) -> str:
        """The member id in the group, "" if this consumer is not a member."""
        return self._consumption().member_id

    def rebalance_protocol(self) -> str:
        """ "COOPERATIVE" or "EAGER", by partition.assignment.strategy; "NONE" without a group."""
        return self._consumption().rebalance_protocol

    def consumer_group_metadata(self) -> ConsumerGroupMetadata:
        """Group, generation and member id, for Producer.send_offsets_to_transaction (KIP-447).

        Raises RebalanceInProgressError, ClientStateError.
        """
        return self._consumption().require_session().metadata()

    # -- reading -----------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> Message | None:
        """The next message, or None after `timeout`; joins, commits and calls callbacks.

        Raises ClientStateError before subscribe or assign, OffsetOutOfRangeError, StorageError, ...
        """
        consumption = self._consumption()
        if not consumption.is_due():
            message = consumption.stream.next()
            if message is not None:
                return message
        found = self._wait(timeout, lambda stream, end_ms: stream.take(1, end_ms))
        return found[0] if found else None

    def consume(self, num_messages: int | None = None, timeout: float = -1) -> list[Message]:
        """Up to `num_messages`, fewer after `timeout`.

        Without a number it returns up to max.poll.records messages as soon as there is one.
        """
        if num_messages is None:
            count = self._config.get("max.poll.records")
            return self._wait(timeout, lambda stream, end_ms: stream.take(count, end_ms)) or []
        wanted = arguments.integer("num_messages", num_messages, least=0, most=INT32_MAX)
        found: list[Message] = []
        if wanted == 0:
            return found

        def take(stream: RecordStream, end_ms: float | None) -> list[Message]:
            found.extend(stream.take(wanted - len(found), end_ms))
            return found if len(found) >= wanted else []

        self._wait(timeout, take, found)
        return found

    def consume_batch(self, num_records: int | None = None, timeout: float = -1) -> pa.Table:
        """An Arrow table with the columns of Spark's Kafka source, as soon as there is a record.

        key, value (binary), topic (string), partition (int32), offset (int64), timestamp (UTC, us),
        timestampType (int32) and headers (list of key and value). Up to fetch.max.bytes, and up to
        `num_records` or max.poll.records rows. Empty after `timeout`.
        """
        rows = num_records
        if rows is not None:
            rows = arguments.integer("num_records", rows, least=0)
            if rows == 0:
                return self._consumption().stream.take_arrow(0, 0)
        elif self._config.is_set("max.poll.records"):
            rows = self._config.get("max.poll.records")
        size_bytes = self._config.get("fetch.max.bytes")
        table = self._wait(
            timeout, lambda stream, end_ms: stream.take_arrow(rows, size_bytes, end_ms)
        )
        return self._consumption().stream.take_arrow(0, 0) if table is None else table

    def _wait(
        self,
        timeout: float | None,
        take: Callable[[RecordStream, float | None], T],
        found: Sequence[Message] = (),
    ) -> T | None:
        """The first non-empty result of `take`; None after `timeout`.

        `found` holds the messages taken so far: once there is one, nothing may raise, commit or
        rebalance before the caller has it.
        """
        timeout_s = _timeout_s(timeout)
        consumption = self._consumption()
        clock = consumption.clock
        end_ms = None if timeout_s < 0 else clock.boot_ms() + timeout_s * 1000
        is_remote = consumption.cluster.store.is_remote
        idle_ms, idle_ms_max = IDLE_MS_MIN, IDLE_REMOTE_MS_MAX if is_remote else IDLE_LOCAL_MS_MAX
        self._back_off(timeout_s)
        with consumption.stream.handing_out():
            while True:
                try:
                    if not found:
                        consumption.maintain()
                    elif consumption.is_due():
                        return None
                    had = len(found)
                    taken = take(consumption.stream, end_ms)
                except TxnLogError as error:
                    if found:
                        return None
                    self._failures += 0 if isinstance(error, ClientStateError) else 1
                    raise
                self._failures = 0
                if len(taken):  # type: ignore[arg-type]
                    return taken
                nap_ms = min(consumption.idle_ms, IDLE_REMOTE_MS_MAX)
                idle_ms = IDLE_MS_MIN if len(found) > had else idle_ms
                if nap_ms <= 0:
                    nap_ms, idle_ms = idle_ms, min(idle_ms * 2, idle_ms_max)
                left_ms = nap_ms if end_ms is None else end_ms - clock.boot_ms()
                if left_ms <= 0:
                    return None
                clock.sleep_ms(min(nap_ms, left_ms))

    def _back_off(self, timeout_s: float) -> None:
        """After polls that failed, wait for a moment: an application polls again at once."""
        if self._failures:
            wait_ms = min(RETRY_MS << min(self._failures - 1, 10), RETRY_MS_MAX)
            wait_ms = wait_ms if timeout_s < 0 else min(wait_ms, int(timeout_s * 1000))
            self._consumption().clock.sleep_ms(wait_ms)

    # -- positions ---------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition) -> None:
        """Continue at `partition.offset`, OFFSET_BEGINNING or OFFSET_END.

        Raises ClientStateError.
        """
        wanted = arguments.topic_partition("partition", partition)
        check_position(wanted, _SEEKS)
        self._consumption().seek(wanted)

    def position(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """The offset of the next message; OFFSET_INVALID where there is no position (yet)."""
        readers = self._consumption().readers
        positions = []
        for asked in arguments.topic_partitions("partitions", partitions):
            reader = readers.get((asked.topic, asked.partition))
            at = None if reader is None else reader.position
            offset = OFFSET_INVALID if at is None else at
            positions.append(TopicPartition(asked.topic, asked.partition, offset))
        return positions

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return no messages of these partitions until `resume`. Raises ClientStateError."""
        wanted = arguments.topic_partitions("partitions", partitions)
        self._consumption().pause(wanted, is_paused=True)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Return messages of these partitions again. Raises ClientStateError."""
        wanted = arguments.topic_partitions("partitions", partitions)
        self._consumption().pause(wanted, is_paused=False)

    # -- commits -----------------------------------------------------------------------------------

    def commit(
        self,
        message: Message | None = None,
        offsets: Sequence[TopicPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[TopicPartition] | None:
        """Commit the position after a message, these offsets, or all positions of the assignment.

        Asynchronous commits run in order; a later poll reports them to `on_commit`. Without
        subscribe and assign, a message or offsets are committed at once, if the group is empty.
        Raises IllegalGenerationError, UnknownMemberIdError, RebalanceInProgressError (R48), and
        ClientStateError when there is nothing to commit.
        """
        asynchronous = arguments.flag("asynchronous", asynchronous)
        return self._consumption().commit(message, offsets, asynchronous=asynchronous)

    def store_offsets(
        self,
        message: Message | None = None,
        offsets: Sequence[TopicPartition] | None = None,
    ) -> None:
        """Store the position after a message, or these offsets, to be committed next.

        Needs enable.auto.offset.store=false. Raises ConfigError, and ClientStateError for a
        partition that is not assigned.
        """
        self._consumption().store_offsets(message, offsets)

    def committed(
        self, partitions: Sequence[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """The group's committed offsets; OFFSET_INVALID where there is none.

        With read_committed it waits for open transactions with pending offsets of these
        partitions, and raises UnstableOffsetCommitError after `timeout` (R46).
        """
        asked = arguments.topic_partitions("partitions", partitions)
        return self._consumption().committed(asked, _timeout_s(timeout))

    # -- metadata ----------------------------------------------------------------------------------

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """(log start, end); the end is the last stable offset with read_committed (R12)."""
        asked = arguments.topic_partition("partition", partition)
        _timeout_s(timeout)
        arguments.flag("cached", cached)
        return watermarks(
            self._consumption().cluster,
            asked.topic,
            asked.partition,
            read_committed=self._read_committed,
        )

    def offsets_for_times(
        self, partitions: Sequence[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """The first offset at or after the time (ms) in each `offset`, else OFFSET_END."""
        asked = arguments.topic_partitions("partitions", partitions)
        _timeout_s(timeout)
        cluster = self._consumption().cluster
        return positions_for_times(cluster, asked, read_committed=self._read_committed)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """The cluster's topics and their partitions."""
        if topic is not None:
            topic = arguments.topic("topic", topic)
        _timeout_s(timeout)
        return describe_topics(self._consumption().cluster, topic)

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit (with enable.auto.commit), call on_revoke, leave the group. Idempotent.

        In a child of a fork it does nothing: the member is the parent's.
        """
        if self._is_closed:
            return
        try:
            if self._opened is not None:
                self._opened.close()
        finally:
            self._is_closed = True

    def forked(self) -> None:
        """In the child of a fork: refuse every call, if this was used before."""
        if self._opened is not None:
            self._inherited, self._opened = self._opened, None

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _consumption(self) -> Consumption:
        if self._is_closed:
            raise ClientStateError("This consumer is closed; make a new one.")
        if self._opened is None:
            if self._inherited is not None:
                raise refusal("consumer")
            cluster = self._given or Cluster.open(self._config.root, self._config.storage)
            self._opened = Consumption(cluster, self._config, background=self._background)
        return self._opened


def _timeout_s(timeout: float | None) -> float:
    """Seconds, less than 0 for no time-out. Raises TypeError, ConfigError."""
    seconds = arguments.timeout_s("timeout", timeout)
    return -1 if seconds is None else seconds
