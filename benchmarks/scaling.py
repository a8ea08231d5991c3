"""How load, cost and limits grow with topics, batches and records: docs/scaling.md.

    python -m benchmarks.scaling              the page from benchmarks/scaling.json
    python -m benchmarks.scaling --measure    first measure its constants again

Everything on the page is computed from a few constants per transaction, which are counted with an
in-memory store: requests, rounds that wait for one another, and bytes of log. They do not depend
on the machine. Latency and prices are assumptions; they are in the file, too.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.transactions import small_records
from txnlog.cluster import Cluster
from txnlog.process.clock import VirtualClock
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import Owner, StagedBatch
from txnlog.storage.batches.writer import new_batch_name, write_batch_file
from txnlog.storage.delta.checkpointer import wait_for_background
from txnlog.testing.faults import SharedMemory
from txnlog.testing.rounds import RoundsStore

PROJECT = Path(__file__).resolve().parent.parent
CONSTANTS = PROJECT / "benchmarks" / "scaling.json"
PAGE = PROJECT / "docs" / "scaling.md"
BEGIN, END = "<!-- computed by benchmarks/scaling.py -->", "<!-- end -->"
TRANSACTIONS = 200
"""Two intervals of log checkpoints: their requests are spread over the transactions."""
DAY_S, MONTH_S = 86_400, 86_400 * 30


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Means of one transaction with a consumer group: topics, and files (partitions) of each.

    puts: PUT and LIST requests, data files and log checkpoints included; gets: GET and HEAD.
    rounds: requests of the commit that wait for one another, without staging, which tasks do side
    by side. *_bytes: growth of the logs, without checkpoints and data files.
    """

    topics: int
    files: int
    puts: float
    gets: float
    rounds: float
    topic_log_bytes: float
    state_log_bytes: float
    offsets_log_bytes: float


@dataclass(frozen=True, kw_only=True)
class Constants:
    """All that the page is computed from; prices are S3's in us-east-1.

    What a live file takes in a checkpoint is measured by `benchmarks.checkpoints`.
    """

    shapes: tuple[Shape, ...]
    idle_puts_per_poll: float
    idle_gets_per_poll: float
    checkpoint_bytes_per_file: float = 47.0
    latency_ms: float = 25.0
    read_mb_per_s: float = 100.0
    usd_per_million_puts: float = 5.0
    usd_per_million_gets: float = 0.4


class CountingStore(RoundsStore):
    """Sorts its calls by price."""

    @property
    def puts(self) -> int:
        """Requests that S3 charges as PUT, COPY, POST or LIST; deletes are free."""
        return self._count("put", "list")

    @property
    def gets(self) -> int:
        """Requests that S3 charges as GET."""
        return self._count("get", "head")

    def _count(self, *verbs: str) -> int:
        return sum(verb in verbs for verb, _ in self.calls)


# --- Measuring ------------------------------------------------------------------------------------


def measure() -> Constants:
    """Count with an in-memory store; the same numbers on every machine, but for a few bytes."""
    shapes = tuple(measure_shape(topics, files) for topics, files in ((1, 1), (4, 1), (1, 16)))
    idle_puts, idle_gets = _idle()
    return Constants(
        shapes=shapes,
        idle_puts_per_poll=idle_puts,
        idle_gets_per_poll=idle_gets,
    )


def _new_cluster(topics: int, files: int) -> tuple[CountingStore, Cluster]:
    store = CountingStore(SharedMemory(clock=VirtualClock()))
    cluster = Cluster.open(store, create=True, shards=1)
    for number in range(topics):
        cluster.create_topic(f"topic-{number}", partitions=files)
    return store, cluster


def measure_shape(topics: int, files: int) -> Shape:
    """Count the transactions of one size."""
    store, cluster = _new_cluster(topics, files)
    generation = cluster.groups.start("group")
    row = cluster.coordinator.init_producer_id("writer", Owner(run_id="run"))
    before = _log_bytes(store)
    store.calls.clear()
    rounds = 0
    for number in range(TRANSACTIONS):
        staged = _staged(cluster, topics, files)
        start, end = ({"topic-0": {0: at}} for at in (number, number + 1))
        ids = {"topic-0": cluster.topic("topic-0").topic_id}
        offsets = GroupOffsets(
            group_id="group", generation=generation, start=start, end=end, topic_ids=ids
        )
        store.rounds = 0
        row = cluster.coordinator.commit(row, staged, offsets=[offsets])
        rounds += store.rounds
        store.clock.sleep_ms(100)
        wait_for_background()
    puts, gets = store.puts, store.gets
    grown = {name: size - before.get(name, 0) for name, size in _log_bytes(store).items()}
    state = sum(size for name, size in grown.items() if name.startswith("__transaction_state"))
    offset = sum(size for name, size in grown.items() if name.startswith("__consumer_offsets"))
    return Shape(
        topics=topics,
        files=files,
        puts=_mean(puts),
        gets=_mean(gets),
        rounds=_mean(rounds),
        topic_log_bytes=_mean(grown.get("topic-0", 0)),
        state_log_bytes=_mean(state),
        offsets_log_bytes=_mean(offset),
    )


def _staged(cluster: Cluster, topics: int, files: int) -> list[StagedBatch]:
    records = small_records()
    staged = []
    for number in range(topics):
        topic = cluster.topic(f"topic-{number}")
        for partition in range(files):
            name = new_batch_name(partition)
            written = write_batch_file(cluster.store, f"{topic.path}/{name}", records)
            staged.append(
                StagedBatch(
                    topic=topic.name,
                    topic_id=topic.topic_id,
                    partition=partition,
                    path=name,
                    size_bytes=written.size_bytes,
                    num_records=written.num_records,
                    timestamp_min_us=written.timestamp_min_us,
                    timestamp_max_us=written.timestamp_max_us,
                    staged_ms=cluster.store.now_ms(),
                )
            )
    return staged


def _log_bytes(store: CountingStore) -> dict[str, int]:
    """Bytes of commits, by table."""
    sizes: Counter[str] = Counter()
    for meta in store.list(""):
        folder, separator, name = meta.path.partition("/_delta_log/")
        if separator and name.endswith(".json"):
            sizes[folder] += meta.size_bytes
    return dict(sizes)


def _idle() -> tuple[float, float]:
    """Requests of looking for new commits of one topic where there are none."""
    store, cluster = _new_cluster(1, 1)
    topic = cluster.topic("topic-0")
    topic.refresh()
    store.calls.clear()
    for _ in range(TRANSACTIONS):
        topic.refresh()
    return _mean(store.puts), _mean(store.gets)


def _mean(total: float) -> float:
    return round(total / TRANSACTIONS, 1)


# --- Computing ------------------------------------------------------------------------------------


def shape(constants: Constants, topics: int, files: int) -> Shape:
    """A transaction of any size, from the three measured ones: all grow linearly."""
    one, wide, deep = constants.shapes

    def at(name: str) -> float:
        base = float(getattr(one, name))
        per_topic = (float(getattr(wide, name)) - base) / (wide.topics - 1)
        per_file = (float(getattr(deep, name)) - base) / (deep.files - 1)
        # A file of a further topic is in that topic's share.
        return base + (topics - 1) * (per_topic + (files - 1) * per_file) + (files - 1) * per_file

    def of_first(name: str) -> float:
        base = float(getattr(one, name))
        return base + (files - 1) * (float(getattr(deep, name)) - base) / (deep.files - 1)

    return Shape(
        topics=topics,
        files=files,
        puts=at("puts"),
        gets=at("gets"),
        rounds=max(one.rounds, at("rounds")),
        topic_log_bytes=of_first("topic_log_bytes"),
        state_log_bytes=at("state_log_bytes"),
        offsets_log_bytes=one.offsets_log_bytes,
    )


@dataclass(frozen=True, kw_only=True)
class Load:
    """A pipeline: so many queries, each writing its own topics in one transaction per trigger."""

    name: str
    records_per_day: float
    queries: int
    topics_per_query: int
    files_per_topic: int
    trigger_s: float


LOADS = (
    Load(
        name="one topic of 4 partitions", records_per_day=1e6, queries=1, topics_per_query=1,
        files_per_topic=4, trigger_s=10,
    ),
    Load(
        name="10 topics of 4, one query", records_per_day=1e8, queries=1, topics_per_query=10,
        files_per_topic=4, trigger_s=10,
    ),
    Load(
        name="100 topics of 16, 25 queries", records_per_day=1e9, queries=25, topics_per_query=4,
        files_per_topic=16, trigger_s=10,
    ),
    Load(
        name="1,000 topics of 4, 250 queries", records_per_day=1e9, queries=250, topics_per_query=4,
        files_per_topic=4, trigger_s=60,
    ),
)  # fmt: skip
FILES = (1_000, 100_000, 1_000_000)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a load needs. Commits are those of all logs; bytes are of logs, per day."""

    transactions_per_day: float
    commits_per_s: float
    files_per_day: float
    requests_per_s: float
    usd_per_month: float
    log_bytes_per_day: float
    records_per_file: float


def cost(constants: Constants, load: Load) -> Cost:
    """Requests, commits, files, bytes and USD of a load."""
    one = shape(constants, load.topics_per_query, load.files_per_topic)
    transactions_per_s = load.queries / load.trigger_s
    # Before the decision, PREPARE, a marker per topic, the offsets' marker, COMPLETE.
    commits = transactions_per_s * (load.topics_per_query + 4)
    files = transactions_per_s * load.topics_per_query * load.files_per_topic
    puts, gets = transactions_per_s * one.puts, transactions_per_s * one.gets
    log_bytes = one.topic_log_bytes * load.topics_per_query
    log_bytes += one.state_log_bytes + one.offsets_log_bytes
    usd_per_s = puts * constants.usd_per_million_puts + gets * constants.usd_per_million_gets
    return Cost(
        transactions_per_day=transactions_per_s * DAY_S,
        commits_per_s=commits,
        files_per_day=files * DAY_S,
        requests_per_s=puts + gets,
        usd_per_month=usd_per_s * MONTH_S / 1e6,
        log_bytes_per_day=transactions_per_s * log_bytes * DAY_S,
        records_per_file=load.records_per_day / (files * DAY_S),
    )


def limits(constants: Constants) -> list[tuple[str, float, str]]:
    """(what, transactions per second at most, what raises it), the lowest first."""
    round_s = constants.latency_ms / 1000
    one = shape(constants, 1, 4)
    rows = [
        ("one producer: its transactions follow one another", 1 / (one.rounds * round_s),
         "more queries, larger transactions"),
        ("one shard of `__consumer_offsets`: a commit, read and put", 1 / (2 * round_s),
         "groups in other shards"),
        ("one shard of the transaction log: 2 commits, read and put", 1 / (4 * round_s),
         "more shards: they are chosen when the root is created"),
        ("one topic: a marker commit, read and put, of one or more transactions", 1 / (2 * round_s),
         "several topics, larger transactions, several writers"),
        ("one prefix of S3: 3,500 puts/s", 3_500 / one.puts,
         "S3 splits a busy prefix by itself; until then it answers 503 SlowDown"),
    ]  # fmt: skip
    return sorted(rows, key=lambda row: row[1])


def open_s(constants: Constants, files: int) -> float:
    """Seconds to fetch the checkpoint of a topic with so many live files, without parsing it."""
    return files * constants.checkpoint_bytes_per_file / (constants.read_mb_per_s * 1e6)


# --- The page -------------------------------------------------------------------------------------


def tables(constants: Constants) -> str:
    """The part of the page between its marks."""
    lines = ["", "### One transaction", ""]
    lines += [
        "| topics x partitions | puts, lists | gets | rounds in a row | log, kB | USD a million |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for topics, files in ((1, 1), (1, 16), (4, 4), (4, 16), (100, 4)):
        one = shape(constants, topics, files)
        log = one.topic_log_bytes * topics + one.state_log_bytes + one.offsets_log_bytes
        usd = one.puts * constants.usd_per_million_puts + one.gets * constants.usd_per_million_gets
        lines.append(
            f"| {topics} x {files} | {_number(one.puts)} | {_number(one.gets)} | "
            f"{_number(one.rounds)} | {_number(log / 1e3)} | {_number(usd)} |"
        )
    lines += ["", "### A day", ""]
    lines += [
        "| load | records/day | transactions/day | commits/s | requests/s | data files/day | "
        "records/file | logs/day | USD/month |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for load in LOADS:
        found = cost(constants, load)
        lines.append(
            f"| {load.name}, every {load.trigger_s:g} s | {_number(load.records_per_day)} | "
            f"{_number(found.transactions_per_day)} | {_number(found.commits_per_s)} | "
            f"{_number(found.requests_per_s)} | {_number(found.files_per_day)} | "
            f"{_number(found.records_per_file)} | {_number(found.log_bytes_per_day / 1e9)} GB | "
            f"{_number(found.usd_per_month)} |"
        )
    lines += ["", "### What limits first", ""]
    lines += ["| of | transactions/s at most | what raises it |", "|---|--:|---|"]
    lines += [f"| {what} | {_number(most)} | {how} |" for what, most, how in limits(constants)]
    lines += ["", "### Batches of one topic that were not compacted", ""]
    lines += ["| live files | its checkpoint | to fetch it |", "|--:|--:|--:|"]
    for files in FILES:
        size_mb = files * constants.checkpoint_bytes_per_file / 1e6
        lines.append(
            f"| {files:,} | {_number(size_mb)} MB | {_number(open_s(constants, files))} s |"
        )
    idle = constants.idle_puts_per_poll, constants.idle_gets_per_poll
    usd = (
        idle[0] * constants.usd_per_million_puts + idle[1] * constants.usd_per_million_gets
    ) / 1e6
    lines += [
        "",
        f"Polling one idle topic once a second costs {_number(usd * MONTH_S)} USD a month. "
        "[object-stores.md](object-stores.md#requests-and-prices) gives",
        "the cost of idle streams and consumers.",
        "",
    ]
    return "\n".join(lines)


def _number(value: float) -> str:
    """Two digits that count, with thousands' commas."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 else f"{rounded:g}"


def load_constants() -> Constants:
    """The recorded constants."""
    fields = json.loads(CONSTANTS.read_text())
    fields["shapes"] = tuple(Shape(**one) for one in fields["shapes"])
    return Constants(**fields)


def with_tables(page: str, constants: Constants) -> str:
    """The page with its tables computed again."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{tables(constants)}\n{END}{tail}"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description="Compute docs/scaling.md.")
    parser.add_argument("--measure", action="store_true", help="measure the constants first")
    if parser.parse_args().measure:
        CONSTANTS.write_text(json.dumps(asdict(measure()), indent=2) + "\n")
    PAGE.write_text(with_tables(PAGE.read_text(), load_constants()))


if __name__ == "__main__":
    main()
