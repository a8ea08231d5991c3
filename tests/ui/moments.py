"""Invented moments of a root: empty, rich, hostile, large; and a reader that answers from them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

from txnlog.errors import StorageError, TransactionalIdNotFoundError
from txnlog.protocol.metadata import (
    Owner,
    ProducerIdAndEpoch,
    TopicPartitions,
    TransactionMetadata,
)
from txnlog.protocol.moments import (
    Bar,
    BatchMoment,
    Edge,
    Flow,
    GroupMoment,
    Lane,
    MemberMoment,
    Moment,
    Moved,
    Node,
    NodeKind,
    PartitionMoment,
    Phase,
    Point,
    PositionMoment,
    QueryMoment,
    RecordMoment,
    Step,
    TableUpkeep,
    Tick,
    TickKind,
    TopicMoment,
    TransactionMoment,
    UpkeepMoment,
    Written,
)
from txnlog.protocol.problems import Place, Problem, ProblemKind
from txnlog.protocol.states import TransactionState
from txnlog.protocol.vacuum import Deletable

NOW_MS = 1_795_770_000_000
MINUTE_MS = 60_000
WINDOW_MS = 15 * MINUTE_MS
WEEK_MS = 7 * 86_400_000
QUERY_ID = "7c1f5a0e-4a3b-4b7e-9d0c-2f6f3a9f1e55"
HOSTILE = "<script>alert(1)</script>\"'&\x00\x1b[31m\r\n../..?#%2e\u202e{{7*7}}"
"""HTML, quotes, NUL, an escape, line breaks, a path, a template, and text the other way round."""
P = ProducerIdAndEpoch
K = NodeKind


def empty(now_ms: int = NOW_MS) -> Moment:
    """A root where nothing has happened."""
    return Moment(
        root="/data/lake",
        cluster_id="c0ffee",
        at_ms=now_ms,
        since_ms=now_ms - WINDOW_MS,
        earliest_ms=now_ms - 6 * 60 * MINUTE_MS,
    )


def rich(now_ms: int = NOW_MS, *, name: str = "") -> Moment:
    """A shop: two queries, three producers, a paused eager one; `name` is added to every name."""
    paused = _paused(now_ms, name)
    dead = Problem(
        kind=ProblemKind.DEAD_MEMBER,
        subject=f"dashboards{name}",
        why="member dash-2 has sent no heartbeat for 2 min",
        ends="housekeeping expels it",
        since_ms=now_ms - 2 * MINUTE_MS,
        command="txnlog housekeeping",
        who=f"dash-2{name}",
        host=f"node-7{name}",
    )
    return replace(
        empty(now_ms),
        problems=[paused, dead],
        waiting=[paused],
        lanes=_lanes(now_ms, name),
        topics=_topics(now_ms, name),
        groups=_groups(now_ms, name, paused),
        queries=_queries(now_ms, name),
        flow=_flow(name),
        upkeep=UpkeepMoment(
            f"housekeeping on ops-1{name}",
            MINUTE_MS,
            now_ms - 20_000,
            84 << 30,
            [
                TableUpkeep(
                    f"{table}{name}", version, files, size, small, now_ms - age, 7 * 86_400_000
                )
                for table, version, files, size, small, age in (
                    ("orders", 18_204, 412, 3_870_000_000, 310, 5_000_000),
                    ("payments", 9_112, 228, 1_210_000_000, 41, 5_000_000),
                    ("__transaction_state-0", 40_118, 9, 61_000, 0, 5_200_000),
                )
            ],
        ),
        notes=[f"The history of 12 ids is left out{name}."],
    )


def large() -> Moment:
    """A thousand topics, groups and ids, of a thousand transactions each."""
    start = NOW_MS - WINDOW_MS
    topic = _topics(NOW_MS, "")["orders"]
    lanes = []
    for lane in range(1_000):
        bars = [
            Bar(P(lane, n), Phase.COMPLETE_COMMIT, start + n * 900, start + n * 900)
            for n in range(1_000)
        ]
        lanes.append(Lane(f"id-{lane}", f"id-{lane}", "producer on node-1, process 9", bars, ()))
    group = _groups(NOW_MS, "", None)["billing"]
    return replace(
        rich(),
        lanes=lanes,
        topics={f"topic-{n}": topic._replace(name=f"topic-{n}") for n in range(1_000)},
        groups={f"group-{n}": group._replace(group_id=f"group-{n}") for n in range(1_000)},
        flow=Flow(
            [Node(K.TOPIC, f"topic-{n}", f"topic-{n}") for n in range(1_000)]
            + [Node(K.GROUP, f"group-{n}", f"group-{n}") for n in range(1_000)],
            [
                Edge((K.TOPIC, f"topic-{n}"), (K.GROUP, f"group-{n}"), float(n), n == 7)
                for n in range(1_000)
            ],
        ),
    )


def _paused(now_ms: int, name: str) -> Problem:
    since_ms = now_ms - 4 * MINUTE_MS
    owner = Owner(run_id="run-9", host=f"node-3{name}", pid=4711, since_ms=since_ms)
    row = TransactionMetadata(
        transactional_id=f"import-legacy{name}",
        producer_id=14,
        producer_epoch=3,
        txn_epoch=3,
        state=TransactionState.ONGOING,
        timeout_ms=600_000,
        partitions=(TopicPartitions(topic=f"orders{name}", topic_id="t1", partitions=(1,)),),
        owner=owner,
    )
    return Problem(
        kind=ProblemKind.OPEN,
        subject=row.transactional_id,
        why="Ongoing: an eager transaction holds the last stable offset",
        ends="its time-out, if any client or housekeeping runs then",
        since_ms=since_ms,
        until_ms=now_ms + 6 * MINUTE_MS,
        command="txnlog transactions abort --transactional-id=import-legacy",
        who=owner.describe(),
        host=owner.host,
        transaction=P(14, 3),
        row=row,
        places=(
            Place(f"orders{name}", 1, since_ms, 88_012, 88_400, ("a.parquet",)),
            Place(f"payments{name}", 0, since_ms, groups=(f"billing{name}",)),
        ),
    )


def _lanes(now_ms: int, name: str) -> list[Lane]:
    start = now_ms - WINDOW_MS

    def done(
        producer: int, epoch: int, at_ms: int, lasts_ms: int, abort: bool = False
    ) -> list[Bar]:
        prepare = Phase.PREPARE_ABORT if abort else Phase.PREPARE_COMMIT
        complete = Phase.COMPLETE_ABORT if abort else Phase.COMPLETE_COMMIT
        decided = at_ms + lasts_ms * 2 // 3
        one = P(producer, epoch)
        return [
            Bar(one, Phase.ONGOING, at_ms, decided),
            Bar(one, prepare, decided, at_ms + lasts_ms),
            Bar(one, complete, at_ms + lasts_ms, at_ms + lasts_ms),
        ]

    query = [b for n in range(30) for b in done(11, n, start + n * 29_000, 900)]
    second = [b for n in range(9) for b in done(12, n, start + n * 97_000 + 5_000, 21_000)]
    shop = [b for n in range(60) for b in done(13, n, start + n * 14_000, 300, abort=n % 17 == 5)]
    legacy = [
        *done(14, 1, start + 60_000, 140_000),
        *done(14, 2, start + 300_000, 90_000, abort=True),
        Bar(P(14, 3), Phase.ONGOING, now_ms - 4 * MINUTE_MS, None),
    ]
    pay = [
        *done(15, 1, start + 40_000, 30_000),
        Bar(P(15, 2), Phase.ONGOING, now_ms - 50_000, now_ms - 8_000),
        Bar(P(15, 2), Phase.PREPARE_COMMIT, now_ms - 8_000, None),
    ]
    taken = Tick(start + 290_000, TickKind.FENCED, f"host node-3{name} took over from node-2")
    return [
        Lane(QUERY_ID, f"enrich orders{name}", "run 51aa on driver-1, process 77", query,
             [Tick(start + 1_000, TickKind.BEGUN, "driver-1 began")]),
        Lane(f"daily-rollup{name}", f"daily rollup{name}", "run 90ab on driver-2", second, []),
        Lane(f"shop{name}", f"shop{name}", f"producer on web-1{name}, process 12", shop,
             [Tick(start + 71_000, TickKind.TIMED_OUT, "its time-out ended epoch 5")]),
        Lane(f"import-legacy{name}", f"import-legacy{name}", f"producer on node-3{name}", legacy,
             [taken, Tick(start + 391_000, TickKind.FINISHED_BY_OTHER, "web-1 finished epoch 2")]),
        Lane(f"payments{name}", f"payments{name}", "producer on pay-1, process 8", pay, []),
        Lane(f"old-batch{name}", f"old-batch{name}", "", [],
             [Tick(start + 500_000, TickKind.EXPIRED, "unused for 7 d")]),
    ]  # fmt: skip


def _topics(now_ms: int, name: str) -> dict[str, TopicMoment]:
    start = now_ms - WINDOW_MS

    def topic(number: int, title: str, rate: float, writers: list[str]) -> TopicMoment:
        partitions = [
            PartitionMoment(
                p, 1_000 * p, 88_400 + p * 17 - (388 if p == 1 and number == 0 else 0),
                88_400 + p * 17, 40 + p, 87_400, 967_000_000, now_ms - 1_500 * (p + 1)
            )
            for p in range(4)
        ]  # fmt: skip
        rates = [
            Point(start + n * 15_000, max(0.0, rate * (1 + 0.4 * math.sin(n / 6 + number))))
            for n in range(60)
        ]
        readers = {f"billing{name}": 388 if number == 0 else 12, f"dashboards{name}": 0}
        return TopicMoment(
            f"{title}{name}", f"id-{number}", partitions, rate, rates, 310 if number == 0 else 4,
            writers, readers, {"retention.ms": "604800000", "cleanup.policy": "delete"},
        )  # fmt: skip

    made = [
        topic(0, "orders", 1_240.0, [f"shop{name}", f"import-legacy{name}"]),
        topic(1, "payments", 310.0, [f"payments{name}"]),
        topic(2, "orders-enriched", 1_190.5, [QUERY_ID]),
        topic(3, "rollup", 0.3, [f"daily-rollup{name}"]),
    ]
    return {one.name: one for one in made}


def _groups(now_ms: int, name: str, paused: Problem | None) -> dict[str, GroupMoment]:
    start = now_ms - WINDOW_MS

    def group(title: str, lag: int, members: int, blocked: Sequence[Problem]) -> GroupMoment:
        lags = [Point(start + n * 30_000, float(max(0, lag * (n - 18) / 12))) for n in range(31)]
        return GroupMoment(
            f"{title}{name}",
            "Stable" if members else "Empty",
            7,
            [
                PositionMoment(f"orders{name}", p, 88_400 - lag * (p == 1), 88_400 + p * 17,
                               lag * (p == 1), 238_000 * (p == 1 and lag > 0), lag * (p == 1) // 9)
                for p in range(4)
            ],
            [
                MemberMoment(f"m-{n}-9f31", f"{title}-{n}{name}", f"node-{n}{name}",
                             now_ms - 1_200 * (n + 1), {f"orders{name}": [n, n + 2]})
                for n in range(members)
            ],
            lags,
            blocked,
        )  # fmt: skip

    made = [
        group("billing", 388, 2, [] if paused is None else [paused]),
        group("dashboards", 0, 2, ()),
        group("audit", 0, 0, ()),
    ]
    return {one.group_id: one for one in made}


def _queries(now_ms: int, name: str) -> dict[str, QueryMoment]:
    def batch(number: int) -> BatchMoment:
        wave = 1 + 0.5 * math.sin(number / 3)
        return BatchMoment(
            number + 400, now_ms - (29 - number) * 29_000, P(11, number), 34_000 + number * 70, 4,
            {"tail": 21 * wave, "prepare": 48 * wave, "publish": 96 * wave, "offsets": 31.0,
             "sources": 12.0, "total": 208 * wave},
        )  # fmt: skip

    return {
        QUERY_ID: QueryMoment(
            QUERY_ID, f"enrich orders{name}", "run 51aa on driver-1, process 77", False,
            [f"enricher{name}"], [f"orders-enriched{name}"], [batch(n) for n in range(30)],
        ),
        f"daily-rollup{name}": QueryMoment(
            f"daily-rollup{name}", f"daily rollup{name}", "run 90ab on driver-2", True, [],
            [f"rollup{name}"], [],
        ),
    }  # fmt: skip


def _flow(name: str) -> Flow:
    def node(kind: NodeKind, one: str, title: str = "") -> Node:
        return Node(kind, one, title or one)

    def edge(a: NodeKind, x: str, b: NodeKind, y: str, rate: float, blocked: bool = False) -> Edge:
        return Edge((a, x), (b, y), rate, blocked)

    orders, enriched = f"orders{name}", f"orders-enriched{name}"
    payments, rollup = f"payments{name}", f"rollup{name}"
    return Flow(
        [
            node(K.PRODUCER, f"shop{name}"),
            node(K.PRODUCER, f"import-legacy{name}"),
            node(K.PRODUCER, payments),
            node(K.TOPIC, orders), node(K.TOPIC, payments), node(K.TOPIC, enriched),
            node(K.TOPIC, rollup),
            node(K.QUERY, QUERY_ID, f"enrich orders{name}"),
            node(K.QUERY, f"daily-rollup{name}", f"daily rollup{name}"),
            node(K.GROUP, f"billing{name}"), node(K.GROUP, f"dashboards{name}"),
        ],
        [
            edge(K.PRODUCER, f"shop{name}", K.TOPIC, orders, 1_200),
            edge(K.PRODUCER, f"import-legacy{name}", K.TOPIC, orders, 40, True),
            edge(K.PRODUCER, payments, K.TOPIC, payments, 310),
            edge(K.TOPIC, orders, K.QUERY, QUERY_ID, 1_190),
            edge(K.TOPIC, payments, K.QUERY, QUERY_ID, 300),
            edge(K.QUERY, QUERY_ID, K.TOPIC, enriched, 1_190),
            edge(K.TOPIC, enriched, K.QUERY, f"daily-rollup{name}", 1_190),
            edge(K.QUERY, f"daily-rollup{name}", K.TOPIC, rollup, 0.3),
            edge(K.TOPIC, orders, K.GROUP, f"billing{name}", 0, True),
            edge(K.TOPIC, payments, K.GROUP, f"billing{name}", 310),
            edge(K.TOPIC, enriched, K.GROUP, f"dashboards{name}", 1_190),
        ],
    )  # fmt: skip


class FakeMoments:
    """Answers from one moment. `calls` are what was asked of it."""

    def __init__(self, moment: Moment, name: str = "", value: bytes | None = None) -> None:
        self.moment = moment
        self.name = name
        self.value = value
        self.calls: list[str] = []
        self.error: StorageError | None = None

    def now(self) -> Moment:
        self.calls.append("now")
        if self.error is not None:
            raise self.error
        return self.moment

    def at(self, at_ms: int) -> Moment:
        self.calls.append(f"at {at_ms}")
        made = rich(at_ms, name=self.name) if self.moment.topics else empty(at_ms)
        return replace(made, is_now=False, earliest_ms=self.moment.earliest_ms)

    def transaction(
        self, transaction: ProducerIdAndEpoch, *, at_ms: int | None = None
    ) -> TransactionMoment:
        self.calls.append(f"transaction {transaction}")
        lanes = [
            lane
            for lane in self.moment.lanes
            for bar in lane.bars
            if bar.transaction == transaction
        ]
        if not lanes:
            raise TransactionalIdNotFoundError(f"There is no transaction {transaction}.")
        lane, now_ms, name = lanes[0], self.moment.at_ms, self.name
        return TransactionMoment(
            transaction=transaction,
            transactional_id=lane.transactional_id,
            state="CompleteCommit",
            owner=lane.owner,
            query_id=lane.transactional_id if lane.transactional_id == QUERY_ID else "",
            batch_id=417 if lane.transactional_id == QUERY_ID else None,
            steps=[
                Step(now_ms - 9_000, f"driver-1{name} decided it with 4 files."),
                Step(now_ms - 8_800, "Its records became visible in 2 topics."),
            ],
            written=[
                Written(f"orders{name}", 0, 88_100, 88_199, 100, [f"part-1{name}.parquet"]),
                Written(f"payments{name}", 3, 41_000, 41_049, 50, ["part-2.parquet", "part-3"]),
            ],
            moved=[Moved(f"billing{name}", {f"orders{name}": {0: 88_100, 1: 87_004}})],
            phases={"tail": 20.0, "prepare": 44.0, "publish": 101.0, "total": 165.0},
        )

    def deletable(self) -> list[Deletable]:
        self.calls.append("deletable")
        return [
            Deletable(f"orders{self.name}/part-{n}.parquet", "unreferenced file", n * 60_000, n)
            for n in range(300)
        ]

    def records(
        self,
        topic: str,
        partition: int,
        *,
        offset: int | None = None,
        timestamp_ms: int | None = None,
        key: bytes | None = None,
        count: int,
        with_values: bool,
        at_ms: int | None = None,
    ) -> list[RecordMoment]:
        self.calls.append(f"records {topic!r} {partition} {offset} {with_values}")
        first = 88_380 if offset is None else offset
        order = json.dumps({"order": 4711, "items": ["pear", "fig"], "note": self.name})
        value = order.encode() if self.value is None else self.value
        return [
            RecordMoment(
                topic,
                partition,
                first + n,
                self.moment.at_ms - 1_000 * (count - n),
                f"key-{n}{self.name}".encode() if with_values else None,
                value if with_values else None,
                [(f"trace{self.name}", b"\x00\xff")] if with_values else [],
                P(13, 20 + n) if n % 3 else None,
                ("committed", "none", "aborted", "ongoing", "compacted, unknown")[n % 5],
            )
            for n in range(min(count, 5))
        ]
