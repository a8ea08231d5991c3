"""The code of docs/recipes.md, block by block, on small topics: it runs, and does what it says."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from txnlog import Cluster, Consumer, Producer, TopicPartition

pytestmark = pytest.mark.spark

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
START_S = 1_790_000_000
BAD = b"not json"


def blocks() -> Iterator[tuple[str, str]]:
    """(section, code) of each Python block."""
    for section in re.split(r"^#+ ", PAGE.read_text(), flags=re.M)[1:]:
        for code in re.findall(r"^```python\n(.*?)^```", section, re.S | re.M):
            yield section.splitlines()[0], code


def order(number: int, minutes: int) -> bytes:
    time = datetime.fromtimestamp(START_S + minutes * 60, timezone.utc).isoformat()
    customer = f"c{number % 3}"
    fields = {"id": number, "customer": customer, "amount": number * 30.0, "time": time}
    return json.dumps(fields).encode()


def feed(root: Path) -> None:
    """Ten orders, one a minute, one half a day later, one value that is no order; one payment."""
    producer = Producer({"txnlog.root": str(root)})
    for number in range(10):
        producer.produce("orders.json", order(number, number), partition=0)
    producer.produce("orders.json", order(10, 720), partition=0)
    producer.produce("orders.json", BAD, partition=0)
    paid = datetime.fromtimestamp(START_S + 600, timezone.utc).isoformat()
    producer.produce("payments.json", json.dumps({"order_id": 4, "paid": paid}).encode())
    producer.flush()


def records(root: Path, topic: str) -> list[Any]:
    """All committed messages of a topic, by partition."""
    ends = [each.end_offset for each in Cluster.open(str(root)).topic(topic).view.partitions]
    with Consumer({"txnlog.root": str(root)}) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(len(ends))])
        return consumer.consume(sum(ends), timeout=60) if any(ends) else []


def values(root: Path, topic: str) -> list[Any]:
    return sorted(message.value().decode() for message in records(root, topic))


def loaded(root: Path, topic: str) -> list[Any]:
    return [json.loads(value) for value in values(root, topic)]


def lose_the_checkpoint_of_counts(names: dict[str, Any], root: Path, checkpoint: Path) -> None:
    """The new query's batch 0 has other records than the lost one's: they must come."""
    shutil.rmtree(checkpoint)
    producer = Producer({"txnlog.root": str(root)})
    producer.produce("orders.json", order(11, 11), partition=0)  # the fifth of customer c2
    producer.flush()
    (recipe,) = (code for section, code in blocks() if section == "Several topics at once")
    exec(compile(recipe, "docs/recipes.md: Several topics at once", "exec"), names)
    counts = [(m.key().decode(), m.value().decode()) for m in records(root, "counts")]
    assert sorted(counts) == [
        ("c0", "4"),
        ("c0", "4"),
        ("c1", "4"),
        ("c1", "4"),
        ("c2", "3"),
        ("c2", "4"),
    ]


@pytest.mark.soak
def test_recipes_run_and_do_what_they_say(spark: SparkSession, tmp_path: Path) -> None:
    """Code in documentation is copied: an error in it would be in every job."""
    root, history = tmp_path / "lake", tmp_path / "history"
    feed(root)
    names: dict[str, Any] = {
        "__name__": "__main__",  # cloudpickle sends functions of __main__ by value
        "spark": spark,
        "since_ms": 0,
        "history": str(history),
        "days": ["2026-01-01", "2026-01-02"],
    }
    for day in names["days"]:
        old = spark.sql("select 1 id, 'old' customer, 5.0 amount")
        old.write.parquet(f"{history}/day={day}")
    for section, code in blocks():
        code = code.replace("/data/lake", str(root))
        code = code.replace("/data/checkpoints", str(tmp_path / "checkpoints"))
        exec(compile(code, f"docs/recipes.md: {section}", "exec"), names)
    assert [found["id"] for found in loaded(root, "orders.large")] == [10, 4, 5, 6, 7, 8, 9]
    assert values(root, "customers") == sorted(f"c{n % 3}" for n in range(11))
    assert sum(found["total"] for found in loaded(root, "orders.totals")) == 30.0 * sum(range(10))
    assert loaded(root, "orders.paid")[0]["id"] == 4
    counts = {m.key().decode(): m.value().decode() for m in records(root, "counts")}
    assert counts == {"c0": "4", "c1": "4", "c2": "3"}
    totals = spark.read.format("delta").load(f"{root}-totals").collect()
    assert {row.customer: (str(row.orders), row.amount) for row in totals} == {
        name: (counts[name], sum(30.0 * n for n in range(11) if n % 3 == int(name[1])))
        for name in counts
    }
    assert len(records(root, "orders.added")) == 11
    assert values(root, "regulars") == ["c0", "c1", "c2"]
    (dead,) = records(root, "orders.dead")
    assert dead.value() == BAD
    assert dict(dead.headers()) == {"reason": b"not an order", "source": b"orders.json-0@11"}
    assert len(records(root, "orders.replayed")) == 11
    assert names["recent"] == 11
    assert len(records(root, "orders.clean")) == 11 + 2
    lose_the_checkpoint_of_counts(names, root, tmp_path / "checkpoints" / "counts")
    # Run again, the backfill adds nothing.
    (backfill,) = (code for section, code in blocks() if section == "Backfill")
    exec(compile(backfill, "docs/recipes.md: Backfill", "exec"), names)
    assert len(records(root, "orders.clean")) == 13


def test_every_recipe_of_the_page_is_found() -> None:
    """A block in another form would not be run."""
    assert len(list(blocks())) == PAGE.read_text().count("```") // 2 >= 9
