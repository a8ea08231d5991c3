"""With any arguments of any call the tables stay readable, and errors are TxnLogErrors.

Every public method of the clients is found by inspection, and needs a strategy per parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import tables
from tests.arguments import junk
from tests.arguments.clients import CLIENTS, NAMES, BoundedClock, Client, WaitsForEver, World
from tests.arguments.cold_reader import objects, read_everything
from tests.arguments.junk import TURN, mostly, odd, or_odd, several
from tests.world import process, world
from txnlog.admin import (
    AbortTransactionSpec,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import InvalidCommitError, TxnLogError, UnexpectedError
from txnlog.messages import TopicPartition
from txnlog.producer import Producer
from txnlog.protocol.snapshots import Snapshot, TopicVersion
from txnlog.protocol.states import TransactionState
from txnlog.settings.table import SETTINGS, SPARK
from txnlog.storage.batches.records import HEADERS_TYPE
from txnlog.testing.faults import SharedMemory
from txnlog.verifying.report import VerifySettings

ALLOWED = (TxnLogError, TypeError, ValueError)
BUGS = (UnexpectedError, InvalidCommitError)
"""Errors that ask to be reported: an argument was refused too late, when it was written or used."""
STEPS_MAX = 12


# --- A strategy for every parameter ---------------------------------------------------------------

NUMBERS = (int, float, np.number, np.ndarray, Decimal)

# A producer's poll waits in real time: its numbers are small.
short = or_odd(
    st.sampled_from([0, 0.0, 0.001, np.float32(0)]),
    st.one_of(
        st.sampled_from([-1, float("-inf"), float("nan"), None]),
        odd.filter(lambda value: not isinstance(value, NUMBERS)),
    ),
)
callback = mostly(None, None, lambda *_: None)


def with_headers(column: list[Any], kind: pa.DataType | None = HEADERS_TYPE) -> pa.Table:
    """A table of one record for each list of headers."""
    return pa.table({"value": [b"a"] * len(column), "headers": pa.array(column, kind)})


flag = mostly(True, False)
SNAPSHOT = Snapshot(cluster_id="", at_ms=0, topics={"orders": TopicVersion(version=1)})
table_name = or_odd(st.sampled_from(("silver.orders", "new")), junk.odd_key)
column = or_odd(st.sampled_from(("day", "id")), junk.odd_key)
rows = mostly(
    tables.rows(1, 2),
    tables.rows(1).to_batches()[0],
    tables.rows(),
    pa.table({"id": ["x"], "day": [1]}),
    pa.table({"day": ["1"], "other": [1]}),
)
table = mostly(
    pa.table({"value": ["a", "b"], "partition": [0, None]}),
    pa.table({"value": [b"a"], "key": [b"k"], "timestamp": [1_700_000_000_000]}),
    pa.table({"value": [b"a"], "partition": [1.0]}),
    pa.table({"value": [1]}),
    pa.table({"other": [1]}),
    pa.table({"value": pa.array([], pa.binary())}),
    with_headers([[{"key": "h", "value": None}], None, [], [{"key": "", "value": b"v"}] * 2]),
    with_headers([[{"key": "h", "value": b"v"}, {"key": None, "value": b"v"}]]),
    with_headers([None, [None]]),
    with_headers([None, None]),
    with_headers([[]]),
    with_headers([[{"name": "h", "value": b"v"}]], None),
    with_headers([[{"key": 1, "value": b"v"}]], None),
    with_headers([{"h": b"v"}], None),
    pa.table({"value": [b"a"], "timestamp": pa.array([None], pa.timestamp("ns", "UTC"))}),
    pa.table({"value": pa.nulls(1), "key": pa.nulls(1), "partition": pa.nulls(1)}),
)
config = or_odd(
    st.dictionaries(
        or_odd(
            st.sampled_from(("retention.ms", "max.message.bytes")),
            st.one_of(st.sampled_from(("deleted", "partitions", "retention")), junk.odd_key),
        ),
        or_odd(st.sampled_from(("1", 5)), st.one_of(st.sampled_from(("soon", "0x1")), odd)),
        max_size=2,
    )
)
new_topic = or_odd(
    st.builds(NewTopic, mostly("new", "newer"), mostly(1, 2, -1, np.int64(2)), mostly(-1), config)
)
entry = or_odd(
    st.builds(
        ConfigEntry,
        mostly("retention.ms", "segment.bytes"),
        mostly("5", 7),
        mostly(*AlterConfigOpType),
    )
)
resource = or_odd(st.builds(ConfigResource, mostly(ResourceType.TOPIC), junk.topic, several(entry)))
spec = or_odd(
    st.one_of(
        st.sampled_from([OffsetSpec.earliest(), OffsetSpec.latest()]),
        st.builds(OffsetSpec.for_timestamp, mostly(0, 1_700_000_000_000)),
        st.builds(OffsetSpec, mostly("earliest")),
    )
)
hashable = st.builds(TopicPartition, st.sampled_from(["orders", "new"]), st.sampled_from([0, 7]))
abort_spec = st.builds(
    AbortTransactionSpec,
    topic_partition=junk.some_partition,
    producer_id=mostly(0, 1),
    producer_epoch=mostly(0, 1),
)
request = or_odd(
    st.builds(ConsumerGroupTopicPartitions, junk.group_id, st.none() | junk.partitions)
)
name_or_pattern = mostly("orders", "stock", "^ord", "^(", "^" + "(" * 2_000)

PARAMETERS: Mapping[str, st.SearchStrategy[Any]] = {
    "asynchronous": flag,
    "auto_create": flag,
    "blocking": flag,
    "cached": flag,
    "callback": callback,
    "columns": or_odd(st.none() | several(mostly("key", "offset", "headers"))),
    "staging": mostly("hidden", "visible"),
    "drop_columns": several(mostly("key", "offset")),
    "config": or_odd(st.none() | config),
    "deep": flag,
    "destination": mostly("memory://copy", "copy"),
    "dry_run": flag,
    "duration_ms": mostly(-1, 0, 5),
    "exist_ok": flag,
    "filter": mostly(None, pc.field("offset") >= 1, pc.field("none") == 1),
    "force": flag,
    "group_id": junk.group_id,
    "group_ids": several(junk.group_id),
    "group_metadata": junk.member,
    "headers": several(st.tuples(mostly("h"), mostly(b"v", "v", None))),
    "in_flight": flag,
    "in_queue": flag,
    "internal": mostly(False),
    "isolation_level": mostly(*IsolationLevel),
    "keep_prepared": flag,
    "key": mostly(b"k", "k", None),
    "matches": mostly(bool, lambda name: name == "orders"),
    "max_transaction_timeout_ms": mostly(0, 900_000),
    "message": junk.message,
    "name": junk.topic,
    "names": several(mostly("orders", "new")),
    "new_partitions": several(or_odd(st.builds(NewPartitions, junk.topic, mostly(2, 3, 4)))),
    "new_topics": several(new_topic),
    "num_messages": mostly(None, 0, 1, 3),
    "num_records": mostly(None, 0, 1, 3),
    "offsets": junk.partitions,
    "on_assign": callback,
    "on_delivery": callback,
    "on_lost": callback,
    "on_revoke": callback,
    "on_step": callback,
    "partition": mostly(-1, 0, 1, np.int64(1)),
    "partitions": junk.partitions,
    "positions": junk.partitions,
    "producer_ids": several(mostly(0, 1)),
    "progress": callback,
    "record": junk.some_partition,
    "reason": mostly("because"),
    "requests": several(request),
    "require_stable": flag,
    "resources": several(resource),
    "settings": or_odd(
        st.builds(
            VerifySettings,
            topics=st.none() | several(mostly("orders")),
            since_ms=mostly(None, 0),
            deep=flag,
            stuck_ms=mostly(0, 5),
        )
    ),
    "snapshot": mostly(None, "n", SNAPSHOT),
    "state": mostly(None, "1:1"),
    "states": several(mostly(*TransactionState, *ConsumerGroupState)),
    "table": table,
    "timeout": short,
    "timestamp": mostly(0, 1_700_000_000_000, np.int64(5)),
    "topic": junk.topic,
    "topic_partition_offsets": or_odd(st.dictionaries(hashable, spec, max_size=3)),
    "topics": several(name_or_pattern),
    "transaction": st.one_of(junk.transactional_id, abort_spec),
    "transactional_id": junk.transactional_id,
    "transactional_id_pattern": mostly(None, "t.*", "("),
    "transactional_ids": several(junk.transactional_id),
    "ttl_ms": mostly(None, 1, 3_600_000),
    "validate_only": flag,
    "value": mostly(b"v", "v", None),
    "watch_ms": mostly(0, 1),
}
PARTICULAR: Mapping[str, st.SearchStrategy[Any]] = {
    "Cluster.find_or_create_topic.partitions": mostly(None, 1, 2, np.int64(2)),
    "Cluster.create_topic.partitions": mostly(None, 1, 2, np.int64(2)),
    "Cluster.snapshot.name": mostly(None, "n", "m"),
    "AdminClient.enlist_tables.urls": or_odd(
        st.dictionaries(table_name, mostly("memory://silver", "/nowhere"), max_size=2)
    ),
    "Producer.append.table": mostly("silver.orders", "new"),
    "Producer.append.rows": rows,
    "Producer.overwrite.table": mostly("silver.orders", "new"),
    "Producer.overwrite.rows": rows,
    "Producer.overwrite.partitions": or_odd(
        st.none() | several(or_odd(st.dictionaries(column, mostly("1", 2, None))))
    ),
    "Consumer.seek.partition": junk.some_partition,
    "Consumer.get_watermark_offsets.partition": junk.some_partition,
}


def methods(kind: type[Client]) -> dict[str, Callable[..., Any]]:
    """The public methods of a client; `transaction` calls its context manager.

    Of a cluster its own: those of Root are for the coordinators.
    """
    members = inspect.getmembers(kind, inspect.isfunction)
    named = {name: found for name, found in members if not name.startswith("_")}
    return {n: found for n, found in named.items() if kind is not Cluster or n in vars(Cluster)}


def parameters(kind: type[Client], name: str) -> list[inspect.Parameter]:
    """The parameters of a method, without self."""
    return list(inspect.signature(methods(kind)[name]).parameters.values())[1:]


CALLS = [(kind, name) for kind in CLIENTS for name in methods(kind)]


@pytest.mark.parametrize(("kind", "name"), CALLS, ids=[f"{k.__name__}.{n}" for k, n in CALLS])
def test_every_parameter_of_every_public_method_has_a_strategy(
    kind: type[Client], name: str
) -> None:
    """New methods and parameters must be included in the tests below."""
    known = {*PARAMETERS, *PARTICULAR}
    missing = [
        found.name
        for found in parameters(kind, name)
        if not {found.name, f"{kind.__name__}.{name}.{found.name}"} & known
    ]
    assert not missing, f"add {missing} to PARAMETERS"


# --- The test -------------------------------------------------------------------------------------


def bugs(errors: Iterable[BaseException | None]) -> list[BaseException]:
    """Those of BUGS among the errors and their causes."""
    found = []
    for error in errors:
        while error is not None:
            found += [error] if isinstance(error, BUGS) else []
            error = error.__cause__
    return found


def outcome(
    clock: BoundedClock, call: Callable[..., Any], given_: dict[str, Any]
) -> list[BaseException]:
    """The errors of a call, of its futures, and of its context manager."""
    clock.sleeps = 0
    try:
        found = call(**given_)
        if hasattr(found, "__enter__"):
            with found:
                pass
    except ALLOWED as error:
        return [error]
    except WaitsForEver:
        seconds = given_.get("timeout", -1)
        assert seconds is None or seconds < 0, (call, given_)
        return []
    futures = list(found.values()) if isinstance(found, dict) else [found]
    # Cluster.look_up and survey_topics return errors in the places of logs.
    assert not bugs(item for item in futures if isinstance(item, Exception)), found
    errors = [future.exception() for future in futures if isinstance(future, Future)]
    # A wrong type is an error of the call; futures have errors of one topic, group or id.
    assert all(error is None or isinstance(error, TxnLogError) for error in errors), errors
    return [error for error in errors if error is not None]


def call_once(data: st.DataObject, here: World, kind: type[Client], name: str, who: str) -> None:
    """Call a method with at most one invalid argument; then everything must be readable.

    Nothing but errors that a handler knows leaves a call, and none of them is a bug that was met
    further inside: there it would have been too late.
    """
    TURN.start(data.draw(st.integers(0, 9), label="number of the odd one"))
    given_: dict[str, Any] = {}
    for parameter in parameters(kind, name):
        is_needed = parameter.default is inspect.Parameter.empty
        if is_needed or data.draw(st.booleans()):
            where = f"{kind.__name__}.{name}.{parameter.name}"
            strategy = PARTICULAR[where] if where in PARTICULAR else PARAMETERS[parameter.name]
            given_[parameter.name] = data.draw(strategy, label=parameter.name)
    if name == "produce" and given_.get("on_delivery") is None:
        given_["on_delivery"] = here.report
    client = here.client(who)
    if given_.get("snapshot") is SNAPSHOT and data.draw(st.booleans(), label="of this root"):
        given_["snapshot"] = replace(SNAPSHOT, cluster_id=client.cluster_id)
    before = objects(here.shared)
    errors = outcome(here.clock, getattr(client, name), given_)
    if isinstance(client, Producer) and name.startswith("produce"):
        # Accepted records must be sendable.
        errors += outcome(here.clock, client.flush, {})
    assert not bugs(errors), errors
    if objects(here.shared) != before:
        read_everything(here.shared)


def end(here: World) -> None:
    """Send and commit the accepted records."""
    for made in here.producers():
        errors = outcome(here.clock, made.commit_transaction, {})
        assert not bugs(errors), errors
        with suppress(TypeError):  # An odd callback, which takes no report.
            made.close()
    assert not bugs(here.reports), here.reports
    read_everything(here.shared)


COMBINATIONS = [(kind, name, who) for kind, name in CALLS for who in NAMES[kind]]


@pytest.mark.parametrize(
    ("kind", "name", "who"), COMBINATIONS, ids=[f"{who}.{name}" for _, name, who in COMBINATIONS]
)
@given(data=st.data())
@settings(max_examples=max(2, settings().max_examples // 20))
def test_any_arguments_of_a_method_leave_all_tables_readable(
    kind: type[Client], name: str, who: str, data: st.DataObject
) -> None:
    """One invalid value, once written, permanently stops every reader of a shared table."""
    here = World()
    for _ in range(8 if parameters(kind, name) else 1):
        call_once(data, here, kind, name, who)
    end(here)


@given(st.data())
@settings(max_examples=settings().max_examples // 4)
def test_any_arguments_of_many_methods_leave_all_tables_readable(data: st.DataObject) -> None:
    """Later calls work on the results of earlier ones."""
    here = World()
    for _ in range(data.draw(st.integers(1, STEPS_MAX), label="calls")):
        kind, name = data.draw(st.sampled_from(CALLS), label="method")
        call_once(data, here, kind, name, data.draw(st.sampled_from(NAMES[kind]), label="client"))
    end(here)


# --- Settings -------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=max(30, settings().max_examples // 2))
def test_any_settings_leave_all_tables_readable(data: st.DataObject) -> None:
    """Settings, too, are written to rows: an id, a member's time-outs."""
    shared = world()
    clock = BoundedClock()
    names = st.sampled_from([setting.name for setting in SETTINGS if setting.applies_to - SPARK])
    values = st.one_of(odd, st.sampled_from([1, 10, "1", "true", "range", 2**31 - 1, 2**63 - 1]))
    drawn = data.draw(st.dictionaries(names, values, max_size=3))
    for kind in (Producer, Consumer, AdminClient):
        errors = outcome(
            clock, _work, {"kind": kind, "shared": shared, "clock": clock, "config": dict(drawn)}
        )
        assert not bugs(errors), errors
        read_everything(shared)


def _work(
    kind: type[Client], shared: SharedMemory, clock: BoundedClock, config: dict[str, Any]
) -> None:
    cluster = process(shared, clock=clock)
    config["txnlog.root"] = "memory://"
    if kind is AdminClient:
        made = AdminClient(config, cluster=cluster)
        made.create_topics([NewTopic("new", 1)])
        made.fence_producers(["tx"])
    elif kind is Consumer:
        with Consumer({"group.id": "g", **config}, cluster=cluster, background=False) as consumer:
            consumer.subscribe(["orders"])
            consumer.poll(1)
            consumer.commit(offsets=[TopicPartition("orders", 0, 1, "note")], asynchronous=False)
    else:
        with Producer(config, cluster=cluster, background=False) as producer:
            if producer._transactions is not None:
                producer.init_transactions()
                producer.begin_transaction()
            producer.produce("orders", "a")
            if producer._transactions is not None:
                producer.commit_transaction()
