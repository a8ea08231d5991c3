"""Requests: batches of one topic that one commit appends, retried until the outcome is certain.

A request whose reply was lost is sent again unchanged: the log recognises a repeat by its
sequences. Each topic has one request in flight, which keeps the order, and topics do not wait for
each other. Callers hold the producer's io lock; nothing here sleeps or starts threads.

A request leaves its queue last: after an interrupt it is sent again, and its outcome reported
again, which does nothing for what was reported and released before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from txnlog.coordinator.appending import (
    Append,
    Outcome,
    append_idempotent,
    append_in_transaction,
)
from txnlog.coordinator.producer_ids import unknown_producer_id
from txnlog.coordinator.state_rows import check_owner
from txnlog.errors import (
    CommitStateUnknownError,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    OperationTimedOutError,
    OutOfOrderSequenceError,
    TxnLogError,
    UnexpectedError,
    UnknownTopicIdError,
)
from txnlog.process.failures import caught, unexpected
from txnlog.process.retries import is_of_store
from txnlog.producing.batching import Batch, stage
from txnlog.producing.publishing import Outlet
from txnlog.protocol.metadata import StagedBatch, TopicPartitions, TransactionMetadata
from txnlog.storage.delta.readings import Reading

logger = logging.getLogger("txnlog")


@dataclass(slots=True)
class Request:
    """Batches of one topic, any partitions. It does not change after its first attempt, unless the
    topic is created again.

    `failure` is why it is never sent again; its records fail, and it leaves its queue.
    """

    topic: str
    topic_id: str
    created_ms: int
    batches: list[Batch] = field(default_factory=list)
    staged: list[StagedBatch] = field(default_factory=list)
    producer_id: int = -1
    base_sequences: dict[int, int] = field(default_factory=dict)
    is_outcome_unknown: bool = False
    failure: TxnLogError | None = None

    @property
    def num_records(self) -> int:
        return sum(batch.num_records for batch in self.batches)


class RequestPublication:
    """Requests per topic; Idempotent and Eager say how one is appended."""

    def __init__(self, outlet: Outlet) -> None:
        self._cluster = outlet.cluster
        self._clock = outlet.cluster.store.clock
        self._deliveries = outlet.deliveries
        self._release = outlet.release
        self._delivery_timeout_ms = outlet.delivery_timeout_ms
        self._compression = outlet.compression
        self._queues: dict[str, list[Request]] = {}
        self._next_sequences: dict[tuple[int, str, int], int] = {}
        self.error: TxnLogError | None = None
        self.last_error: TxnLogError | None = None

    @property
    def waiting(self) -> int:
        # Copies, since the sending thread changes both while other threads count.
        queues = list(self._queues.values())
        return sum(request.num_records for queue in queues for request in list(queue))

    def add(self, batch: Batch) -> None:
        """Add to the topic's newest request, or to a new one once that was attempted."""
        if batch.is_taken:
            return
        queue = self._queues.setdefault(batch.topic, [])
        newest = queue[-1] if queue else None
        if newest is None or newest.staged or newest.topic_id != batch.topic_id or newest.failure:
            newest = Request(batch.topic, batch.topic_id, batch.created_ms, [batch])
            end = len(queue)
            queue[end:], batch.is_taken = [newest], True
        else:
            end = len(newest.batches)
            newest.batches[end:], batch.is_taken = [batch], True

    def refuse(self, batch: Batch, error: TxnLogError) -> None:
        self._deliveries.add(batch, error)
        self._release([batch])

    def pump(self) -> None:
        sending = [topic for topic, queue in self._queues.items() if queue]
        while sending:
            finished = self._send([self._queues[topic][0] for topic in sending])
            for topic in [t for t, is_done in zip(sending, finished, strict=True) if is_done]:
                del self._queues[topic][0]
            sending = [
                topic
                for topic, is_done in zip(sending, finished, strict=True)
                if is_done and self._queues[topic]
            ]
        self._queues = {topic: queue for topic, queue in self._queues.items() if queue}

    def discard(self, error: TxnLogError) -> None:
        for queue in self._queues.values():
            for request in queue:
                self._fail(request, error)
        self._queues.clear()

    def purge(self, error: TxnLogError, *, in_queue: bool, in_flight: bool) -> None:
        for topic, queue in self._queues.items():
            kept = []
            for request in queue:
                if in_flight if request.staged else in_queue:
                    request.failure = error
                    self._drop(request, error)
                else:
                    kept.append(request)
            self._queues[topic] = kept
        self._queues = {topic: queue for topic, queue in self._queues.items() if queue}

    def _send(self, requests: Sequence[Request]) -> list[bool]:
        """Send requests of different topics together; for each whether it is finished, as delivered
        or as failed.
        """
        if self.error is not None:
            for request in requests:
                self._fail(request, self.error)
            return [True] * len(requests)
        failed = {id(request): request.failure for request in requests if request.failure}
        failed |= self._stage([request for request in requests if not request.failure])
        staged = [request for request in requests if id(request) not in failed]
        try:
            outcomes = self._append(staged)
        except Exception as error:
            outcomes = [unexpected(error, _writing(request)) for request in staged]
        found = {id(request): made for request, made in zip(staged, outcomes, strict=True)}
        return [
            self._settle(request, failed.get(id(request)) or found[id(request)])
            for request in requests
        ]

    def _settle(self, request: Request, outcome: Outcome) -> bool:
        """Report a request's outcome; whether it is finished."""
        if isinstance(outcome, TxnLogError):
            request.is_outcome_unknown |= isinstance(
                outcome, (CommitStateUnknownError, UnexpectedError)
            )
            return self._drop_unless_retriable(request, outcome)
        for (_, batches), offset in zip(_by_partition(request), outcome, strict=True):
            for batch in batches:
                self._deliveries.add(batch, offset)
                offset += batch.num_records
        self._deliveries.sent.add(request.staged)
        self._release(request.batches)
        return True

    def _drop_unless_retriable(self, request: Request, error: TxnLogError) -> bool:
        """Drop the request after an error, unless it may be retried; whether it was dropped."""
        self.last_error = error
        if not error.retriable:
            request.failure = error
            self._drop(request, error)
            return True
        age_ms = self._clock.boot_ms() - request.created_ms
        if age_ms <= self._delivery_timeout_ms:
            self._deliveries.sent.retried_records += request.num_records
            self._say_retried(request, error)
            return False
        unknown = ", but may have been written" if request.is_outcome_unknown else ""
        failed = OperationTimedOutError(
            f"{request.num_records} records for topic {request.topic!r} could not be delivered "
            f"within delivery.timeout.ms={self._delivery_timeout_ms}{unknown}. The last error: "
            f"{error.message}",
            topic=request.topic,
            # Producing the records again might write them twice.
            retriable=False,
        )
        failed.__cause__ = error
        request.failure = failed
        self._drop(request, failed)
        return True

    def _say_retried(self, request: Request, error: TxnLogError) -> None:
        """The commit that appends the records says that it works again."""
        if is_of_store(error):
            self._cluster.store.retries.failed(
                request.topic,
                f"Sending records to topic {request.topic!r}",
                error,
                until=f"until delivery.timeout.ms={self._delivery_timeout_ms} is over",
            )

    def _stage(self, requests: Sequence[Request]) -> dict[int, TxnLogError]:
        """Write the requests' files, except those that an earlier attempt wrote, together.

        Returns the error of each request that has one, by its id().
        """
        store = self._cluster.store
        missing = [
            (request, partial(stage, store, batches, self._compression))
            for request in requests
            for partition, batches in _by_partition(request)
            if all(staged.partition != partition for staged in request.staged)
        ]
        made = store.together(
            [partial(caught, write, _writing(request)) for request, write in missing]
        )
        failed: dict[int, TxnLogError] = {}
        for (request, _), staged in zip(missing, made, strict=True):
            if isinstance(staged, TxnLogError):
                failed.setdefault(id(request), staged)
            else:
                every = [*request.staged, staged]
                request.staged = sorted(every, key=lambda staged: staged.partition)
        return failed

    def _fail(self, request: Request, error: TxnLogError) -> None:
        for batch in request.batches:
            self._deliveries.add(batch, error)
        self._release(request.batches)

    def _base_sequences(self, request: Request, producer_id: int) -> dict[int, int]:
        """Partition -> sequence of the first record of the request, if it is sent next."""
        return {
            staged.partition: self._next_sequences.get(
                (producer_id, request.topic_id, staged.partition), 0
            )
            for staged in request.staged
        }

    def _continue(self, requests: Sequence[Request], outcomes: Sequence[Outcome]) -> None:
        """Advance the sequences past what was appended."""
        for request, outcome in zip(requests, outcomes, strict=True):
            if not isinstance(outcome, TxnLogError):
                for staged in request.staged:
                    key = (request.producer_id, request.topic_id, staged.partition)
                    first = request.base_sequences[staged.partition]
                    self._next_sequences[key] = first + staged.num_records

    def _append(self, requests: Sequence[Request]) -> list[Outcome]:
        """Append requests of different topics together; the outcome of each."""
        raise NotImplementedError

    def _drop(self, request: Request, error: TxnLogError) -> None:
        raise NotImplementedError


def _writing(request: Request) -> str:
    return f"Writing records to topic {request.topic!r}"


def _needs_new_id(request: Request, outcome: Outcome) -> bool:
    """Whether the log has forgotten the producer of a request that was never tried before, or knows
    another one by its id.
    """
    if request.is_outcome_unknown:
        return False
    if isinstance(outcome, OutOfOrderSequenceError):
        return outcome.context.get("expected_sequence") == 0
    return isinstance(outcome, DuplicateSequenceError)


def _redirect(request: Request, topic_id: str) -> None:
    """Send it to another topic of this name, in new files: vacuum deletes those of the former."""
    if request.topic_id == topic_id:
        return
    for batch in request.batches:
        batch.topic_id = topic_id
    request.topic_id, request.staged, request.producer_id, request.is_outcome_unknown = (
        topic_id, [], -1, False
    )  # fmt: skip


def _by_partition(request: Request) -> list[tuple[int, list[Batch]]]:
    batches: dict[int, list[Batch]] = {}
    for batch in request.batches:
        batches.setdefault(batch.partition, []).append(batch)
    return sorted(batches.items())


class Idempotent(RequestPublication):
    """Records are final at once. After a dropped request a new producer id is used (R9).

    What is on its way to a topic that is deleted and created again goes to the new one: whatever
    was appended to the former one is gone with it (D12, R71). `on_lost` is called with a topic that
    was deleted, whether it was created again or not.
    """

    def __init__(self, outlet: Outlet, *, on_lost: Callable[[str], None]) -> None:
        super().__init__(outlet)
        self._on_lost = on_lost
        self._producer_id = -1
        self._topic_ids: dict[str, str] = {}

    def _append(self, requests: Sequence[Request]) -> list[Outcome]:
        for request in requests:
            if request.producer_id < 0:
                self._identify(request)
        outcomes = self._append_identified(requests)
        left = [n for n, found in enumerate(outcomes) if _needs_new_id(requests[n], found)]
        if left:
            # All its earlier records were acknowledged. The topics were read by these appends.
            self._reset()
            topics = {requests[number].topic for number in left}
            self._producer_id = unknown_producer_id(self._cluster, topics)
            for number in left:
                self._identify(requests[number])
            again = self._append_identified([requests[number] for number in left])
            for number, outcome in zip(left, again, strict=True):
                outcomes[number] = outcome
        for number, found in enumerate(outcomes):
            if isinstance(found, UnknownTopicIdError):
                outcomes[number] = caught(partial(self._append_to_new, requests[number], found))
        self._continue(requests, outcomes)
        return outcomes

    def _append_identified(self, requests: Sequence[Request]) -> list[Outcome]:
        appends = [
            Append(each.staged, each.base_sequences, each.producer_id, each.is_outcome_unknown)
            for each in requests
        ]
        try:
            return append_idempotent(self._cluster, appends)
        except BaseException:
            for request in requests:
                request.is_outcome_unknown = True
            raise

    def _append_to_new(self, request: Request, error: UnknownTopicIdError) -> Outcome:
        """Append to the topic that has the name now; the outcome is `error` if none has it."""
        self._on_lost(request.topic)
        log = self._cluster.find_topic(request.topic)
        if log is None:
            return error
        for waiting in self._queues[request.topic]:
            _redirect(waiting, log.topic_id)
        failed = self._stage([request])
        if failed:
            return failed[id(request)]
        self._identify(request)
        [outcome] = self._append_identified([request])
        return outcome

    def _identify(self, request: Request) -> None:
        """Give the request its producer id and sequences."""
        if self._topic_ids.setdefault(request.topic, request.topic_id) != request.topic_id:
            # A topic that was created again keeps the sequences of the former one.
            self._reset()
            self._topic_ids[request.topic] = request.topic_id
        if self._producer_id < 0:
            self._producer_id = self._cluster.next_producer_id()
        base_sequences = self._base_sequences(request, self._producer_id)
        request.producer_id, request.base_sequences = self._producer_id, base_sequences

    def _reset(self) -> None:
        self._producer_id = -1
        self._next_sequences.clear()
        self._topic_ids.clear()

    def _drop(self, request: Request, error: TxnLogError) -> None:
        logger.warning("%d records were not delivered: %s", request.num_records, error)
        self._fail(request, error)
        # Its sequences may be in the log now or later, so they are never used again.
        self._reset()
        if error.fatal:
            self.error = error


class Eager(RequestPublication):
    """For one transaction. The first failed request fails the transaction."""

    def __init__(
        self,
        outlet: Outlet,
        *,
        open_partitions: Callable[[list[TopicPartitions]], TransactionMetadata],
    ) -> None:
        super().__init__(outlet)
        self._open_partitions = open_partitions
        self._row: TransactionMetadata | None = None
        self._reading: Reading | None = None
        self._added: set[tuple[str, int]] = set()

    def _append(self, requests: Sequence[Request]) -> list[Outcome]:
        if not requests:
            return []
        row = self._opened(requests)
        for request in requests:
            if not request.base_sequences:
                request.base_sequences = self._base_sequences(request, request.producer_id)
        outcomes = append_in_transaction(
            self._cluster,
            row,
            # Files of an open transaction are never replaced.
            [Append(each.staged, each.base_sequences, may_be_there=False) for each in requests],
            reading=self._reading,
        )
        if any(isinstance(outcome, InvalidProducerEpochError) for outcome in outcomes):
            # The topic says that the transaction has ended, the row says by which owner (R32, R42).
            check_owner(self._cluster, row)
        self._continue(requests, outcomes)
        return outcomes

    def _opened(self, requests: Sequence[Request]) -> TransactionMetadata:
        """The row with all partitions of the requests.

        Before the first data: a partition that is not in the row would get no marker (R29).
        """
        added = [
            TopicPartitions(
                topic=request.topic,
                topic_id=request.topic_id,
                partitions=tuple(staged.partition for staged in request.staged),
            )
            for request in requests
        ]
        new = {(one.topic_id, number) for one in added for number in one.partitions} - self._added
        if new or self._row is None:
            self._reading = Reading.begin(self._clock)
            self._row = self._open_partitions(added)
            self._added |= new
        return self._row

    def refuse(self, batch: Batch, error: TxnLogError) -> None:
        self.error = self.error or error
        super().refuse(batch, error)

    def _drop(self, request: Request, error: TxnLogError) -> None:
        # First, or an interrupt would leave a transaction that commits without these records.
        self.error = error
        self._fail(request, error)
