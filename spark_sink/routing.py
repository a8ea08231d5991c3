"""Which topic and partition each row of a task goes to, and whether its topic takes it.

A lane is one topic-partition of the task, known by a small integer, so that rows are routed and
sorted as integers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from spark_sink.rows import Rows
from txnlog.errors import (
    InvalidRecordError,
    InvalidTopicError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from txnlog.protocol.partitioner import partition_for_keys, sticky_partitions
from txnlog.protocol.topics import check_topic_name
from txnlog.settings.topic_configs import config_value, is_compacted

MAX_MESSAGE_BYTES = "max.message.bytes"
# Rows without key and partition go to one partition for so many bytes, then to the next one.
STICKY_RUN_BYTES = 1 << 20

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class Topic(Protocol):
    """What the sink asks of a txnlog.storage.tables.topic_log.TopicLog."""

    @property
    def name(self) -> str: ...
    @property
    def topic_id(self) -> str: ...
    @property
    def partitions(self) -> int: ...
    @property
    def config(self) -> Mapping[str, str]: ...
    @property
    def path(self) -> str: ...


class Topics(Protocol):
    """What the sink asks of a txnlog.cluster.Cluster to find topics."""

    def topic(self, name: str) -> Topic: ...
    def create_topic(
        self, name: str, *, partitions: int | None = None, exist_ok: bool = False
    ) -> Topic: ...


@dataclass(slots=True)
class Destination:
    """One topic this task writes to; `sticky_bytes` counts what went there without a key."""

    log: Topic
    partitions: int
    message_bytes_max: int
    needs_key: bool
    first_lane: int
    sticky_seed: int
    sticky_bytes: int = 0


class Router:
    """Gives every row its lane: `destination.first_lane + partition`.

    The topic comes from the option, else the column; the partition from the column, else
    Kafka's hash of the key, else sticky. Missing topics are created when `auto_create` is on.
    """

    def __init__(
        self,
        topics: Topics,
        *,
        topic: str | None,
        auto_create: bool,
        partitions: int | None = None,
        seed: int | None = None,
    ) -> None:
        self._topics = topics
        self._option = topic
        self._auto_create = auto_create
        self._partitions_of_new = partitions
        self._random = random.Random(seed)
        self._by_name: dict[str, int] = {}
        self._destinations: list[Destination] = []
        self._lanes = 0

    def lanes(self, rows: Rows, sizes: Int64s) -> Int32s:
        """The lane of each row. `sizes`: bytes of each record, by txnlog.storage.batches.records.

        Raises RecordTooLargeError, InvalidRecordError naming the row, InvalidTopicError,
        UnknownTopicOrPartitionError.
        """
        count = rows.records.num_rows
        places = self._places(rows)
        used = np.unique(places) if isinstance(places, np.ndarray) else np.array([places])
        partitions = np.full(count, -1, dtype=np.int32)
        if rows.partitions is not None:
            partitions[:] = rows.partitions
        first_lanes = np.empty(count, dtype=np.int32)
        for place in used:
            destination = self._destinations[place]
            of = slice(None) if len(used) == 1 else np.flatnonzero(places == place)
            self._check(rows, sizes[of], partitions[of], destination, of)
            first_lanes[of] = destination.first_lane
        if partitions.size and partitions.min() < 0:
            self._hash_keys(rows, places, used, partitions)
            self._stick(sizes, places, used, partitions)
        first_lanes += partitions
        return first_lanes

    def place(self, lane: int) -> tuple[Topic, int]:
        """The topic and partition of a lane."""
        for destination in reversed(self._destinations):
            if lane >= destination.first_lane:
                return destination.log, lane - destination.first_lane
        raise IndexError(lane)

    def _places(self, rows: Rows) -> npt.NDArray[np.int32] | int:
        """Index of each row's destination, or the one that all of them share."""
        if rows.topics is None:
            assert self._option is not None
            return self._destination(check_topic_name(self._option))
        encoded = pc.dictionary_encode(rows.topics)
        names = encoded.dictionary.to_pylist()
        try:
            # All names, before a topic is created for one of them.
            for name in names:
                check_topic_name(name)
            known = [self._destination(name) for name in names]
        except (InvalidTopicError, UnknownTopicOrPartitionError) as error:
            place = names.index(error.topic)
            row = rows.first_row + int(pc.index(encoded.indices, place).as_py())
            message = f"Row {row} of this task, column topic: {error.message}"
            raise type(error)(message, **error.context, row=row) from error
        if len(known) == 1:
            return known[0]
        places: npt.NDArray[np.int32] = np.array(known, dtype=np.int32)[encoded.indices.to_numpy()]
        return places

    def _destination(self, name: str) -> int:
        found = self._by_name.get(name)
        if found is None:
            log = self._find(name)
            found = self._by_name[name] = len(self._destinations)
            self._destinations.append(
                Destination(
                    log=log,
                    partitions=log.partitions,
                    message_bytes_max=int(config_value(log.config, MAX_MESSAGE_BYTES)),
                    needs_key=is_compacted(log.config),
                    first_lane=self._lanes,
                    sticky_seed=self._random.randrange(1 << 30),
                )
            )
            self._lanes += log.partitions
        return found

    def _find(self, name: str) -> Topic:
        try:
            return self._topics.topic(name)
        except UnknownTopicOrPartitionError:
            if not self._auto_create:
                raise
        return self._topics.create_topic(name, partitions=self._partitions_of_new, exist_ok=True)

    def _check(
        self,
        rows: Rows,
        sizes: Int64s,
        partitions: Int32s,
        to: Destination,
        of: slice | npt.NDArray[np.int64],
    ) -> None:
        """Refuse records above max.message.bytes (R65), of no key, of no partition."""

        def row_of(bad: npt.NDArray[np.bool_]) -> tuple[int, int]:
            at = int(np.argmax(bad))
            return at, rows.first_row + (at if isinstance(of, slice) else int(of[at]))

        if sizes.size and sizes.max() > to.message_bytes_max:
            at, row = row_of(sizes > to.message_bytes_max)
            raise RecordTooLargeError(
                f"Row {row} of this task: a record of {sizes[at]} bytes is larger than "
                f"{MAX_MESSAGE_BYTES} = {to.message_bytes_max} of topic {to.log.name}. Nothing of "
                "this batch is published. Split the record, or raise the topic's setting.",
                row=row,
                topic=to.log.name,
                size_bytes=int(sizes[at]),
                size_bytes_max=to.message_bytes_max,
            )
        keys = rows.records.column("key")
        if to.needs_key and keys.null_count:
            keyless = keys.is_null().to_numpy(zero_copy_only=False)[of]
            if keyless.any():
                _, row = row_of(keyless)
                raise InvalidRecordError(
                    f"Row {row} of this task has no key, and topic {to.log.name} keeps the newest "
                    "record of each key (cleanup.policy=compact). Nothing of this batch is "
                    "published. Give the row a key, or leave it out.",
                    row=row,
                    topic=to.log.name,
                )
        if partitions.size and partitions.max() >= to.partitions:
            at, row = row_of(partitions >= to.partitions)
            raise InvalidRecordError(
                f"Row {row} of this task: partition {partitions[at]} does not exist, topic "
                f"{to.log.name} has {to.partitions} partitions, 0 to {to.partitions - 1}. Correct "
                "the column partition, or leave it null for the key to decide.",
                row=row,
                topic=to.log.name,
                partition=int(partitions[at]),
                partitions=to.partitions,
            )

    def _hash_keys(
        self,
        rows: Rows,
        places: npt.NDArray[np.int32] | int,
        used: npt.NDArray[np.int32],
        partitions: Int32s,
    ) -> None:
        """Fill in partitions by key; -1 stays where the key is null."""
        keys = rows.records.column("key")
        if keys.null_count == len(keys):
            return
        counts = np.array([destination.partitions for destination in self._destinations])
        for count in np.unique(counts[used]):
            hashed = partition_for_keys(keys, int(count))
            undecided = partitions < 0
            if isinstance(places, np.ndarray):
                undecided &= counts[places] == count
            np.copyto(partitions, hashed, where=undecided)

    def _stick(
        self,
        sizes: Int64s,
        places: npt.NDArray[np.int32] | int,
        used: npt.NDArray[np.int32],
        partitions: Int32s,
    ) -> None:
        """Spread rows without key and partition in runs of STICKY_RUN_BYTES."""
        undecided = np.flatnonzero(partitions < 0)
        if undecided.size == 0:
            return
        for place in used:
            to = self._destinations[place]
            mine = undecided
            if isinstance(places, np.ndarray):
                mine = undecided[places[undecided] == place]
            if mine.size == 0:
                continue
            partitions[mine], to.sticky_bytes = sticky_partitions(
                sizes[mine],
                seed=to.sticky_seed,
                partitions=to.partitions,
                sent_bytes=to.sticky_bytes,
                run_bytes=STICKY_RUN_BYTES,
            )
