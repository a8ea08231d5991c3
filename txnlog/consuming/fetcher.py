"""The partitions of a consumer: whose turn it is, what is fetched ahead, when logs are checked."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from txnlog.consuming.fetching import Chunk, Fetched, Key, PartitionReader
from txnlog.errors import TxnLogError
from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.polling import LOCAL_MS, Polling, poll_interval_ms
from txnlog.storage.batches.read_ahead import AHEAD_BYTES, AHEAD_FILES, fetch
from txnlog.storage.tables.topic_log import TopicLog

REFRESH_MS = 100
"""How often the logs are refreshed while there is a backlog."""


class Fetcher:
    """The assigned partitions, read round-robin: none waits for another's backlog."""

    def __init__(
        self,
        *,
        read_committed: bool,
        reset: Callable[[PartitionReader], int],
        now_ms: Callable[[], int],
        tail_each: Callable[[Sequence[TopicLog]], list[TxnLogError | None]],
        configured_ms: int | None = None,
    ) -> None:
        self._read_committed = read_committed
        self._reset = reset
        self._now_ms = now_ms
        self._tail_each = tail_each
        self._configured_ms = configured_ms
        self._polling = Polling()
        self._refreshed_ms = 0
        self._is_drained = False
        self._turns: deque[PartitionReader] = deque()
        self._logs: dict[str, TopicLog] = {}
        self._failures: dict[str, Exception] = {}
        self._unreported: set[str] = set()
        self.fetched = Fetched()
        self.readers: dict[Key, PartitionReader] = {}

    def add(self, log: TopicLog, partition: int) -> PartitionReader:
        """Add a partition, if it is not assigned already, and return its reader."""
        key = (log.name, partition)
        reader = self.readers.get(key)
        if reader is None:
            reader = PartitionReader(
                log, partition, self.fetched, read_committed=self._read_committed
            )
            self._logs[log.name] = log
            self._turns.append(reader)
            self.wake()
            # Last: an interrupt leaves no partition that is listed and never read.
            self.readers[key] = reader
        return reader

    def remove(self, keys: Iterable[Key]) -> None:
        """Remove partitions. If it is interrupted, it can be repeated."""
        removed = set(keys)
        left = [r for r in self._turns if (r.topic, r.partition) not in removed]
        self._turns = deque(left)
        self._logs = {reader.topic: reader.log for reader in left}
        self._failures = {t: error for t, error in self._failures.items() if t in self._logs}
        for key in removed:
            self.readers.pop(key, None)
        self.wake()

    def tail(self, logs: Sequence[TopicLog]) -> None:
        """Tail the topics' logs to their heads, together.

        What cannot be read raises its error when `fetch` comes to its partitions, and no earlier:
        the others are read.
        """
        found = zip(logs, self._tail_each(logs), strict=True)
        self._failures = {log.name: error for log, error in found if error is not None}
        self._unreported = set(self._failures)

    def can_read(self, topic: str) -> bool:
        """Whether the topic's log could be read when it was tailed last."""
        return topic not in self._failures

    def wake(self) -> None:
        """Check the logs at the next `fetch`: what is to be read has changed."""
        self._polling.wake()
        self._is_drained = False

    @property
    def idle_ms(self) -> int:
        """How long `fetch` has nothing to return unless `wake` is called; 0 or less: it may."""
        return self._polling.left_ms(self._now_ms()) if self._is_drained else 0

    def fetch(self, end_ms: float | None = None, *, has_some: bool = False) -> Chunk | None:
        """The next chunk of any partition, None if all are at their ends.

        `has_some`: the caller has records to return. So the logs are checked only where that is
        overdue; and from `end_ms` on (boot clock; None: never) no file is requested from a remote
        store. What is left, and errors of topics that cannot be read, are for the next call.

        Raises OffsetOutOfRangeError with auto.offset.reset=none, CorruptLogError, StorageError. An
        error of one topic does not keep the next calls from reading the others.
        """
        now_ms = self._now_ms()
        if has_some:
            # What fails is tried again at once, by the next call.
            if self._is_late(now_ms) and not self._failures:
                self._refresh(now_ms)
            return self._read(end_ms, has_some=True)
        must_check = self._is_late(now_ms) or (self._is_drained and self._may_check(now_ms))
        if must_check:
            self._refresh(now_ms)
        elif self._is_drained:
            return None
        chunk = self._read()
        if chunk is None and not must_check and self._may_check(now_ms):
            self._refresh(now_ms)
            chunk = self._read()
        self._is_drained = chunk is None
        if chunk is not None:
            self._polling.found()
        return chunk

    def _is_late(self, now_ms: int) -> bool:
        """Whether the logs must be checked, although there is a backlog.

        Since the end of the last check: where one takes long, another must not follow at once.
        """
        is_woken = self._polling.checked_ms is None
        return is_woken or now_ms - self._refreshed_ms >= max(REFRESH_MS, self._interval())

    def _may_check(self, now_ms: int) -> bool:
        """On a local disk a few topics are checked whenever the caller asks."""
        is_cheap = self._interval() <= LOCAL_MS and not self._is_remote
        return (is_cheap and self._configured_ms is None) or self._polling.is_due(now_ms)

    def _interval(self) -> int:
        return poll_interval_ms(
            self._configured_ms, is_remote=self._is_remote, topics=len(self._logs)
        )

    @property
    def _is_remote(self) -> bool:
        return bool(self._turns) and self._turns[0].log.store.is_remote

    def _refresh(self, now_ms: int) -> None:
        self.tail(list(self._logs.values()))
        self._refreshed_ms = self._now_ms()
        interval_ms = self._interval()
        self._polling.checked(now_ms, interval_ms=interval_ms, is_remote=self._is_remote)
        self._is_drained = False
        if any(isinstance(e, TxnLogError) and e.retriable for e in self._failures.values()):
            self._polling.wake()
        for reader in self._turns:
            if reader.is_idle or not self.can_read(reader.topic):
                continue
            # A deleted topic has nothing to read; a subscriber loses it at the next rebalance.
            if reader.is_active and reader.is_plan_empty and reader.log.exists:
                if not reader.is_in_range():
                    reader.seek(self._reset(reader))
                reader.plan()

    def _read(self, end_ms: float | None = None, *, has_some: bool = False) -> Chunk | None:
        """The next chunk of the plans; the arguments are those of `fetch`."""
        for _ in range(len(self._turns)):
            reader = self._turns[0]
            self._turns.rotate(-1)
            if not has_some and reader.topic in self._unreported and not reader.is_paused:
                self._raise_failure(reader.topic)
            if not reader.is_active or (self._is_over(end_ms) and not reader.is_at_hand):
                continue
            if reader.must_fetch:
                self._fetch_ahead(reader)
            chunk = reader.read()
            if chunk is not None:
                return chunk
        return None

    def _is_over(self, end_ms: float | None) -> bool:
        """Whether requests are to be left to the next call; a local disk needs none."""
        return end_ms is not None and self._is_remote and self._now_ms() >= end_ms

    def _raise_failure(self, topic: str) -> None:
        """Raise the error of a topic that cannot be read; all others have their turns first."""
        self._unreported.discard(topic)
        self._turns = deque(sorted(self._turns, key=lambda reader: reader.topic == topic))
        raise self._failures[topic]

    def _fetch_ahead(self, first: PartitionReader) -> None:
        """Fetch the next files together, in the order in which the readers take their turns."""
        store = first.log.store
        left_bytes = AHEAD_BYTES - sum(reader.ahead_bytes for reader in self._turns)
        wanted: list[tuple[PartitionReader, BatchHeader]] = []
        others = [reader for reader in self._turns if reader is not first and reader.is_active]
        for reader, header in _in_turn([first, *others]):
            left_bytes -= header.size_bytes
            if wanted and (left_bytes < 0 or len(wanted) == AHEAD_FILES):
                break
            wanted.append((reader, header))
        paths = [f"{reader.log.path}/{header.path}" for reader, header in wanted]
        for (reader, header), data in zip(wanted, fetch(store, paths), strict=True):
            if data is not None:
                reader.hold(header, data)


def _in_turn(
    readers: Iterable[PartitionReader],
) -> Iterator[tuple[PartitionReader, BatchHeader]]:
    """The files to fetch: the first of each reader, then the second of each, and so on."""
    left = deque((reader, reader.files_to_fetch()) for reader in readers)
    while left:
        reader, files = left.popleft()
        header = next(files, None)
        if header is not None:
            left.append((reader, files))
            yield reader, header
