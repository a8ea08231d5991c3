"""The commit that mends one topic: batches settled, published again, and without records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from txnlog.protocol.batches import NONE, BatchHeader, encode_stats
from txnlog.protocol.metadata import StagedBatch, TransactionMetadata
from txnlog.protocol.repair.facts import LEAP, Decision, Gap, SalvagedTopic
from txnlog.protocol.repair.losses import LostOffsets
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.topics import end_app_id

ResultOf = Callable[[int, int, int], TransactionResult | None]
"""(producer id, epoch, newest marker of that producer in the topic) -> how the transaction ends;
None: what its row says decides later."""


@dataclass(slots=True)
class TopicRepair:
    """`adds` are headers of files that exist. Each of `empties` gets a new file without records;
    its path is that of the damaged file it replaces, or "". `ends` are those after the commit.
    """

    ends: list[int]
    adds: list[BatchHeader] = field(default_factory=list)
    empties: list[BatchHeader] = field(default_factory=list)
    removes: list[str] = field(default_factory=list)
    markers: dict[int, int] = field(default_factory=dict)
    txns: dict[str, int] = field(default_factory=dict)
    lost: list[LostOffsets] = field(default_factory=list)

    @property
    def is_needed(self) -> bool:
        return bool(self.adds or self.empties or self.removes or self.markers or self.txns)


def plan_topic(
    topic: SalvagedTopic,
    todo: Sequence[Decision],
    result_of: ResultOf,
    broken: Collection[tuple[str, str]],
    *,
    wanted: Mapping[int, int],
) -> TopicRepair:
    """Mend one topic. `todo` are decisions whose marker it lacks, in their order, `broken` staged
    files that are not whole, and `wanted` by partition the highest offset that a group has.
    """
    plan = TopicRepair(ends=list(topic.ends), removes=list(topic.superseded))
    if topic.is_deleted:
        if topic.has_lost:
            plan.ends = [end + LEAP for end in topic.ends]
            plan.txns = {end_app_id(number): end for number, end in enumerate(plan.ends)}
        return plan
    markers = dict(topic.markers.newest)
    changed = _settled(topic, todo, result_of, markers)
    for header in topic.damaged:
        header = changed.pop(header.path, header)
        plan.empties.append(header)
        plan.removes.append(header.path)
        plan.lost.append(
            LostOffsets(
                topic=topic.name,
                partition=header.partition,
                first=header.base_offset,
                last=header.last_offset,
                records=header.num_records,
            )
        )
    plan.adds += changed.values()
    _fill(topic, plan, wanted)
    for decision in todo:
        _publish(topic, decision.row, plan, broken)
    newest = topic.markers.newest
    plan.markers = {key: epoch for key, epoch in markers.items() if newest.get(key) != epoch}
    return plan


def _settled(
    topic: SalvagedTopic,
    todo: Sequence[Decision],
    result_of: ResultOf,
    markers: dict[int, int],
) -> dict[str, BatchHeader]:
    """Undecided batches that end here, by path; raises the markers accordingly."""
    results: dict[tuple[int, int], TransactionResult] = {}
    for decision in todo:
        producer_id, epoch = decision.row.transaction
        results[producer_id, epoch] = TransactionResult.of(decision.row.state)
        markers[producer_id] = max(epoch, markers.get(producer_id, -1))
    changed = {}
    for header in topic.undecided:
        producer_id, epoch = header.producer_id, header.producer_epoch
        result = results.get((producer_id, epoch)) or result_of(
            producer_id, epoch, markers.get(producer_id, -1)
        )
        if result is not None:
            changed[header.path] = replace(header, status=result.status)
            markers[producer_id] = max(epoch, markers.get(producer_id, -1))
    return changed


def _fill(topic: SalvagedTopic, plan: TopicRepair, wanted: Mapping[int, int]) -> None:
    """Cover lost offsets, so that none is given out again."""
    for gap in topic.gaps:
        plan.empties.append(_without_records(gap))
        plan.lost.append(_lost(topic.name, gap, gap.last))
    for partition, end in enumerate(topic.ends):
        known = wanted.get(partition, 0)
        after = known if end < known <= end + LEAP else end
        after += LEAP if topic.has_lost else 0
        if after > end:
            gap = Gap(partition, end, after - 1)
            plan.empties.append(_without_records(gap))
            plan.ends[partition] = after
            last = None if topic.has_lost else after - 1
            plan.lost.append(_lost(topic.name, gap, last, next_offset=after))


def _lost(topic: str, gap: Gap, last: int | None, next_offset: int | None = None) -> LostOffsets:
    return LostOffsets(
        topic=topic,
        partition=gap.partition,
        first=gap.first,
        last=last,
        records=None,
        next_offset=next_offset,
    )


def _without_records(gap: Gap) -> BatchHeader:
    """The header of a segment, as compaction writes it, of offsets without a record."""
    return BatchHeader("", gap.partition, gap.first, gap.last, -1, -1, -1, NONE, 0, "")


def _publish(
    topic: SalvagedTopic,
    row: TransactionMetadata,
    plan: TopicRepair,
    broken: Collection[tuple[str, str]],
) -> None:
    """Append what the row publishes in the topic, as its marker commit would; no lost files, nor
    what a segment has.
    """
    if TransactionResult.of(row.state) is not TransactionResult.COMMIT:
        return
    if row.pending.app is not None:
        plan.txns[row.pending.app.app_id] = row.pending.app.version
    sequences: dict[int, int] = {}
    for batch in row.pending.batches:
        is_here = batch.topic_id == topic.topic_id and batch.partition < len(plan.ends)
        is_lacking = is_here and batch.path not in topic.removed
        if is_lacking and (topic.name, batch.path) not in broken:
            plan.adds.append(_placed(row, batch, plan.ends, sequences))


def _placed(
    row: TransactionMetadata, batch: StagedBatch, ends: list[int], sequences: dict[int, int]
) -> BatchHeader:
    base, sequence = ends[batch.partition], sequences.get(batch.partition, 0)
    ends[batch.partition] = base + batch.num_records
    sequences[batch.partition] = sequence + batch.num_records
    return BatchHeader(
        batch.path,
        batch.partition,
        base,
        base + batch.num_records - 1,
        *row.transaction,
        sequence,
        TransactionResult.COMMIT.status,
        batch.size_bytes,
        encode_stats(batch.num_records, batch.timestamp_min_us, batch.timestamp_max_us),
    )
