"""Code blocks of the documentation run, and print what the pages show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, Block, Shell, blocks, play
from txnlog import OFFSET_BEGINNING, Cluster, Consumer, Producer, TopicPartition

# Pages whose files and commands run in one shell, in an empty folder.
SHELLS = (
    "howto/backup.md",
    "howto/housekeeping.md",
    "howto/repair.md",
    "explanation/deferred-and-eager.md",
    "explanation/delivery.md",
    "explanation/outside.md",
    "explanation/visible.md",
    "howto/size.md",
    "howto/show.md",
    "howto/snapshots.md",
    "howto/why.md",
    "howto/tables.md",
)


# Many commands, each a process of its own: seconds.
LONG = ("howto/backup.md", "explanation/outside.md")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name in LONG else ()) for name in SHELLS]
)
def test_commands_of_the_page_print_what_it_shows(name: str, tmp_path: Path) -> None:
    """Readers copy them, and compare."""
    with Shell(tmp_path) as shell:
        play(shell, tmp_path, blocks(ROOT / "docs" / name))


# Pages whose blocks the tests below run.
PLAIN = ("clients.md", "verify.md")


def clients_blocks() -> list[Block]:
    return [block for block in blocks(ROOT / "docs/clients.md") if block.language == "python"]


def test_first_lines_of_the_clients_page_write_both_or_neither_and_read(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    block = clients_blocks()[0]
    names: dict[str, Any] = {}
    exec(compile(block.text.replace("/data/lake", root), block.place, "exec"), names)
    while names["message"] is None:
        names["message"] = names["consumer"].poll(1.0)
    assert names["message"].topic() == "orders"
    names["consumer"].close()
    assert values(root, "inventory") == [b"-2"]


def test_copying_loop_of_the_clients_page_copies(tmp_path: Path) -> None:
    """The first lines that a user of confluent-kafka copies."""
    root = str(tmp_path / "lake")
    with Producer({"txnlog.root": root, "num.partitions": 1}) as producer:
        for value in ("apple", "pear"):
            producer.produce("orders", value)
    block = clients_blocks()[1]
    text = block.text.replace("/data/lake", root).replace(
        '"enable.auto.commit": False',
        '"enable.auto.commit": False, "auto.offset.reset": "earliest"',
    )
    exec(compile(text.replace("timeout=10", "timeout=3"), block.place, "exec"), {})
    assert values(root, "invoices") == [b"apple", b"pear"]


def test_check_of_the_page_on_verify_finds_no_damage(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    with Producer({"txnlog.root": root}) as producer:
        producer.produce("orders", "apple")
    [block] = [block for block in blocks(ROOT / "docs/verify.md") if block.language == "python"]
    exec(compile(block.text.replace("/data/lake", root), block.place, "exec"), {})


def values(root: str, topic: str) -> list[bytes | None]:
    """Of every record, by offset; of all partitions, one after the other."""
    found: list[bytes | None] = []
    for number, partition in enumerate(Cluster.open(root).topic(topic).view.partitions):
        if partition.end_offset:
            with Consumer({"txnlog.root": root}) as consumer:
                consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
                messages = consumer.consume(partition.end_offset, timeout=30)
                found += [message.value() for message in messages]
    return sorted(found, key=lambda value: value or b"")
