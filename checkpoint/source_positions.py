"""The positions that a micro-batch read in our topics, per consumer group, from its offset log.

A txnlog source marks its offset JSON with the key ``@``, which is not a valid topic name:
``{"<topic>": {"<partition>": next}, "@": {"cluster", "topics", "group", "generation", "start"}}``.
Lines of other sources and of other clusters are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from checkpoint.offset_seq import OffsetSeq, damaged
from checkpoint.reader import Checkpoint
from txnlog.errors import CheckpointError
from txnlog.protocol.copies import is_in_copy
from txnlog.protocol.decoding import Int64, Natural, PartitionNumber, decode
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.source_offsets import RESERVED_KEY

__all__ = ["group_positions", "groups_of", "source_positions"]

Origins = Mapping[str, Mapping[str, Sequence[int]]]
LoggedPositions = dict[str, dict[PartitionNumber, Natural]]


class _Mark(msgspec.Struct, frozen=True):
    topics: dict[str, str]
    group: str
    generation: Int64
    start: LoggedPositions = {}


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY = msgspec.json.Decoder()
_MARK = msgspec.json.Decoder(_Mark)
_POSITIONS = msgspec.json.Decoder(LoggedPositions)


@dataclass(frozen=True, slots=True)
class _Line:
    mark: _Mark
    positions: LoggedPositions


@dataclass(slots=True)
class _Merged:
    """All lines of one group in one file."""

    generation: int
    positions: LoggedPositions = field(default_factory=dict)
    start: LoggedPositions = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)


def source_positions(
    checkpoint: Checkpoint,
    batch_id: int,
    cluster_id: str,
    *,
    current: OffsetSeq | None = None,
    origins: Origins = MappingProxyType({}),
) -> list[GroupOffsets]:
    """The start and end positions of a batch for each group, sorted by group.

    ``current`` is the batch's offsets if the caller has them: digest and positions then come from
    one read of the file. Empty if no source of this cluster has a group.id. ``origins`` of a copy
    are as in Root.origins: what was planned there, and is in the copy, is this cluster's, too.

    Raises:
        CheckpointError: see ``group_positions``; also if a required file is missing or damaged.
    """
    seq = checkpoint.planned(batch_id) if current is None else current
    file = checkpoint.file_name(f"offsets/{batch_id}")
    if not any(True for _ in _own_lines(seq, cluster_id, file, origins)):
        return []
    previous = checkpoint.planned(batch_id - 1) if batch_id > 0 else None
    return group_positions(
        seq,
        previous,
        cluster_id,
        file=file,
        previous_file=checkpoint.file_name(f"offsets/{batch_id - 1}"),
        origins=origins,
    )


def groups_of(seq: OffsetSeq, cluster_id: str) -> list[str]:
    """The group ids of the sources of this cluster, sorted.

    Raises:
        CheckpointError: a line is damaged.
    """
    return sorted({line.mark.group for line in _own_lines(seq, cluster_id, "offsets")})


def group_positions(
    current: OffsetSeq,
    previous: OffsetSeq | None,
    cluster_id: str,
    *,
    file: str,
    previous_file: str,
    origins: Origins = MappingProxyType({}),
) -> list[GroupOffsets]:
    """Each group's positions, from the offsets of a batch and of the previous one.

    A partition starts at the previous batch's end under the same group, else at ``@.start``: in
    that order, because a source without new data repeats its last JSON, including ``start``. A
    partition in neither is omitted from ``start``: it is new, and is read from the earliest offset.

    Raises:
        CheckpointError: two lines of a group disagree on a position, a generation or a topic id; a
            line is damaged; a group has no start.
    """
    if previous is not None:
        _check_same_sources(current, previous, file, previous_file)
    ends = _merge(_own_lines(current, cluster_id, file, origins), file)
    before = {}
    if previous is not None:
        before = _merge(_own_lines(previous, cluster_id, previous_file, origins), previous_file)
    return [
        GroupOffsets(
            group_id=group,
            generation=merged.generation,
            start=_start(group, merged, before.get(group), file),
            end=merged.positions,
            topic_ids=merged.topic_ids,
        )
        for group, merged in sorted(ends.items())
    ]


def _check_same_sources(
    current: OffsetSeq, previous: OffsetSeq, file: str, previous_file: str
) -> None:
    """Raise for a file truncated at a line end, which only the previous file's count shows."""
    counts = len(current.sources), len(previous.sources)
    if current.version == previous.version == 1 and counts[0] != counts[1]:
        raise damaged(
            file,
            f"it has {counts[0]} sources and {previous_file} has {counts[1]}, though the number of "
            "a query's sources is fixed",
        )


def _own_lines(
    seq: OffsetSeq, cluster_id: str, file: str, origins: Origins = MappingProxyType({})
) -> Iterator[_Line]:
    """Yield the lines of this cluster's sources that have a group.id."""
    known = (cluster_id, *origins)
    for source_id, text in zip(seq.source_ids, seq.sources, strict=True):
        if text is None or not text.startswith("{"):
            continue
        fields = _FIELDS.decode(text)
        if RESERVED_KEY not in fields:
            continue
        raw = fields.pop(RESERVED_KEY)
        mark = decode(_ANY, bytes(raw))
        if not isinstance(mark, dict) or mark.get("cluster") not in known:
            continue
        if mark.get("group") is None:
            continue
        try:
            line = _Line(
                mark=decode(_MARK, bytes(raw)),
                positions=decode(_POSITIONS, msgspec.json.encode(fields)),
            )
        except ValueError as error:
            raise damaged(
                file, f"the offset of source {source_id} is malformed ({error})"
            ) from error
        is_own = mark["cluster"] == cluster_id
        if not is_own and not is_in_copy(line.positions, origins[mark["cluster"]]):
            continue
        without_id = sorted(line.positions.keys() - line.mark.topics.keys())
        if without_id:
            raise damaged(
                file, f"the offset of source {source_id} lacks the id of topic {without_id[0]!r}"
            )
        yield line


def _merge(lines: Iterable[_Line], file: str) -> dict[str, _Merged]:
    """Merge the lines per group; equal lines (of a self-union) become one."""
    groups: dict[str, _Merged] = {}
    for line in lines:
        mark = line.mark
        merged = groups.setdefault(mark.group, _Merged(generation=mark.generation))
        if merged.generation != mark.generation:
            raise CheckpointError(
                f"{file} has group {mark.group!r} under generation {merged.generation} and under "
                f"generation {mark.generation}: two sources of the query started in the group one "
                "after the other. Read the topics with one source (load() once and reuse the "
                "DataFrame), or give each source its own group.id.",
                file=file,
                group_id=mark.group,
            )
        for topic in line.positions:
            topic_id = mark.topics[topic]
            merged_id = merged.topic_ids.setdefault(topic, topic_id)
            if merged_id != topic_id:
                raise _disagreement(file, mark.group, f"topic {topic!r}", merged_id, topic_id)
        _add(merged.positions, line.positions, mark.group, "position", file)
        _add(merged.start, mark.start, mark.group, "start", file)
    return groups


def _add(
    into: LoggedPositions, positions: LoggedPositions, group: str, noun: str, file: str
) -> None:
    for topic, partitions in positions.items():
        merged = into.setdefault(topic, {})
        for partition, offset in partitions.items():
            if merged.setdefault(partition, offset) != offset:
                place = f"the {noun} of topic {topic!r} partition {partition}"
                raise _disagreement(file, group, place, merged[partition], offset)


def _disagreement(file: str, group: str, place: str, one: object, other: object) -> CheckpointError:
    return CheckpointError(
        f"{file} has two values for {place} in group {group!r}: {one} and {other}. Two sources of "
        "the query read it under one group and are at different positions. Read it with one "
        "source (load() once and reuse the DataFrame), or give each source its own group.id.",
        file=file,
        group_id=group,
    )


def _start(group: str, merged: _Merged, before: _Merged | None, file: str) -> LoggedPositions:
    """The start positions of the batch, for the partitions in its end."""
    # A pattern may not have matched a topic yet.
    if before is None and merged.positions and not merged.start:
        raise CheckpointError(
            f"Group {group!r} has no start position: {file} has it without a start and the "
            "previous batch does not have it. If group.id was changed on a running checkpoint, "
            "set it back, or start the query with a new checkpointLocation.",
            file=file,
            group_id=group,
        )
    ends = before.positions if before is not None else {}
    start: LoggedPositions = {}
    for topic, partitions in merged.positions.items():
        candidates = merged.start.get(topic, {}) | ends.get(topic, {})
        starts = {p: candidates[p] for p in partitions if p in candidates}
        if starts:
            start[topic] = starts
    return start
