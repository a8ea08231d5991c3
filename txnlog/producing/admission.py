"""Which records a producer accepts, and when: its state, the topic's metadata, free memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from txnlog.errors import (
    InvalidRecordError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from txnlog.producing.accumulator import Accumulator, OnDelivery
from txnlog.producing.arrow_records import TableSlice, check_records
from txnlog.producing.deadlines import Deadline, exhausted
from txnlog.producing.destinations import Destination, Destinations, check_record
from txnlog.producing.lifecycle import Lifecycle
from txnlog.producing.sender import Sender
from txnlog.protocol.producer_states import ProducerCall

_REFUSALS = (InvalidRecordError, RecordTooLargeError, UnknownTopicOrPartitionError)


class Admission:
    """Waits for what the accumulator needs to accept a record. Any thread may call it.

    The calls raise what refuses records of the producer or of the topic, and BufferExhaustedError
    when there was no room within `block_ms`.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        accumulator: Accumulator,
        destinations: Destinations,
        sender: Sender,
        block_ms: int,
    ) -> None:
        self._lifecycle = lifecycle
        self._accumulator = accumulator
        self._destinations = destinations
        self._sender = sender
        self._block_ms = block_ms

    def open_buffer(
        self,
        topic: str,
        key: bytes | None,
        partition: int,
        size_bytes: int,
        deadline: Deadline,
        number: int,
    ) -> None:
        """Prepare the accumulator for one record, which may be appended next.

        Raises InvalidTxnStateError if the transaction of this number is not the present one: of
        those that waited.
        """
        destination = self._checked(
            topic, deadline, lambda to: check_record(to, key, partition, size_bytes)
        )
        self._lifecycle.check_transaction(ProducerCall.SEND, number)
        self._accumulator.open_buffer(destination)

    def add_table(
        self,
        topic: str,
        part: TableSlice,
        callback: OnDelivery | None,
        deadline: Deadline,
        number: int,
    ) -> None:
        """Add Arrow records to the transaction of this number; raises as `open_buffer`."""
        is_added = False
        while not is_added:
            destination = self._checked(topic, deadline, partial(check_records, part))
            self._lifecycle.check_transaction(ProducerCall.SEND, number)
            is_added = self._accumulator.add_table(destination, part, callback)

    def _checked(
        self, topic: str, deadline: Deadline, check: Callable[[Destination], None]
    ) -> Destination:
        """The topic, which accepts what `check` checks; raises what it raises."""
        destination = self._await_room(topic, deadline)
        try:
            check(destination)
        except _REFUSALS:
            # It may have changed since it was read: partitions added, a limit raised.
            destination = self._look_up(topic, deadline)
            check(destination)
        return destination

    def _look_up(self, topic: str, deadline: Deadline) -> Destination:
        return self._sender.exclusively(
            deadline, lambda: deadline.retry(lambda: self._destinations.look_up(topic))
        )

    def _await_room(self, topic: str, deadline: Deadline) -> Destination:
        """The topic, read where it is not cached, as soon as there is room for records."""
        self._lifecycle.check_usable()
        self._lifecycle.check_call(ProducerCall.SEND)
        destination = self._destinations.cached(topic)
        if destination is None:
            destination = self._look_up(topic, deadline)
        while not self._accumulator.has_room:
            self._sender.exclusively(deadline, self._sender.pump)
            self._lifecycle.check_call(ProducerCall.SEND)
            if not self._accumulator.has_room:
                error = self._sender.last_error
                if deadline.remaining_ms <= 0:
                    memory_bytes = self._accumulator.memory_bytes
                    raise exhausted(memory_bytes, self._block_ms, error) from error
                deadline.pause(error)
        return destination
