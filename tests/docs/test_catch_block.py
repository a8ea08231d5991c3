"""The catch block of docs/howto/errors.md does what the page says, for each kind of error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, blocks
from txnlog import (
    OFFSET_BEGINNING,
    AdminClient,
    Consumer,
    Message,
    Producer,
    TopicPartition,
)
from txnlog.admin import ConsumerGroupTopicPartitions
from txnlog.errors import (
    FLAGS,
    OperationTimedOutError,
    ProducerFencedError,
    RecordTooLargeError,
)
from txnlog.settings.docs import with_tables

PAGE = ROOT / "docs" / "howto" / "errors.md"


@pytest.fixture
def process() -> Any:
    """The function of the page."""
    [block] = [block for block in blocks(PAGE) if block.title == "loop.py"]
    names: dict[str, Any] = {}
    exec(compile(block.text, str(PAGE), "exec"), names)
    return names["process"]


class Copying:
    """A consumer of `orders` and a producer to `copies`, with three orders to copy."""

    def __init__(self, root: str) -> None:
        self.root = root
        with Producer({"txnlog.root": root, "num.partitions": 1}) as producer:
            for value in "abc":
                producer.produce("orders", value)
        group = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        self.consumer = Consumer({"txnlog.root": root, **group})
        self.consumer.subscribe(["orders"])
        self.producer = self.new_producer()

    def new_producer(self) -> Producer:
        producer = Producer({"txnlog.root": self.root, "transactional.id": "copy"})
        producer.init_transactions()
        return producer

    def read(self) -> list[Message]:
        """Three messages, whether read for the first time or again."""
        found: list[Message] = []
        while len(found) < 3:
            found += self.consumer.consume(3 - len(found), timeout=10)
        return found

    def copies(self) -> list[bytes | None]:
        """What a read_committed reader sees; offsets are dense, so the end is their number."""
        copies = TopicPartition("copies", 0, OFFSET_BEGINNING)
        with Consumer({"txnlog.root": self.root}) as reader:
            if "copies" not in reader.list_topics().topics:
                return []
            end = reader.get_watermark_offsets(copies)[1]
            reader.assign([copies])
            return [message.value() for message in reader.consume(end, timeout=30)] if end else []


@pytest.fixture
def copying(tmp_path: Path) -> Copying:
    return Copying(str(tmp_path / "lake"))


def copy(producer: Producer, message: Message) -> None:
    producer.produce("copies", message.value(), partition=0)


def test_without_an_error_records_and_offsets_are_committed(process: Any, copying: Copying) -> None:
    messages = copying.read()
    assert process(copying.consumer, copying.producer, ["orders"], messages, copy)
    assert sorted(copying.copies()) == [b"a", b"b", b"c"]


def test_retriable_error_of_a_commit_repeats_the_commit_alone(
    process: Any, copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anything else might write the records again, or drop them."""
    commit, calls = copying.producer.commit_transaction, []

    def slow(timeout: float | None = None) -> None:
        calls.append("commit")
        if len(calls) < 3:
            raise OperationTimedOutError("The store did not answer.")
        commit(timeout)

    monkeypatch.setattr(copying.producer, "commit_transaction", slow)
    assert process(copying.consumer, copying.producer, ["orders"], copying.read(), copy)
    assert calls == ["commit"] * 3
    assert sorted(copying.copies()) == [b"a", b"b", b"c"]


def test_abortable_error_aborts_and_reads_again(process: Any, copying: Copying) -> None:
    """An operator resets the group meanwhile, so the offsets of this generation are refused."""
    messages = copying.read()
    admin = AdminClient({"txnlog.root": copying.root})
    done: list[str] = []

    def handle(producer: Producer, message: Message) -> None:
        copy(producer, message)
        if not done:
            start = ConsumerGroupTopicPartitions("g", [TopicPartition("orders", 0, 0)])
            admin.alter_consumer_group_offsets([start])["g"].result()
            done.append("reset")

    assert not process(copying.consumer, copying.producer, ["orders"], messages, handle)
    assert copying.copies() == []
    assert process(copying.consumer, copying.producer, ["orders"], copying.read(), handle)
    assert sorted(copying.copies()) == [b"a", b"b", b"c"]


def test_fatal_error_is_raised_and_nothing_is_written(process: Any, copying: Copying) -> None:
    messages = copying.read()
    copying.new_producer()
    with pytest.raises(ProducerFencedError):
        process(copying.consumer, copying.producer, ["orders"], messages, copy)
    assert copying.copies() == []


@pytest.mark.parametrize("error", [RecordTooLargeError, ValueError])
def test_error_of_one_record_aborts_and_is_raised(
    process: Any, copying: Copying, error: type[Exception]
) -> None:
    """Reading it again would fail for ever."""

    def handle(producer: Producer, message: Message) -> None:
        copy(producer, message)
        if message.value() == b"b":
            if error is ValueError:
                raise ValueError("b")
            producer.produce("copies", b"x" * 2_000_000)

    with pytest.raises(error):
        process(copying.consumer, copying.producer, ["orders"], copying.read(), handle)
    assert copying.copies() == []
    # The producer is as it was before.
    with copying.producer.transaction():
        copying.producer.produce("copies", "later", partition=0)
    assert copying.copies() == [b"later"]


def test_tables_of_the_page_are_those_of_the_code() -> None:
    """Every error, under the flag that it has."""
    page = PAGE.read_text()
    assert page == with_tables(page), "python -m txnlog.settings.docs docs/howto/errors.md"
    assert all(f"### {flag.capitalize()}" in page for flag in FLAGS)
