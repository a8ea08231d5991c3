"""confluent_kafka.Consumer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from txnlog import consumer as native
from txnlog.compat.confluent_kafka.client_config import client_config, with_error
from txnlog.compat.confluent_kafka.error import (
    KafkaError,
    KafkaException,
    kafka_error,
    kafka_exception,
    translated,
)
from txnlog.compat.confluent_kafka.error_codes import CODES
from txnlog.compat.confluent_kafka.metadata import cluster_metadata
from txnlog.consuming.record_stream import Before
from txnlog.errors import ClientStateError, ConfigError, TxnLogError
from txnlog.messages import (
    PARTITION_UA,
    ClusterMetadata,
    ConsumerGroupMetadata,
    Message,
    TopicPartition,
)
from txnlog.process.client_metrics import Metric
from txnlog.process.closing import ClosedAtTheEnd

RebalanceCallback = Callable[..., Any]


class _Returning(native.Consumer):
    _raises = False


class Consumer(ClosedAtTheEnd):
    """txnlog.Consumer with confluent-kafka's errors.

    What goes wrong in poll and consume comes as a message with an `error()`, and errors of the
    whole client go to `error_cb`, too; only a call out of order raises.
    """

    def __init__(self, *given: Mapping[str, Any], **named: Any) -> None:
        config = client_config(given, named)
        if config.get("group.id") is None:
            raise KafkaException(
                KafkaError(CODES["_INVALID_ARG"], "A consumer needs the setting group.id.")
            )
        self._on_error = config.get("error_cb")
        self._on_commit = config.get("on_commit")
        if callable(self._on_commit):
            config["on_commit"] = with_error(self._on_commit)
        self._is_closed = False
        with translated():
            self._consumer = _Returning(config)

    def subscribe(
        self,
        topics: Sequence[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Read topics, by name or "^pattern", as a member of the group."""
        callbacks = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_lost}
        wrapped = {name: self._with_self(call) for name, call in callbacks.items() if call}
        with translated():
            self._open().subscribe(topics, **wrapped)

    def _with_self(self, callback: RebalanceCallback) -> RebalanceCallback:
        return lambda _, partitions: callback(self, partitions)

    def poll(self, timeout: float | None = -1) -> Message | None:
        """The next message, which may have an error(); None after `timeout` seconds.

        Raises KafkaException for a call out of order, RuntimeError when the consumer is closed.
        """
        consumer = self._open()
        try:
            message = consumer.poll(-1 if timeout is None else timeout)
        except TxnLogError as error:
            return self._failed(error)
        if message is not None and message._error is not None:
            _translate(message)
        return message

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Up to `num_messages`, fewer after `timeout` seconds; each may have an error()."""
        return self._consume(num_messages, timeout)

    def _consume(
        self, num_messages: int, timeout: float, later: Before | None = None
    ) -> list[Message]:
        consumer = self._open()
        before = Before() if later is None else later
        try:
            messages = consumer._consume(num_messages, timeout, before)
            for message in messages:
                # Calling error() takes as long as all else that is done here for a record.
                if message._error is not None:
                    _translate(message)
            return messages
        except TxnLogError as error:
            return [self._failed(error)]
        except BaseException:
            self._take_back(before)
            raise
        finally:
            if later is None:
                before.is_returned = True

    def _take_back(self, before: Before) -> None:
        self._consumer._take_back(before)

    def _failed(self, error: TxnLogError) -> Message:
        """The message of an error; raises one of a wrong call."""
        if isinstance(error, (ClientStateError, ConfigError)):
            raise kafka_exception(error) from error
        if self._on_error is not None and (error.retriable or error.fatal):
            self._on_error(error)
        topic, partition = error.context.get("topic"), error.context.get("partition")
        found = Message(
            topic if isinstance(topic, str) else "",
            partition if isinstance(partition, int) else PARTITION_UA,
            None,
            None,
            None,
            None,
        )
        found.set_error(kafka_error(error))
        return found

    def commit(
        self,
        message: Message | None = None,
        offsets: Sequence[TopicPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[TopicPartition] | None:
        """Commit the position after a message, offsets, or what is stored or was returned.

        With nothing to commit a synchronous call raises _NO_OFFSET, and an asynchronous one gives
        it to `on_commit`.
        """
        try:
            with translated():
                return self._open().commit(message, offsets, asynchronous)
        except KafkaException as error:
            cause = error.__cause__
            if (
                message is not None
                or offsets is not None
                or not isinstance(cause, ClientStateError)
            ):
                raise
            none = KafkaError(CODES["_NO_OFFSET"], cause.message)
            if not asynchronous:
                raise KafkaException(none) from error
            if self._on_commit is not None:
                self._on_commit(none, [])
            return None

    def store_offsets(
        self, message: Message | None = None, offsets: Sequence[TopicPartition] | None = None
    ) -> None:
        """Store what is to be committed next; needs enable.auto.offset.store=false."""
        with translated():
            self._open().store_offsets(message, offsets)

    def committed(
        self, partitions: Sequence[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """The group's committed offsets."""
        with translated():
            return self._open().committed(partitions, timeout)

    def position(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """The offset of the next message of each partition."""
        with translated():
            return self._open().position(partitions)

    def seek(self, partition: TopicPartition) -> None:
        """Continue at `partition.offset`."""
        with translated():
            self._open().seek(partition)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read exactly these partitions."""
        with translated():
            self._open().assign(partitions)

    def unassign(self) -> None:
        """Remove all assigned partitions."""
        with translated():
            self._open().unassign()

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Add partitions."""
        with translated():
            self._open().incremental_assign(partitions)

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Remove some partitions."""
        with translated():
            self._open().incremental_unassign(partitions)

    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        with translated():
            return self._open().assignment()

    def unsubscribe(self) -> None:
        """Leave the group and stop reading."""
        with translated():
            self._open().unsubscribe()

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return no messages of these partitions until resume."""
        with translated():
            self._open().pause(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Return messages of these partitions again."""
        with translated():
            self._open().resume(partitions)

    def memberid(self) -> str | None:
        """The member id in the group, None if this consumer is not a member."""
        with translated():
            return self._open().memberid() or None

    def rebalance_protocol(self) -> str:
        """ "COOPERATIVE", "EAGER", or "NONE" outside of a group, as rd_kafka_rebalance_protocol."""
        with translated():
            return self._open().rebalance_protocol()

    def consumer_group_metadata(self) -> ConsumerGroupMetadata:
        """For Producer.send_offsets_to_transaction."""
        with translated():
            return self._open().consumer_group_metadata()

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """(log start, end) of a partition."""
        with translated():
            return self._open().get_watermark_offsets(partition, timeout, cached)

    def offsets_for_times(
        self, partitions: Sequence[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """The first offset at or after the time (ms) in each `offset`."""
        with translated():
            return self._open().offsets_for_times(partitions, timeout)

    def metrics(self) -> list[Metric]:
        """See txnlog.Consumer.metrics."""
        return self._consumer.metrics()

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """The topics of the root, or one of them."""
        with translated():
            return cluster_metadata(self._open().list_topics(topic, timeout))

    def cluster_id(self, timeout: float = -1) -> str:
        """The id of the cluster at the root."""
        return self.list_topics(timeout=timeout).cluster_id

    def close(self) -> None:
        """Commit (with enable.auto.commit), call on_revoke, leave the group."""
        if not self._is_closed:
            try:
                with translated():
                    self._consumer.close()
            finally:
                self._is_closed = True

    def _open(self) -> native.Consumer:
        if self._is_closed:
            raise RuntimeError("Consumer closed")
        return self._consumer


def _translate(message: Message) -> None:
    error = message.error()
    # One that was taken back has a KafkaError already.
    if error is not None and not isinstance(error, KafkaError):
        message.set_error(kafka_error(error))
