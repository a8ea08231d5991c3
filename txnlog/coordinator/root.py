"""The logs below one root: what every step of a commit reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from txnlog.errors import NotCoordinatorError, TxnLogError
from txnlog.protocol.expiry import CLOCK_ERROR_MS
from txnlog.protocol.leases import Lease
from txnlog.protocol.partitioner import murmur2
from txnlog.protocol.topics import check_topic_name
from txnlog.protocol.txn_memory import TxnMemory
from txnlog.storage.delta.log_settings import LogSettings
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.cluster_log import ClusterLog
from txnlog.storage.tables.row_log import OffsetsLog, TransactionLog
from txnlog.storage.tables.topic_log import TopicLog

R = TypeVar("R")


class Root:
    """Handles on the logs of one root, as of their last refresh. Not thread-safe."""

    def __init__(self, store: ObjectStore, *, settings: LogSettings) -> None:
        self.store = store
        self.settings = settings
        self.offsets = OffsetsLog(store, settings=settings)
        self._meta = ClusterLog(store, settings=settings)
        self._topics: dict[str, TopicLog] = {}
        self._shards: dict[int, TransactionLog] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"

    @property
    def root(self) -> str:
        return self.store.url

    @property
    def cluster_id(self) -> str:
        return self._meta.cluster_id

    @property
    def shards(self) -> int:
        return self._meta.shards

    def topic_log(self, name: str, *, internal: bool = False) -> TopicLog:
        """Handle of a topic that may not exist, as of its last refresh."""
        check_topic_name(name, internal=internal)
        log = self._topics.get(name)
        if log is None:
            log = TopicLog(self.store, name, settings=self.settings)
            self._topics[name] = log
        return log

    def refresh_together(self, logs: Iterable[TopicLog | TransactionLog | OffsetsLog]) -> None:
        """Tail logs to their heads, together; each may be given several times.

        All are tried, then the first error is raised.
        """
        distinct = {id(log): log for log in logs}
        self.store.together([log.refresh for log in distinct.values()])

    def tail_each(self, logs: Sequence[TopicLog]) -> list[TxnLogError | None]:
        """Tail distinct logs together; for each its error, or None."""
        return self.store.together([partial(_tail, log) for log in logs])

    def all_shards(self) -> list[TransactionLog]:
        """All shards of the transaction log, tailed to their heads together."""
        missing = [number for number in range(self.shards) if number not in self._shards]
        opened = self.store.together([partial(self._open_shard, number) for number in missing])
        self._shards.update(zip(missing, opened, strict=True))
        found = [self._shards[number] for number in range(self.shards)]
        self.refresh_together(found)
        return found

    def shard_of(self, transactional_id: str) -> int:
        """Which shard of the transaction log holds this id."""
        return (murmur2(transactional_id.encode()) & 0x7FFFFFFF) % self.shards

    def shard_for(self, transactional_id: str) -> TransactionLog:
        """The shard of the transaction log that holds this id; raises as `shard`."""
        return self.shard(self.shard_of(transactional_id))

    def shard(self, number: int) -> TransactionLog:
        """A shard of the transaction log, created on first use.

        Raises NotCoordinatorError if it belongs to another cluster.
        """
        log = self._shards.get(number)
        if log is None:
            log = self._shards[number] = self._open_shard(number)
        return log

    def _open_shard(self, number: int) -> TransactionLog:
        log = TransactionLog(self.store, number, settings=self.settings)
        expected = f"{self.cluster_id}-{number}"
        log.create(expected, {})
        found = log.log.metadata
        if found is not None and found.id != expected:
            raise NotCoordinatorError(
                f"{log.path} at {self.root} has id {found.id}, not {expected}: the cluster "
                "was created again, maybe with another number of shards, since this process "
                "opened it. Open it again.",
                table=log.path,
            )
        return log

    def offsets_log(self) -> OffsetsLog:
        """`__consumer_offsets`, created on first use."""
        if not self.offsets.log.exists:
            self.offsets.create(f"{self.cluster_id}-offsets", {})
        return self.offsets

    def vacuum_age_ms(self, topics: Iterable[str]) -> int:
        """Smallest vacuum age in the barrier commits of these topics and the shards read so far.

        A commit after such a barrier has read it.
        """
        return min(known.vacuum_age_ms for known in self._memories(topics))

    def store_now_ms(self, topics: Iterable[str]) -> int:
        """The store's time, or that of the newest vacuum of these topics if that is later.

        The clocks of a process that was paused may be behind. It still reads the time of the
        barrier below its commit, and so rejects a file that this vacuum found old enough to delete.
        """
        vacuumed_ms = max(known.vacuumed_ms for known in self._memories(topics))
        now_ms = self.store.now_ms()
        if vacuumed_ms > now_ms + CLOCK_ERROR_MS:
            self.store.forget_clock()
        return max(now_ms, vacuumed_ms)

    def _memories(self, topics: Iterable[str]) -> list[TxnMemory]:
        views = [self.topic_log(topic).view.txns for topic in topics]
        return views + [shard.view.txns for shard in self._shards.values()]

    def next_producer_id(self) -> int:
        return self._meta.next_producer_id()

    def change_lease(self, name: str, decide: Callable[[Lease | None], Lease | R]) -> Lease | R:
        """See ClusterLog.change_lease."""
        return self._meta.change_lease(name, decide)


def _tail(log: TopicLog) -> TxnLogError | None:
    try:
        log.refresh()
    except TxnLogError as error:
        return error
    return None
