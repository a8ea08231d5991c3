"""What a producer says by itself: a new cluster, records never sent, errors, statistics."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tests.world import process, world
from txnlog import AdminClient, NewTopic, Producer
from txnlog.errors import ConfigError, StorageError
from txnlog.testing.faults import Fault

ROOT = Path(__file__).resolve().parents[2]


def test_producer_that_creates_a_cluster_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A misspelled root was a new, empty cluster, in silence."""
    root = str(tmp_path / "rooot")
    with Producer({"txnlog.root": root}):
        pass
    with Producer({"txnlog.root": root}):
        pass
    (record,) = [one for one in caplog.records if "a new, empty one was created" in one.message]
    assert record.levelno == logging.WARNING
    assert root in record.message


def test_missing_cluster_is_an_error_when_creating_is_forbidden(tmp_path: Path) -> None:
    root = str(tmp_path / "rooot")
    config = {"txnlog.root": root, "txnlog.create": False}
    with pytest.raises(ConfigError):
        Producer(config)
    with pytest.raises(ConfigError):
        AdminClient(config).create_topics([NewTopic("t", 1)])
    assert not Path(root).exists()
    AdminClient({"txnlog.root": root}).create_topics([NewTopic("t", 1)])["t"].result()
    with Producer(config) as producer:
        producer.produce("t", "a")


@pytest.mark.parametrize(
    ("config", "end", "said"),
    [
        ({"linger.ms": 600_000}, "", "3 records of a producer were not sent"),
        ({"linger.ms": 600_000}, "producer.flush()", ""),
        ({"linger.ms": 600_000}, "del producer", "3 records of a producer were not sent"),
        ({"transactional.id": "a"}, "", "3 records of a producer were not sent"),
        ({"transactional.id": "a"}, "producer.commit_transaction()", ""),
        ({"transactional.id": "a"}, "producer.close()", ""),
    ],
)
def test_program_that_ends_with_unsent_records_says_how_many(
    tmp_path: Path, config: dict[str, object], end: str, said: str
) -> None:
    """The records were lost, and the program seemed to have worked."""
    code = f"""
from txnlog import Producer
producer = Producer({{"txnlog.root": {str(tmp_path / "root")!r}, **{config!r}}})
if "transactional.id" in {config!r}:
    producer.init_transactions()
    producer.begin_transaction()
for number in range(3):
    producer.produce("t", str(number))
{end}
"""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = [line for line in run.stderr.splitlines() if "a new, empty one" not in line]
    assert len(lines) == (1 if said else 0), run.stderr
    assert said in run.stderr


def test_send_that_is_tried_again_is_an_error_of_error_cb() -> None:
    """Without it a producer whose store is away looks like one that waits."""
    shared = world()
    told: list[Exception] = []
    given = {"txnlog.root": "memory://", "error_cb": told.append}
    cluster = process(shared)
    producer = Producer(given, cluster=cluster, background=False)
    producer.produce("orders", "a")
    cluster.store.plan = lambda verb, path: Fault.FAIL_BEFORE  # type: ignore[attr-defined]
    producer.poll(0)
    producer.poll(0)
    (error,) = told
    assert isinstance(error, StorageError)
    cluster.store.plan = lambda verb, path: Fault.NONE  # type: ignore[attr-defined]
    assert producer.flush() == 0
    assert told == [error]


def test_statistics_have_librdkafkas_names(tmp_path: Path) -> None:
    """Dashboards read the queue's size from them."""
    told: list[str] = []
    given = {
        "txnlog.root": str(tmp_path / "root"),
        "client.id": "shop",
        "transactional.id": "a",
        "stats_cb": told.append,
        "statistics.interval.ms": 1,
    }
    with Producer(given) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("orders", b"12345")
        while not told:
            producer.poll(0.01)
        found = json.loads(told[-1])
    assert (found["type"], found["client_id"], found["msg_cnt"]) == ("producer", "shop", 1)
    assert found["msg_size"] > 5
    assert found["eos"]["txn_state"] == "InTransaction"
    assert found["eos"]["producer_id"] >= 0
    assert found["age"] >= 1_000


def test_steps_of_a_producer_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Taking over an id, being fenced, aborting: at INFO."""
    caplog.set_level(logging.INFO, "txnlog")
    shared = world()
    given = {"txnlog.root": "memory://", "transactional.id": "a"}
    first = Producer(given, cluster=process(shared), background=False)
    first.init_transactions()
    first.begin_transaction()
    first.produce("orders", "x")
    first.abort_transaction()
    second = Producer(given, cluster=process(shared), background=False)
    second.init_transactions()
    first.begin_transaction()
    first.produce("orders", "x")
    with pytest.raises(Exception, match="epoch"):
        first.commit_transaction()
    said = "\n".join(record.message for record in caplog.records)
    assert said.count("Producer 'a' is initialised") == 2
    assert "Producer 'a' has aborted its transaction" in said
    assert "Producer 'a' is fenced" in said
