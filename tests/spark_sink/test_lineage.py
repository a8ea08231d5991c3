"""OpenLineage events of the sink's commits: what they say, and that no backend harms a commit."""

from __future__ import annotations

import json
import logging
import queue
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import attr
import jsonschema
import pytest
import yaml
from openlineage.client import event_v2

from spark_sink import lineage
from spark_sink.commit import commit_micro_batch
from spark_sink.lineage import Sender, check_lineage, dataset_name
from spark_sink.messages import StagedTask
from spark_sink.sink import stream_writer
from tests.spark_sink.test_source_offsets import Query
from tests.world import staged
from txnlog.cluster import Cluster
from txnlog.errors import ConfigError
from txnlog.settings.config import parse_config

RUN = "51a3f98e-0fea-4e80-918d-49ddbad24c5c"
QUERY = "3207c809-b154-4834-aeab-48435d2bff20"
PROJECT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((PROJECT / "conf/monitoring/openlineage-1-0-0.json").read_text())
DEFS = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/"


class Lineage(Query):
    """A query whose commits send events to a file, by OpenLineage's own transport."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.log = folder / "events.json"

    def commit(
        self, batch_id: int, *, run: str = RUN, group_id: str | None = None, **more: str
    ) -> None:
        given = {} if group_id is None else {"group.id": group_id}
        raw = {
            "path": str(self.root),
            "topic": "orders",
            "checkpointLocation": str(self.checkpoint),
            "openlineage.disabled": "false",
            **given,
            **more,
        }
        batch = staged(self.cluster, "orders", f"{batch_id}.{run}")
        task = StagedTask(0, (batch,), QUERY, run, batch_id, 0, "copy")
        commit_micro_batch(parse_config(raw, "writeStream"), [task], batch_id)

    def events(self) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lineage:
    made = Lineage(tmp_path)
    transport = {"type": "file", "log_file_path": str(made.log), "append": True}
    settings = tmp_path / "openlineage.yml"
    settings.write_text(yaml.safe_dump({"transport": transport}))
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(settings))
    monkeypatch.setattr(lineage, "SENDER", Sender())
    monkeypatch.setattr(lineage, "FIRST_WAIT_S", 61)
    monkeypatch.setattr(lineage, "WAIT_S", 60)
    return made


def offsets(dataset: dict[str, Any], facets: str) -> list[dict[str, int]]:
    found = dataset[facets]["txnlog_offsets"]["partitions"]
    assert isinstance(found, list)
    return found


def test_batch_tells_its_topics_and_exact_offsets_in_and_out(query: Lineage) -> None:
    """The file has them before the commit returns; a run is Spark's, a job its query."""
    mark = {"group": "g", "generation": query.cluster.groups.start("g"), "topics": {"in": "id"}}
    query.plan(0, 5, start={"in": {"0": 2}}, **mark)
    query.commit(0, group_id="g")
    query.plan(1, 9, **mark)
    query.commit(1, group_id="g")
    first, second = query.events()
    assert (first["eventType"], second["eventType"]) == ("START", "RUNNING")
    for event in (first, second):
        assert event["run"]["runId"] == RUN
        assert (event["job"]["namespace"], event["job"]["name"]) == ("default", "copy")
        assert event["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    [read] = second["inputs"]
    assert (read["namespace"], read["name"]) == ("file", f"{query.root}/in")
    assert offsets(first["inputs"][0], "inputFacets") == [
        {"partition": 0, "startOffset": 2, "endOffset": 5}
    ]
    assert offsets(read, "inputFacets") == [{"partition": 0, "startOffset": 5, "endOffset": 9}]
    [written] = second["outputs"]
    assert (written["namespace"], written["name"]) == ("file", f"{query.root}/orders")
    spans = {
        (batch.partition, batch.base_offset, batch.last_offset + 1)
        for batch in query.cluster.topic("orders").view.by_path.values()
    }
    told = {
        (one["partition"], one["startOffset"], one["endOffset"])
        for event in (first, second)
        for one in offsets(event["outputs"][0], "outputFacets")
    }
    assert told == spans
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert second["run"]["facets"]["txnlog_batch"]["batchId"] == 1
    assert second["run"]["facets"]["txnlog_batch"]["transactionalId"] == QUERY


def test_without_group_id_the_inputs_are_unknown_and_left_out(query: Lineage) -> None:
    """No guess: an event says what the commit knows."""
    query.plan(0, 5)
    query.commit(0)
    [event] = query.events()
    assert event["inputs"] == []
    assert len(event["outputs"]) == 1


def test_event_and_facets_have_what_the_specification_requires(query: Lineage) -> None:
    """Made again by the classes that OpenLineage generates from its schema, which check it; our
    own facets by our schema, which their _schemaURL names.
    """
    mark = {"group": "g", "generation": query.cluster.groups.start("g"), "topics": {"in": "id"}}
    query.plan(0, 5, start={"in": {"0": 2}}, **mark)
    query.commit(0, group_id="g")
    [event] = query.events()
    assert event["schemaURL"] == DEFS + "RunEvent"
    UUID(event["run"]["runId"])
    fields = {field.name for field in attr.fields(event_v2.RunEvent)}
    assert set(event) <= fields
    event_v2.RunEvent(
        eventType=event_v2.RunState(event["eventType"]),
        eventTime=event["eventTime"],
        run=event_v2.Run(**event["run"]),
        job=event_v2.Job(**event["job"]),
        inputs=[event_v2.InputDataset(**one) for one in event["inputs"]],
        outputs=[event_v2.OutputDataset(**one) for one in event["outputs"]],
        producer=event["producer"],
    )
    datasets = [*event["inputs"], *event["outputs"]]
    facets = [
        *event["run"]["facets"].items(),
        *event["job"]["facets"].items(),
        *(pair for one in datasets for pair in one.get("facets", {}).items()),
        *(pair for one in event["inputs"] for pair in one["inputFacets"].items()),
        *(pair for one in event["outputs"] for pair in one["outputFacets"].items()),
    ]
    own = 0
    for name, facet in facets:
        assert facet["_producer"].startswith("https://")
        if name.startswith("txnlog_"):
            url, _, place = facet["_schemaURL"].partition("#/$defs/")
            assert url == SCHEMA["$id"]
            jsonschema.validate(facet, SCHEMA["$defs"][place])
            own += 1
        else:
            assert facet["_schemaURL"].startswith("https://openlineage.io/spec/")
    assert own == 3


def test_replayed_batch_is_told_once(query: Lineage) -> None:
    """It is committed once, too."""
    query.plan(0, 5)
    query.commit(0)
    query.commit(0)
    assert len(query.events()) == 1


def test_nothing_is_sent_unless_it_is_asked_for(query: Lineage) -> None:
    """The default; and the client's own switch works."""
    query.commit(0, **{"openlineage.disabled": "true"})
    assert query.events() == []


def test_namespace_of_the_option_wins(query: Lineage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then OpenLineage's variable."""
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "shop")
    query.commit(0)
    query.commit(1, **{"openlineage.namespace": "given"})
    assert [event["job"]["namespace"] for event in query.events()] == ["shop", "given"]


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        ("file:///data/lake", ("file", "/data/lake/t")),
        ("/data/lake/", ("file", "/data/lake/t")),
        ("/data/a#b?c", ("file", "/data/a#b?c/t")),
        ("s3://bucket/a/b", ("s3://bucket", "a/b/t")),
        ("s3://bucket", ("s3://bucket", "t")),
        ("abfss://c@a.dfs.core.windows.net/x", ("abfss://c@a.dfs.core.windows.net", "x/t")),
    ],
)
def test_topic_is_named_as_its_delta_table_is(root: str, expected: tuple[str, str]) -> None:
    """So that its lineage goes on where another engine reads the table."""
    assert dataset_name(root, "t") == expected


# --- A backend that is down -----------------------------------------------------------------------


class Backend:
    """A server that takes events only once it is told to; until then a request waits."""

    def __init__(self) -> None:
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.may_answer = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                outer.may_answer.wait()
                outer.events.put(json.loads(data))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


def test_backend_that_does_not_answer_delays_no_visibility_and_no_later_commit(
    query: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch is visible before the event is sent; later ones do not wait for it."""
    backend = Backend()
    monkeypatch.delenv("OPENLINEAGE_CONFIG")
    monkeypatch.setenv("OPENLINEAGE_URL", backend.url)
    visible: list[int] = []
    monkeypatch.setattr(lineage, "FIRST_WAIT_S", 0)
    monkeypatch.setattr(lineage, "WAIT_S", 0)
    send = lineage.SENDER.send

    def look(event: Any) -> None:
        view = Cluster.open(str(query.root)).topic("orders").view
        visible.append(len(view.by_path))
        send(event)

    monkeypatch.setattr(lineage.SENDER, "send", look)
    for batch_id in range(4):
        query.commit(batch_id)
    assert visible == [1, 2, 3, 4]
    assert backend.events.empty()
    backend.may_answer.set()
    events = [backend.events.get(timeout=600) for _ in range(4)]
    ids = [event["run"]["facets"]["txnlog_batch"]["batchId"] for event in events]
    assert ids == [0, 1, 2, 3]
    backend.server.shutdown()
    backend.server.server_close()


@pytest.mark.parametrize("broken", ["nobody listens", "no such transport", "no file"])
def test_backend_that_fails_fails_no_commit_and_is_said_once(
    query: Lineage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    """Whatever is wrong with it."""
    transports: dict[str, dict[str, Any]] = {
        "nobody listens": {"type": "http", "url": "http://127.0.0.1:9", "retry": {"total": 0}},
        "no such transport": {"type": "pigeon"},
        "no file": {"type": "file", "log_file_path": "/nowhere/at/all", "append": True},
    }
    settings = query.root.parent / "broken.yml"
    settings.write_text(yaml.safe_dump({"transport": transports[broken]}))
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(settings))
    caplog.set_level(logging.WARNING, "txnlog")
    for batch_id in range(3):
        query.commit(batch_id)
    assert len(query.committed()) == 3
    told = [text for text in caplog.messages if "OpenLineage" in text]
    assert len(told) == 1
    assert "its batch is committed" in told[0]


def test_without_the_client_a_query_is_refused_when_it_starts(
    query: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the commit of its first batch."""
    monkeypatch.setattr(lineage, "find_spec", lambda name: None)
    raw = {"path": str(query.root), "topic": "orders", "openlineage.disabled": "false"}
    with pytest.raises(ConfigError, match=r"install txnlog\[openlineage\]"):
        check_lineage(parse_config(raw, "writeStream"))
    assert "check_lineage" in stream_writer.__wrapped__.__code__.co_names  # type: ignore[attr-defined]


def test_only_the_first_commit_of_a_worker_waits_for_the_client_to_load(
    query: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend that answers just in time would cost each batch a second."""
    waits: list[float | None] = []

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return super().wait(None)

    monkeypatch.setattr(lineage.threading, "Event", Event)
    for batch_id in range(3):
        query.commit(batch_id)
    assert [wait for wait in waits if wait in (61, 60)] == [61, 60, 60]
    assert len(query.events()) == 3


# --- Spark ----------------------------------------------------------------------------------------

PIPELINE = """
import sys
from jobs.spark_session import build_session

root, checkpoint = sys.argv[1:]
spark = build_session("lineage", settings={"spark.ui.enabled": "false"})
rows = spark.range(6).selectExpr("string(id) key", "string(id) value")
rows.write.format("txnlog").option("topic", "in").mode("append").save(root)
group = {"group.id": "copy", "startingOffsets": "committed", "auto.offset.reset": "earliest"}
read = spark.readStream.format("txnlog").options(subscribe="in", maxOffsetsPerTrigger=3, **group)
sink = read.load(root).select("key", "value").writeStream.format("txnlog").queryName("copy")
sink = sink.options(topic="out", checkpointLocation=checkpoint, **{"group.id": "copy"})
sink = sink.option("openlineage.disabled", "false").trigger(availableNow=True)
sink.start(root).awaitTermination()
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.soak
def test_streaming_query_tells_each_of_its_batches(query: Lineage) -> None:
    """By Spark's own worker, which must not be gone before the event is."""
    root = query.root.parent / "lake"
    args = [sys.executable, "-c", PIPELINE, str(root), str(query.root.parent / "pipeline")]
    done = subprocess.run(args, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    events = query.events()
    assert [event["eventType"] for event in events] == ["START", "RUNNING"]
    assert len({event["run"]["runId"] for event in events}) == 1
    read = [one for event in events for one in offsets(event["inputs"][0], "inputFacets")]
    assert sum(one["endOffset"] - one["startOffset"] for one in read) == 6
    written = [event["outputs"][0]["outputFacets"] for event in events]
    assert sum(facets["outputStatistics"]["rowCount"] for facets in written) == 6
