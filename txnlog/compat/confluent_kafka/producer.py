"""confluent_kafka.Producer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from txnlog import producer as native
from txnlog.compat.confluent_kafka.client_config import client_config
from txnlog.compat.confluent_kafka.error import KafkaException, kafka_error, translated
from txnlog.compat.confluent_kafka.metadata import cluster_metadata
from txnlog.messages import ClusterMetadata, ConsumerGroupMetadata, Message, TopicPartition
from txnlog.process.client_metrics import Metric
from txnlog.process.closing import ClosedAtTheEnd
from txnlog.producing.record_arguments import HeadersArgument

OnDelivery = Callable[[Any, Message], Any]

WAIT_S = 1.0
"""How often a poll without a time-out looks at its signal handlers."""


class Producer(ClosedAtTheEnd):
    """txnlog.Producer with confluent-kafka's errors. Eager by default, as Kafka's transactions are.

    `flush()` delivers what was produced, also inside a transaction; with
    `transaction.publish=deferred` there is nothing to deliver before the commit, so it returns 0.
    """

    def __init__(self, *given: Mapping[str, Any], **named: Any) -> None:
        config = client_config(given, named)
        if config.get("transactional.id") is not None:
            config.setdefault("transaction.publish", "eager")
        on_delivery = config.pop("on_delivery", None) or config.pop("dr_cb", None)
        if callable(on_delivery):
            config["on_delivery"] = partial(_report, on_delivery)
        with translated():
            self._producer = native.Producer(config)

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: HeadersArgument = None,
        *,
        callback: OnDelivery | None = None,
    ) -> None:
        """Take a record; poll or flush call `on_delivery` (or `callback`) with (error, message).

        Raises BufferError when buffer.memory is full, KafkaException.
        """
        called = on_delivery or callback
        report = None if called is None else partial(_report, called)
        with translated():
            self._producer.produce(topic, value, key, partition, report, timestamp, headers)

    def produce_batch(
        self,
        topic: str,
        messages: Iterable[dict[str, Any]],
        partition: int = -1,
        callback: OnDelivery | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> int:
        """Produce dicts with value, key, partition, timestamp, headers; how many were taken.

        One that is refused has the KafkaError in `_error`.
        """
        taken = 0
        for message in messages:
            names = ("value", "key", "timestamp", "headers")
            record = {name: message[name] for name in names if message.get(name) is not None}
            called = message.get("callback") or on_delivery or callback
            try:
                place = message.get("partition", partition)
                self.produce(topic, partition=place, on_delivery=called, **record)
                taken += 1
            except KafkaException as error:
                message["_error"] = error.args[0]
        return taken

    def poll(self, timeout: float = -1) -> int:
        """Call waiting callbacks; wait up to `timeout` seconds for one, without end by default."""
        with translated():
            if timeout is None or timeout < 0:
                while True:
                    served = self._producer.poll(WAIT_S)
                    if served:
                        return served
            return self._producer.poll(timeout)

    def flush(self, timeout: float | None = None) -> int:
        """Deliver what was produced, and call the callbacks; how many records are left."""
        with translated():
            return self._producer.flush(None if timeout is None or timeout < 0 else timeout)

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Discard records that are not delivered yet."""
        with translated():
            self._producer.purge(in_queue, in_flight, blocking)

    def metrics(self) -> list[Metric]:
        """See txnlog.Producer.metrics."""
        return self._producer.metrics()

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """The topics of the root, or one of them."""
        with translated():
            return cluster_metadata(self._producer.list_topics(topic, timeout))

    def cluster_id(self, timeout: float = -1) -> str:
        """The id of the cluster at the root."""
        return self.list_topics(timeout=timeout).cluster_id

    def init_transactions(self, timeout: float | None = None) -> None:
        """Take over the transactional.id, and end what its former owner left open."""
        with translated():
            self._producer.init_transactions(timeout)

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        with translated():
            self._producer.begin_transaction()

    def send_offsets_to_transaction(
        self,
        positions: Iterable[TopicPartition],
        group_metadata: ConsumerGroupMetadata,
        timeout: float | None = None,
    ) -> None:
        """Commit positions with the transaction; those without an offset are left out."""
        known = [position for position in positions if position.offset >= 0]
        if known:
            with translated():
                self._producer.send_offsets_to_transaction(known, group_metadata, timeout)

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Flush and commit."""
        with translated():
            self._producer.commit_transaction(timeout)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Discard the transaction."""
        with translated():
            self._producer.abort_transaction(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flush, and end; an open transaction is aborted."""
        with translated():
            self._producer.close(timeout)

    def __len__(self) -> int:
        return len(self._producer)

    def __bool__(self) -> bool:
        return True


def _report(callback: OnDelivery, error: Exception | None, message: Message) -> None:
    """A delivery report with a KafkaError."""
    failed = None if error is None else kafka_error(error)
    if failed is not None:
        message.set_error(failed)
    callback(failed, message)
