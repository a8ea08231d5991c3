"""The consumer: confluent-kafka's names and calls, on a cluster without brokers.

Heartbeats and asynchronous commits run on a background thread; everything else, including all
callbacks, runs in the caller's calls. Any thread may call a consumer: each record is returned to
one of them. See txnlog.consuming.turn.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence, Sized
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from txnlog.cluster import Cluster
from txnlog.consuming.commits import API_TIMEOUT_MS
from txnlog.consuming.consumption import Consumption
from txnlog.consuming.lookups import describe_topics, positions_for_times, watermarks
from txnlog.consuming.rebalances import Callbacks
from txnlog.consuming.record_stream import Before, RecordStream
from txnlog.consuming.starts import check_position
from txnlog.consuming.turn import Turn
from txnlog.errors import ClientStateError, ConfigError, TxnLogError, UnstableOffsetCommitError
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
from txnlog.process.client_metrics import Metric
from txnlog.process.clock import Clock
from txnlog.process.closing import ClosedAtTheEnd
from txnlog.process.forking import refusal, watch
from txnlog.settings import arguments
from txnlog.settings.arguments import INT32_MAX
from txnlog.settings.config import Config, parse_config
from txnlog.storage.batches.records import MESSAGE_SCHEMA

logger = logging.getLogger("txnlog")

T = TypeVar("T")
S = TypeVar("S", bound=Sized)

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
SETTLE_MS = 100
"""How long committed() waits for open transactions before other threads' calls have their turn."""
_CALLBACKS = ("on_commit", "error_cb", "stats_cb")


class Consumer(ClosedAtTheEnd):
    """Reads topics, alone or as a member of a group. The constructor does no I/O.

    `config` has confluent-kafka's names; see docs/clients.md. Time-outs are in seconds, -1 waits
    indefinitely. Raises ConfigError.
    """

    _raises = True
    """Whether poll and its like raise what a subclass returns as a message with an error()."""

    def __init__(
        self,
        config: dict[str, Any],
        *,
        cluster: Cluster | None = None,
        background: bool = True,
    ) -> None:
        if cluster is not None:
            config = {"txnlog.root": cluster.root, **config}
        self._turn = Turn()
        self._config = _with_turn(parse_config(config, "consumer"), self._turn)
        self._read_committed = self._config.get("isolation.level") == "read_committed"
        self._given = cluster
        self._background = background
        self._opened: Consumption | None = None
        self._inherited: Consumption | None = None
        """In the child of a fork, that of the parent: kept, and never used."""
        self._is_ending = self._must_close = self._is_closing = self._is_closed = False
        """`_is_ending`: close() was called. `_must_close`: by a signal handler, within a call."""
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
        given = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_lost}
        checked = {name: arguments.function(name, call) for name, call in given.items()}
        outside = {name: self._turn.outside(call) for name, call in checked.items()}
        names = arguments.each("topics", topics, arguments.text)
        self._change(lambda made: made.subscribe(names, Callbacks(self, **outside)))

    def unsubscribe(self) -> None:
        """Leave the group and stop reading."""
        self._change(lambda made: made.unsubscribe())

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read exactly these partitions, without being a member of a group.

        Without an offset, reading starts at the group's committed one, else by auto.offset.reset.
        With a group.id this begins a new generation: consumers of older ones can no longer commit.
        Inside on_assign it sets start positions. Raises UnknownTopicOrPartitionError, and
        ConfigError for a partition that is given twice.
        """
        wanted = _distinct(partitions)
        for partition in wanted:
            check_position(partition, _STARTS)
        self._change(lambda made: made.assign(wanted))

    def unassign(self) -> None:
        """Remove all assigned partitions."""
        self._change(lambda made: made.assign([]))

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Add partitions to those of assign(); in on_assign, give partitions start positions.

        Raises ClientStateError for a partition that is assigned already,
        UnknownTopicOrPartitionError.
        """
        wanted = _distinct(partitions)
        for partition in wanted:
            check_position(partition, _STARTS)
        self._change(lambda made: made.incremental_assign(wanted))

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Remove some of the partitions of assign().

        In on_revoke and on_lost this is allowed and changes nothing: all of them go.
        Raises ClientStateError for a partition that is not assigned.
        """
        wanted = _distinct(partitions)
        self._change(lambda made: made.incremental_unassign(wanted))

    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return self._call(lambda made: [TopicPartition(*key) for key in sorted(made.readers)])

    def memberid(self) -> str:
        """The member id in the group, "" if this consumer is not a member."""
        return self._call(lambda made: made.member_id)

    def rebalance_protocol(self) -> str:
        """ "COOPERATIVE" or "EAGER", by partition.assignment.strategy; "NONE" without a group."""
        return self._call(lambda made: made.rebalance_protocol)

    def consumer_group_metadata(self) -> ConsumerGroupMetadata:
        """Group, generation and member id, for Producer.send_offsets_to_transaction (KIP-447).

        Raises RebalanceInProgressError, ClientStateError.
        """
        return self._call(lambda made: made.require_session().metadata())

    # -- reading -----------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> Message | None:
        """The next message, or None after `timeout`; joins, commits and calls callbacks.

        Raises ClientStateError before subscribe or assign, OffsetOutOfRangeError, StorageError, ...
        UnknownTopicOrPartitionError, once, for a subscribed topic that does not exist;
        PartitionEndError with enable.partition.eof. The next call continues.
        """
        made, turn = self._opened, self._turn
        # Not `is_working`, a call more for each message.
        if made is not None and not turn.lock._is_owned():  # type: ignore[attr-defined]
            message = None
            try:
                with turn.lock:
                    if turn.owner is None and not made.is_due():
                        message = made.stream.next()
            except BaseException:
                if message is not None:
                    # An interrupt, after the lock was given back.
                    with turn.lock:
                        made.stream.put_back(message)
                raise
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
        return self._consume(num_messages, timeout)

    def _consume(
        self, num_messages: int, timeout: float, later: Before | None = None
    ) -> list[Message]:
        """`consume`; with `later` its caller says that it `is_returned`, or takes it back."""
        wanted = arguments.integer("num_messages", num_messages, least=0, most=INT32_MAX)
        found: list[Message] = []
        if wanted == 0:
            return found
        turn, here = self._turn, threading.get_ident()
        is_within = turn.owner == here

        def take(stream: RecordStream, end_ms: float | None) -> list[Message]:
            found.extend(stream.take(wanted - len(found), end_ms))
            if len(found) >= wanted:
                return found
            if found:
                # What this call has taken can be put back as long as no other takes what follows.
                turn.owner = here
            return []

        try:
            self._wait(timeout, take, found, later)
        finally:
            if turn.owner == here and not is_within:
                turn.owner = None
        return found

    def _take_back(self, before: Before) -> None:
        """Return once more what was taken since `before`."""
        with self._turn.lock:
            # What is only fetched stays so: calls may be cancelled sooner than a store replies.
            if self._opened is not None and (before or before.notices):
                self._opened.stream.take_back(before)

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
                return self._call(lambda _: MESSAGE_SCHEMA.empty_table())
        elif self._config.is_set("max.poll.records"):
            rows = self._config.get("max.poll.records")
        size_bytes = self._config.get("fetch.max.bytes")
        table = self._wait(
            timeout, lambda stream, end_ms: stream.take_arrow(rows, size_bytes, end_ms)
        )
        return MESSAGE_SCHEMA.empty_table() if table is None else table

    def _wait(
        self,
        timeout: float | None,
        take: Callable[[RecordStream, float | None], S],
        found: Sequence[Message] = (),
        later: Before | None = None,
    ) -> S | None:
        """The first non-empty result of `take`; None after `timeout`, or once it is closed.

        `found` holds the messages taken so far: once there is one, nothing may raise, commit or
        rebalance before the caller has it.
        """
        timeout_s = _timeout_s(timeout)
        self._turn.refuse_handlers()
        made = self._call(lambda made: made)
        clock = made.clock
        end_ms = None if timeout_s < 0 else clock.boot_ms() + timeout_s * 1000
        is_remote = made.cluster.store.is_remote
        idle_ms, idle_ms_max = IDLE_MS_MIN, IDLE_REMOTE_MS_MAX if is_remote else IDLE_LOCAL_MS_MAX
        self._back_off(clock, timeout_s)
        before = Before() if later is None else later
        is_first = True

        def take_now(stream: RecordStream) -> S:
            return take(stream, end_ms)

        def look() -> tuple[S | None, float | None]:
            return self._look(made, take_now, found, before, is_first)

        try:
            while True:
                had = len(found)
                taken, nap_ms = self._locked(look)
                if taken is not None and len(taken):
                    return taken
                if nap_ms is None:
                    return None
                idle_ms = IDLE_MS_MIN if len(found) > had else idle_ms
                if nap_ms <= 0:
                    nap_ms, idle_ms = idle_ms, min(idle_ms * 2, idle_ms_max)
                left_ms = nap_ms if end_ms is None else end_ms - clock.boot_ms()
                if left_ms <= 0:
                    return None
                clock.sleep_ms(min(nap_ms, left_ms))
                is_first = False
        except TxnLogError:
            raise
        except BaseException:
            # Ctrl-C: the caller gets nothing.
            with self._turn.lock:
                made.stream.take_back(before)
            raise
        finally:
            if later is None:
                before.is_returned = True

    def _look(
        self,
        made: Consumption,
        take: Callable[[RecordStream], S],
        found: Sequence[Message],
        before: Before,
        is_first: bool,
    ) -> tuple[S | None, float | None]:
        """What `take` finds, and how long none will be found, 0: unknown; None: end the call."""
        if self._is_closed or before.is_unwanted or (found and self._is_ending):
            return None, None
        if not self._turn.is_free:
            return None, 0
        try:
            if found and made.is_due():
                return None, None
            # Another thread may be about to call assign after unassign.
            if not found and (is_first or made.is_reading):
                made.maintain()
            made.stream.begin(before)
            taken = take(made.stream)
        except TxnLogError as error:
            if found:
                return None, None
            self._failures += 0 if isinstance(error, ClientStateError) else 1
            raise
        self._failures = 0
        if not len(taken) and made.stream.must_raise:
            if found:
                return None, None
            raise made.stream.take_notice()
        return taken, min(made.idle_ms, IDLE_REMOTE_MS_MAX)

    def _back_off(self, clock: Clock, timeout_s: float) -> None:
        """After polls that failed, wait for a moment: an application polls again at once."""
        if self._failures:
            wait_ms = min(RETRY_MS << min(self._failures - 1, 10), RETRY_MS_MAX)
            clock.sleep_ms(wait_ms if timeout_s < 0 else min(wait_ms, int(timeout_s * 1000)))

    # -- positions ---------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition) -> None:
        """Continue at `partition.offset`, OFFSET_BEGINNING or OFFSET_END.

        Raises ClientStateError.
        """
        wanted = arguments.topic_partition("partition", partition)
        check_position(wanted, _SEEKS)
        self._turn.refuse_handlers()
        self._call(lambda made: made.seek(wanted))

    def position(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """The offset of the next message; OFFSET_INVALID where there is no position (yet)."""
        asked = arguments.topic_partitions("partitions", partitions)
        return self._call(lambda made: made.positions(asked))

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return no messages of these partitions until `resume`. Raises ClientStateError."""
        wanted = arguments.topic_partitions("partitions", partitions)
        self._turn.refuse_handlers()
        self._call(lambda made: made.pause(wanted, is_paused=True))

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Return messages of these partitions again. Raises ClientStateError."""
        wanted = arguments.topic_partitions("partitions", partitions)
        self._turn.refuse_handlers()
        self._call(lambda made: made.pause(wanted, is_paused=False))

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
        return self._call(lambda made: made.commit(message, offsets, asynchronous=asynchronous))

    def store_offsets(
        self,
        message: Message | None = None,
        offsets: Sequence[TopicPartition] | None = None,
    ) -> None:
        """Store the position after a message, or these offsets, to be committed next.

        Needs enable.auto.offset.store=false. Raises ConfigError, and ClientStateError for a
        partition that is not assigned.
        """
        self._call(lambda made: made.store_offsets(message, offsets))

    def committed(
        self, partitions: Sequence[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """The group's committed offsets; OFFSET_INVALID where there is none.

        With read_committed it waits for open transactions with pending offsets of these
        partitions, and raises UnstableOffsetCommitError after `timeout` (R46).
        """
        asked = arguments.topic_partitions("partitions", partitions)
        timeout_s = _timeout_s(timeout)
        left_ms = API_TIMEOUT_MS if timeout_s < 0 else int(timeout_s * 1000)
        while True:
            try:
                return self._call(lambda made: made.committed(asked, min(left_ms, SETTLE_MS)))  # noqa: B023
            except UnstableOffsetCommitError:
                left_ms -= SETTLE_MS
                if left_ms <= 0:
                    raise
                # Who waits for the lock would not get it from a thread that takes it again at once.
                self._consumption().clock.sleep_ms(IDLE_MS_MIN)

    # -- metadata ----------------------------------------------------------------------------------

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """(log start, end); the end is the last stable offset with read_committed (R12)."""
        asked = arguments.topic_partition("partition", partition)
        _timeout_s(timeout)
        arguments.flag("cached", cached)
        of, committed = (asked.topic, asked.partition), self._read_committed
        return self._call(lambda made: watermarks(made.cluster, *of, read_committed=committed))

    def offsets_for_times(
        self, partitions: Sequence[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """The first offset at or after the time (ms) in each `offset`, else OFFSET_END.

        As in Kafka, OFFSET_END and OFFSET_BEGINNING in the place of a time are the end of the
        partition and its start.
        """
        asked = arguments.topic_partitions("partitions", partitions)
        _timeout_s(timeout)
        committed = self._read_committed
        return self._call(
            lambda made: positions_for_times(made.cluster, asked, read_committed=committed)
        )

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """The cluster's topics and their partitions."""
        if topic is not None:
            topic = arguments.topic("topic", topic)
        _timeout_s(timeout)
        return self._call(lambda made: describe_topics(made.cluster, topic))

    # -- the end -----------------------------------------------------------------------------------

    def metrics(self) -> list[Metric]:
        """What it has done since it was made, with the names of Kafka's client where they fit, and
        the lag of its partitions as of the last look; [] before the first call and after close().
        For Prometheus see docs/monitoring.md. Any thread may call it, at any time.
        """
        made = self._opened
        return [] if made is None else made.metrics()

    def close(self) -> None:
        """Commit (with enable.auto.commit), call on_revoke, leave the group. Idempotent.

        A poll of another thread ends, and returns nothing; a callback that is under way there ends
        first. In a child of a fork this does nothing: the member is the parent's.
        """
        self._is_ending = True
        if self._is_closed:
            return
        if self._turn.is_working:
            # In a signal handler: the call that it interrupts goes on where it was.
            self._must_close = True
            return
        self._turn.take(self._close)

    def _close(self) -> None:
        if self._is_closed or self._is_closing:
            return
        self._is_closing = True
        try:
            if self._opened is not None:
                self._opened.close()
        finally:
            self._is_closed, self._is_closing, self._opened = True, False, None

    def forked(self) -> None:
        """In the child of a fork: refuse every call, if this was used before."""
        self._turn.forked()
        if self._opened is not None:
            self._inherited, self._opened = self._opened, None

    # -- inside ------------------------------------------------------------------------------------

    def _call(self, act: Callable[[Consumption], T]) -> T:
        """Make a call between those of other threads, also while one of them owns the consumer."""
        return self._locked(lambda: act(self._consumption()))

    def _change(self, act: Callable[[Consumption], T]) -> T:
        """Make a call that changes what the consumer reads."""
        try:
            return self._turn.take(lambda: act(self._consumption()))
        finally:
            self._close_if_asked()

    def _locked(self, act: Callable[[], T]) -> T:
        try:
            with self._turn.lock:
                return act()
        finally:
            self._close_if_asked()

    def _close_if_asked(self) -> None:
        """Close what a signal handler has closed while a call of its thread was at work."""
        if self._must_close and not self._turn.is_working:
            self._must_close = False
            try:
                self.close()
            except TxnLogError as error:
                logger.warning("close() in a signal handler failed: %s", error)

    def _consumption(self) -> Consumption:
        if self._is_closed:
            raise ClientStateError("This consumer is closed; make a new one.")
        if self._opened is None:
            if self._inherited is not None:
                raise refusal("consumer")
            cluster = self._given or Cluster.open(self._config.root, self._config.storage)
            self._opened = Consumption(
                cluster, self._config, background=self._background, raises=self._raises
            )
        return self._opened


def _with_turn(config: Config, turn: Turn) -> Config:
    """The settings, with callbacks that are called outside of the lock."""
    outside = {name: turn.outside(config.get(name)) for name in _CALLBACKS if config.is_set(name)}
    return replace(config, values={**config.values, **outside})


def _distinct(partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """The partitions, validated. Raises ConfigError for one that is given twice: with two offsets
    it could start at one of them only.
    """
    wanted = arguments.topic_partitions("partitions", partitions, partition_least=0)
    seen: set[tuple[str, int]] = set()
    for at, p in enumerate(wanted):
        if (p.topic, p.partition) in seen:
            raise ConfigError(
                f"partitions[{at}] is {p.topic}-{p.partition}, which is given before. Give each "
                "partition once."
            )
        seen.add((p.topic, p.partition))
    return wanted


def _timeout_s(timeout: float | None) -> float:
    """Seconds, less than 0 for no time-out. Raises TypeError, ConfigError."""
    seconds = arguments.timeout_s("timeout", timeout)
    return -1 if seconds is None else seconds
