"""OpenLineage events of micro-batches, sent by OpenLineage's own client, an optional extra.

An event comes after its batch is visible, from a thread of its own: no backend can fail a commit,
or keep its records back. The client finds its transport as it always does: OPENLINEAGE_URL,
openlineage.yml, OPENLINEAGE_CONFIG.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from spark_sink.messages import StagedTask
from txnlog.cluster import Cluster
from txnlog.errors import ConfigError
from txnlog.process.caches import local_path
from txnlog.process.version import VERSION
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import StagedBatch, TransactionMetadata
from txnlog.settings.config import Config

logger = logging.getLogger("txnlog")

PROJECT = "https://a-seed-25863720.example/txnlog"
PRODUCER = f"{PROJECT}/tree/v{VERSION}"
SCHEMA = f"{PROJECT}/raw/main/conf/monitoring/openlineage-1-0-0.json#/$defs/"
FIRST_WAIT_S, WAIT_S = 1.0, 0.1
"""How long a commit that is done waits for its event, where none before it is under way: Spark
may then end the worker. The first one of a worker loads the client.
"""
WAITING_MAX = 100
"""More events that wait for their backend are dropped."""

Spans = Mapping[str, Mapping[int, tuple[int | None, int]]]
"""Topic -> partition -> (first offset, None if it is not known; the offset after the last one)."""


def check_lineage(options: Config) -> None:
    """Raise ConfigError when a query starts that shall send events without the library."""
    if options.get("openlineage.disabled"):
        return
    if find_spec("openlineage") is None:
        raise ConfigError(
            "openlineage.disabled=false requires OpenLineage's client where the driver runs: "
            "install txnlog[openlineage].",
            option="openlineage.disabled",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedBatch:
    """A micro-batch that is visible, and what the commit knows of it."""

    run: StagedTask
    batch_id: int
    row: TransactionMetadata
    staged: Sequence[StagedBatch]
    offsets: Sequence[GroupOffsets]
    is_first_of_run: bool


def report(options: Config, cluster: Cluster, batch: CommittedBatch) -> None:
    """Send the event of a batch, unless that is disabled. It raises nothing."""
    if options.get("openlineage.disabled"):
        return
    try:
        SENDER.send(event_of(options, cluster, batch))
    except Exception as error:
        SENDER.failed(error)


def event_of(options: Config, cluster: Cluster, batch: CommittedBatch) -> Any:
    """The event: START of a run's first batch, RUNNING of the others."""
    from openlineage.client import event_v2
    from openlineage.client.facet_v2 import JobFacet, RunFacet, job_type_job

    run, transaction = batch.run, batch.row.transaction
    facts = {
        "batchId": batch.batch_id,
        "transactionalId": batch.row.transactional_id,
        "producerId": transaction.producer_id,
        "producerEpoch": transaction.epoch,
    }
    kind = job_type_job.JobTypeJobFacet(
        processingType="STREAMING", integration="SPARK", jobType="JOB", producer=PRODUCER
    )
    facets: dict[str, JobFacet] = {"jobType": kind}
    return event_v2.RunEvent(
        eventType=event_v2.RunState.START if batch.is_first_of_run else event_v2.RunState.RUNNING,
        eventTime=datetime.now(timezone.utc).isoformat(),
        run=event_v2.Run(run.run_id, {"txnlog_batch": _facet(RunFacet, "BatchFacet", facts)}),
        job=event_v2.Job(_namespace(options), run.query_name or run.query_id, facets),
        inputs=_inputs(cluster, read_spans(batch.offsets)),
        outputs=_outputs(cluster, batch.staged, written_spans(cluster, batch.staged)),
        producer=PRODUCER,
    )


def read_spans(offsets: Iterable[GroupOffsets]) -> Spans:
    """What the batch read: with group.id the offsets that it commits, exactly."""
    found: dict[str, dict[int, tuple[int | None, int]]] = {}
    for group in offsets:
        for topic, numbers in group.end.items():
            starts = group.start.get(topic, {})
            for number, end in numbers.items():
                found.setdefault(topic, {})[number] = starts.get(number), end
    return found


def written_spans(cluster: Cluster, staged: Iterable[StagedBatch]) -> Spans:
    """What the batch wrote, by the logs as the commit left them; not what was merged since then."""
    found: dict[str, dict[int, tuple[int | None, int]]] = {}
    for file in staged:
        header = cluster.topic_log(file.topic).view.by_path.get(file.path)
        if header is not None:
            numbers = found.setdefault(file.topic, {})
            first, end = numbers.get(file.partition, (header.base_offset, 0))
            known = header.base_offset if first is None else min(first, header.base_offset)
            numbers[file.partition] = known, max(end, header.last_offset + 1)
    return found


def dataset_name(root: str, topic: str) -> tuple[str, str]:
    """Namespace and name of a topic: by OpenLineage's rules those of its Delta table's location."""
    path = local_path(root)
    if path is not None:
        return "file", f"{path.rstrip('/')}/{topic}"
    parts = urlsplit(root)
    return f"{parts.scheme}://{parts.netloc}", f"{parts.path.strip('/')}/{topic}".lstrip("/")


def _namespace(options: Config) -> str:
    given = options.get("openlineage.namespace")
    return str(given or os.environ.get("OPENLINEAGE_NAMESPACE") or "default")


def _inputs(cluster: Cluster, spans: Spans) -> list[Any]:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import InputDatasetFacet

    return [
        InputDataset(
            *dataset_name(cluster.root, topic),
            inputFacets={"txnlog_offsets": _offsets(InputDatasetFacet, spans[topic])},
        )
        for topic in sorted(spans)
    ]


def _outputs(cluster: Cluster, staged: Sequence[StagedBatch], spans: Spans) -> list[Any]:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import OutputDatasetFacet, output_statistics_output_dataset

    found = []
    for topic in sorted({file.topic for file in staged}):
        files = [file for file in staged if file.topic == topic]
        statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=sum(file.num_records for file in files),
            size=sum(file.size_bytes for file in files),
            fileCount=len(files),
            producer=PRODUCER,
        )
        facets: dict[str, OutputDatasetFacet] = {"outputStatistics": statistics}
        if topic in spans:
            facets["txnlog_offsets"] = _offsets(OutputDatasetFacet, spans[topic])
        found.append(OutputDataset(*dataset_name(cluster.root, topic), outputFacets=facets))
    return found


def _offsets(base: Any, numbers: Mapping[int, tuple[int | None, int]]) -> Any:
    values = [
        {"partition": number, "endOffset": end, **({} if start is None else {"startOffset": start})}
        for number, (start, end) in sorted(numbers.items())
    ]
    return _facet(base, "OffsetsFacet", {"partitions": values})


def _facet(base: Any, name: str, values: Mapping[str, Any]) -> Any:
    facet = base(producer=PRODUCER).with_additional_properties(**values)
    facet._schemaURL = SCHEMA + name
    return facet


class Sender:
    """Sends events in a thread, in order, while the process lives; made at the first event."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[tuple[Any, threading.Event]] = queue.Queue(WAITING_MAX)
        self._thread: threading.Thread | None = None
        self._is_failing = False

    def send(self, event: Any) -> None:
        """Hand it over; wait a little for it, unless an earlier one has not been sent yet."""
        wait_s = FIRST_WAIT_S if self._thread is None else WAIT_S
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="txnlog-lineage", daemon=True)
            self._thread.start()
        was_idle, done = not self._waiting.unfinished_tasks, threading.Event()
        try:
            self._waiting.put_nowait((event, done))
        except queue.Full:
            self.failed(RuntimeError(f"{WAITING_MAX} events wait already, and one is dropped"))
            return
        if was_idle:
            done.wait(wait_s)

    def failed(self, error: Exception) -> None:
        """Say it once, until one is sent again."""
        level = logging.DEBUG if self._is_failing else logging.WARNING
        self._is_failing = True
        text = (
            "An OpenLineage event was not sent, nor is it tried again; its batch is committed: %r"
        )
        logger.log(level, text, error)

    def _run(self) -> None:
        client: Any = None
        while True:
            event, done = self._waiting.get()
            try:
                if client is None:
                    from openlineage.client import OpenLineageClient

                    client = OpenLineageClient()
                client.emit(event)
                if self._is_failing:
                    self._is_failing = False
                    logger.info("OpenLineage events are sent again.")
            except Exception as error:
                self.failed(error)
            finally:
                self._waiting.task_done()
                done.set()


SENDER = Sender()
