"""Fields written by a newer txnlog survive rewriting by this one, at every level (R38)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.protocol.group_row import a_holder, a_ticket
from tests.staged_files import named_file
from txnlog.errors import CorruptLogError
from txnlog.protocol.group_metadata import CommittedOffset, Group, GroupTickets, Member
from txnlog.protocol.groups import OffsetsCommit, prepare_generation
from txnlog.protocol.leases import (
    Lease,
    LeaseObservation,
    decode_lease,
    encode_lease,
    prepare_release,
    prepare_take,
)
from txnlog.protocol.membership import GroupObservation, prepare_heartbeat
from txnlog.protocol.metadata import (
    Fenced,
    Holder,
    LastBatch,
    Manifest,
    Owner,
    ProducerIdAndEpoch,
    TopicPartitions,
    TransactionMetadata,
)
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.tickets import Registered, prepare_registration
from txnlog.protocol.transitions import (
    Transition,
    prepare_add_partitions,
    prepare_end,
    prepare_fence,
    prepare_init,
    prepare_time_out,
)

BATCH = named_file(topic_id="i")
ROW = TransactionMetadata(
    transactional_id="tx",
    producer_id=1,
    producer_epoch=3,
    txn_epoch=3,
    state=TransactionState.ONGOING,
    timeout_ms=1,
    partitions=(TopicPartitions(topic="t", topic_id="i", partitions=(0, 1)),),
    pending=Manifest(batches=(BATCH,), tickets=(a_ticket(producer_id=1),)),
    owner=Owner(
        run_id="r",
        query_id="q",
        former_runs=("a",),
        batches={"q": LastBatch(batch_id=1, topics=("t",)), "*": LastBatch(batch_id=2)},
        fenced=Fenced(by="b", at_ms=1, reason="c"),
    ),
)
GROUP = Group(
    group_id="g",
    generation=2,
    offsets={"t": {0: CommittedOffset(5, 1, 1, "*[ note"), 1: CommittedOffset(6, 1, 1)}},
    tickets=GroupTickets(newest=3, holders=(a_holder(),)),
    members={"m": Member(topics=("t",)), "n": Member(topics=("*",))},
    assignment={"m": {"t": (0,)}, "n": {"*": (1,)}},
)
NEWER = st.dictionaries(
    st.text(min_size=1, max_size=3).map(lambda name: f"new_{name}") | st.just("*"),
    st.recursive(
        st.none() | st.integers(-9, 9) | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
        ),
        max_leaves=3,
    ),
    max_size=2,
)
TRANSACTION_JSON = ("partitions", "pending", "owner")
GROUP_JSON = ("offsets", "tickets", "members", "assignment")
MAPS = {"batches", "members", "assignment", "offsets"}
"""Names of objects that are maps with users' keys, without fixed fields."""


def objects(plain: Any, name: str) -> Iterator[Any]:
    """Every JSON object of fields, and every array of an offset, inside a column."""
    if isinstance(plain, list):
        if name == "offset":
            yield plain
        for item in plain if name != "offset" else ():
            yield from objects(item, name)
    elif isinstance(plain, dict):
        if name not in MAPS and name != "topic":
            yield plain
        if name == "assignment":
            return
        inner = {"offsets": "topic", "topic": "offset"}.get(name, "entry")
        for key, item in plain.items():
            if (name, key) in (("tickets", "offsets"), ("holders", "partitions")):
                # Of a ticket, or of its holder: no fields.
                continue
            yield from objects(item, inner if name in MAPS or name == "topic" else key)


def written_by_a_newer_one(
    values: dict[str, str], columns: tuple[str, ...], draw: Any
) -> tuple[dict[str, str], dict[str, Any]]:
    """The row with more fields at every level; and its JSON columns, for comparing."""
    newer, plain = dict(values), {}
    for column in columns:
        plain[column] = json.loads(values[column])
        for found in list(objects(plain[column], column)):
            more = draw(NEWER)
            if isinstance(found, dict):
                found.update(more)
            else:
                found += [*[""] * (4 - len(found)), *more.values()]
        newer[column] = json.dumps(plain[column])
    newer["new_column"] = "kept"
    return newer, plain


@given(st.data())
def test_unknown_fields_of_a_transactions_row_survive_reading_and_writing(
    data: st.DataObject,
) -> None:
    """Also those of staged batches, owners, last batches, Fenced, partitions (R38)."""
    newer, plain = written_by_a_newer_one(ROW.to_values(), TRANSACTION_JSON, data.draw)
    row = TransactionMetadata.from_values(newer, path="p", source="s")
    after = replace(row, producer_epoch=9, owner=replace(row.owner, pid=7)).to_values()
    plain["owner"]["pid"] = 7
    assert {column: json.loads(after[column]) for column in TRANSACTION_JSON} == plain
    assert (after["new_column"], after["producer_epoch"]) == ("kept", "9")


@given(st.data())
def test_unknown_fields_of_a_groups_row_survive_reading_and_writing(data: st.DataObject) -> None:
    """Also those of members, holders of tickets, and items behind a committed offset (R38)."""
    newer, plain = written_by_a_newer_one(GROUP.to_values(), GROUP_JSON, data.draw)
    group = Group.from_values(newer, path="p", source="s")
    assert group.positions() == GROUP.positions()
    after = replace(group, updated_ms=5).to_values()
    assert {column: json.loads(after[column]) for column in GROUP_JSON} == plain
    assert after["new_column"] == "kept"


def newer_row(state: TransactionState) -> TransactionMetadata:
    values = replace(ROW, state=state).to_values()
    for column in TRANSACTION_JSON:
        plain = json.loads(values[column])
        for found in list(objects(plain, column)):
            found["new"] = [1]
        values[column] = json.dumps(plain)
    return TransactionMetadata.from_values(values, path="p", source="s")


def test_unknown_fields_survive_every_transition_that_keeps_their_object() -> None:
    """A take-over, a fence and an end derive new owners and manifests from the old ones (R38)."""
    row = newer_row(TransactionState.ONGOING)
    holder = row.holder
    more = TopicPartitions(topic="t", topic_id="i", partitions=(2,))
    new_owner = Owner(run_id="x", query_id="q")
    decisions = [
        prepare_init(
            row, transactional_id="tx", new_producer_id=9, owner=new_owner, timeout_ms=1, now_ms=0
        ),
        prepare_add_partitions(row, holder=holder, partitions=(more,), now_ms=0),
        prepare_add_partitions(row, holder=holder, manifest=Manifest(), now_ms=0),
        prepare_end(
            row, holder=holder, result=TransactionResult.COMMIT,
            manifest=Manifest(batches=(BATCH,)),
            batch=("other", LastBatch(batch_id=5)), now_ms=0,
        ),
        prepare_end(row, holder=holder, result=TransactionResult.ABORT, now_ms=0),
        prepare_time_out(row, transaction=ProducerIdAndEpoch(1, 3), by="s", now_ms=0),
        prepare_fence(row, above_epoch=3, by="o", reason="w", now_ms=0),
    ]  # fmt: skip
    for decision in decisions:
        assert isinstance(decision, Transition)
        values = decision.next.to_values()
        owner, pending = json.loads(values["owner"]), json.loads(values["pending"])
        assert owner["new"] == pending["new"] == owner["batches"]["q"]["new"] == [1]
        assert [found["new"] for found in json.loads(values["partitions"])] == [[1]]


def test_unknown_fields_of_a_group_survive_changes_by_others() -> None:
    """A heartbeat, a new generation, another run that registers (R38)."""
    values = GROUP.to_values()
    for column in ("tickets", "members", "offsets"):
        plain = json.loads(values[column])
        for found in list(objects(plain, column)):
            if isinstance(found, dict):
                found["new"] = 1
            else:
                found[4:] = ["more"]
        values[column] = json.dumps(plain)
    group = Group.from_values(values, path="p", source="s")
    registered = prepare_registration(
        group, group_id="g", generation=2, member_id="", partitions={"t": (1,)}, start={},
        done=(), now_ms=0,
        holder=Holder(transactional_id="y", producer_id=8, producer_epoch=0, run_id="r"),
    )  # fmt: skip
    assert isinstance(registered, Registered)
    decisions = [
        prepare_generation(group, group_id="g", now_ms=0),
        prepare_heartbeat(
            group, group_id="g", member_id="m", beat=True, observation=GroupObservation(),
            counts={}, now_ms=0,
        ),
        registered.commit,
    ]  # fmt: skip
    for decision in decisions:
        assert isinstance(decision, OffsetsCommit)
        after = decision.groups[0].to_values()
        tickets = json.loads(after["tickets"])
        assert tickets["new"] == tickets["holders"][0]["new"] == 1
        assert {m["new"] for m in json.loads(after["members"]).values()} == {1}
        offsets = json.loads(after["offsets"])["t"]
        assert [found[4:] for found in offsets.values()] == [["more"], ["more"]]


def test_unknown_fields_of_a_lease_survive_its_next_holder() -> None:
    """An older housekeeper acquires it, renews it, releases it (R38)."""
    newer = '{"holder":"a","counter":4,"lease_ms":10,"by":"x","zone":"b"}'
    lease = decode_lease(newer, source="__cluster")
    taken = prepare_take(
        lease, LeaseObservation(lease, 0), holder="me", by="y", lease_ms=20, now_ms=10**6
    )
    assert isinstance(taken, Lease)
    assert json.loads(encode_lease(taken)) == {
        "holder": "me", "counter": 5, "lease_ms": 20, "by": "y", "zone": "b",
    }  # fmt: skip
    released = prepare_release(taken, holder="me")
    assert released is not None
    assert json.loads(encode_lease(released))["zone"] == "b"


def test_usual_row_is_written_without_unknown_fields() -> None:
    """The format for older versions must not change."""
    values = [*ROW.to_values().values(), *GROUP.to_values().values()]
    assert not [value for value in values if "unknown" in value or '"*":"' in value]
    plain = json.loads(GROUP.to_values()["offsets"])
    assert plain == {"t": {"0": [5, 1, 1, "*[ note"], "1": [6, 1, 1, ""]}}


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("owner", '{"new":1,"pid":"x"}'),
        ("owner", '{"*":"x","former_runs":3}'),
        ("owner", '{"new":1,"batches":{"q":{"new":2}}}'),
        ("pending", '{"new":1,"batches":[3]}'),
        ("pending", '{"new":1,"batches":{}}'),
        ("partitions", '[{"new":1}]'),
        ("partitions", "3"),
    ],
)
def test_damage_beside_unknown_fields_is_still_damage(column: str, text: str) -> None:
    """An unreadable field is damage, not a newer version's field (R38, R66)."""
    values = {**ROW.to_values(), column: text}
    with pytest.raises(CorruptLogError, match="'tx'"):
        TransactionMetadata.from_values(values, path="p", source="s")
