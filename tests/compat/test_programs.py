"""confluent-kafka-python's own programs run on a root, with only import and arguments changed."""

from __future__ import annotations

import re
import signal
from base64 import b64encode
from importlib.metadata import metadata
from pathlib import Path

import pytest

from tests.compat.programs import Program, downloaded, lines, moved, run
from txnlog import AdminClient, Consumer, NewTopic, TopicPartition
from txnlog.errors import PartitionEndError

PEOPLE = ["Ann", "Oslo", "7", "red", "Bob", "Rome", "many", "Eve", "Bonn", "9", "blue"]
"""Two records, and one with an invalid number between them."""


@pytest.fixture(scope="module")
def programs() -> Path:
    return downloaded()


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "root")


def values(root: str, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
    """All values of a topic."""
    config = {"txnlog.root": root, "isolation.level": isolation, "enable.partition.eof": True}
    with Consumer(config) as reader:
        count = len(reader.list_topics(topic).topics[topic].partitions)
        reader.assign([TopicPartition(topic, number, 0) for number in range(count)])
        found, ends = [], 0
        while ends < count:
            try:
                message = reader.poll(60)
            except PartitionEndError:
                ends += 1
            else:
                assert message is not None
                found.append(message.value())
    return found


def committed(root: str, group: str, topic: str, partition: int = 0) -> int:
    with Consumer({"txnlog.root": root, "group.id": group}) as reader:
        return reader.committed([TopicPartition(topic, partition)])[0].offset


def test_producer_consumer_and_transactions(programs: Path, root: str, tmp_path: Path) -> None:
    """producer.py, consumer.py, eos_transactions.py and get_watermark_offsets.py."""
    created = AdminClient({"txnlog.root": root}).create_topics([NewTopic("lines", 1)])
    created["lines"].result()
    said = run(programs / "producer.py", tmp_path, root, "lines", stdin=lines(["a", "b", "c"]))
    assert "% Message delivered to lines [0] @ 2" in said

    with Program(programs / "consumer.py", tmp_path, "-T", "1", root, "readers", "lines") as reader:
        reader.wait_for("b'a'", "b'b'", "b'c'", "KAFKA Stats", "'consumer_lag': 0")
        assert "% Aborted by user" in reader.end()
    assert committed(root, "readers", "lines") == 3

    said = run(programs / "get_watermark_offsets.py", tmp_path, root, "readers", "lines")
    assert re.search(r"lines \[0\] +3 +0\n", said)

    arguments = ("-b", root, "-t", "lines", "-o", "encoded", "-g", "eos")
    said = run(programs / "eos_transactions.py", tmp_path, *arguments)
    assert "Reached the end of lines [0] at 3" in said
    assert values(root, "encoded") == [b64encode(value) for value in (b"a", b"b", b"c")]
    assert committed(root, "eos", "lines") == 3
    run(programs / "eos_transactions.py", tmp_path, *arguments)
    assert len(values(root, "encoded")) == 3


def test_asyncio(programs: Path, root: str, tmp_path: Path) -> None:
    """asyncio_example.py: it awaits deliveries before the commit, which must not hang."""
    created = AdminClient({"txnlog.root": root}).create_topics([NewTopic("tasks", 2)])
    created["tasks"].result()
    with Program(programs / "asyncio_example.py", tmp_path, root, "tasks") as program:
        program.wait_for("Produced to: tasks", "Consumed: b'testvalue", count=20)
        said = program.end(signal_number=signal.SIGTERM)
    assert "Closed producer" in said
    assert "Closed consumer" in said
    assert "ERROR" not in said
    found = values(root, "tasks")
    assert len(found) == said.count("Produced to: tasks")
    # Consumed are committed records only.
    assert 20 <= said.count("Consumed: b'testvalue") <= len(found)


def test_asyncio_avro_producer(programs: Path, root: str, tmp_path: Path) -> None:
    """asyncio_avro_producer.py: its registry and serializer are awaited, too."""
    arguments = ("-b", root, "-s", root, "-t", "people")
    said = run(programs / "asyncio_avro_producer.py", tmp_path, *arguments)
    assert re.search(r"Produced to people \[\d\] @ 0\n", said)
    assert values(root, "people") == [b"\0\0\0\0\1\x0aalice"]


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_serializers(programs: Path, root: str, tmp_path: Path, kind: str) -> None:
    """json_producer.py, json_consumer.py and the same for Avro; the registry is in the root."""
    (tmp_path / "avro").mkdir()
    for name in ("user_generic.avsc", "user_specific.avsc"):
        (tmp_path / "avro" / name).write_text((programs / "avro" / name).read_text())
    arguments = ("-b", root, "-s", root, "-t", "people")
    path = programs / f"{kind}_producer.py"
    with Program(path, tmp_path, *arguments, stdin=lines(PEOPLE)) as writer:
        writer.wait_for("Invalid input, discarding record")
        writer.wait_for("Enter name: ", count=4)
        assert "successfully produced" in writer.end()
    path = programs / f"{kind}_consumer.py"
    with Program(path, tmp_path, *arguments, "-g", "readers") as reader:
        said = reader.wait_for("name: Ann", "name: Eve", "favorite_color: blue")
        reader.end()
    assert "name: Bob" not in said
    assert len(values(root, "_schemas")) == 1


def test_context_managers(programs: Path, root: str, tmp_path: Path) -> None:
    """context_manager_example.py: admin client, producer and consumer in `with`."""
    said = run(programs / "context_manager_example.py", tmp_path, root)
    assert "Traceback" not in said
    assert "failed" not in said
    assert said.count("Message delivered to context-manager-example") == len(
        values(root, "context-manager-example")
    )


def test_adminapi(programs: Path, root: str, tmp_path: Path) -> None:
    """adminapi.py: what exists here, and what is refused."""

    def call(*arguments: str) -> str:
        return run(programs / "adminapi.py", tmp_path, root, *arguments)

    assert call("create_topics", "t", "u") == "Topic t created\nTopic u created\n"
    run(programs / "producer.py", tmp_path, root, "t", stdin=lines(["a"]))
    assert "t created" not in call("create_partitions", "t", "5")
    assert '"t" with 5 partition(s)' in call("list", "topics")
    assert "Id                : 4" in call("describe_topics", "0", "t")
    call("incremental_alter_configs", "TOPIC", "t", "retention.ms=SET:5000")
    call("delta_alter_configs", "TOPIC", "t", "segment.bytes=1000000")
    described = call("describe_configs", "TOPIC", "t")
    assert described.count("ConfigSource.DYNAMIC_TOPIC_CONFIG") == 2
    call("alter_configs", "TOPIC", "t", "retention.bytes=100")
    assert call("describe_configs", "TOPIC", "t").count("DYNAMIC_TOPIC_CONFIG") == 1
    assert "t [1]: 0" in call("alter_consumer_group_offsets", "g", "t", "1", "0")
    assert "id: g is_simple: True" in call("list_consumer_groups")
    assert "State              : ConsumerGroupState.EMPTY" in call(
        "describe_consumer_groups", "0", "g"
    )
    assert "Offset : 0" in call("list_offsets", "READ_COMMITTED", "t", "0", "EARLIEST")
    assert "Cluster_id" in call("describe_cluster", "0")
    assert "deleted" in call("delete_topics", "u")
    acl = ("TOPIC", "t", "LITERAL", "User:x", "*", "READ", "ALLOW")
    for refused in (
        ("create_acls", *acl),
        ("describe_acls", *acl),
        ("delete_acls", *acl),
        ("describe_user_scram_credentials",),
        ("describe_user_scram_credentials", "x"),
        ("alter_user_scram_credentials", "DELETE", "x", "SCRAM_SHA_256"),
        ("elect_leaders", "PREFERRED", "t", "0"),
    ):
        assert "SECURITY_DISABLED" in call(*refused), refused


def readme_block(first_line: str) -> str:
    """A block of Python of the README of the installed package."""
    text = str(metadata("confluent-kafka").get_payload())
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return next(moved(block) for block in blocks if first_line in block)


def test_readme_of_the_package(root: str, tmp_path: Path) -> None:
    """Its programs, with the address in the place of `mybroker`: admin, asyncio, consumer."""

    def configured(first_line: str) -> Path:
        path = tmp_path / f"block_{abs(hash(first_line))}.py"
        text = readme_block(first_line)
        assert "mybroker" in text
        path.write_text(re.sub(r"""(["'])mybroker\1""", repr(root), text))
        return path

    folder = tmp_path / "run"
    folder.mkdir()
    said = run(configured("from confluent_kafka.admin import AdminClient, NewTopic"), folder)
    assert said == "Topic topic1 created\nTopic topic2 created\n"
    run(configured("from confluent_kafka.aio import AIOProducer"), folder)
    assert values(root, "mytopic") == [b"hello"]
    with Program(configured("from confluent_kafka import Consumer"), folder) as reader:
        reader.wait_for("Received message: hello")
        assert "KeyboardInterrupt" in reader.end(status=-signal.SIGINT)
