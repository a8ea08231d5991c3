"""A streaming query, as Spark's source and sink run it: failed batches are retried."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.consumer.records import staged
from tests.machine.actors import Actor, Kind
from tests.machine.copiers import EVERYTHING, consumer
from tests.machine.world import COPIES, JOBS, SOURCE, World, seen
from txnlog.coordinator.finishing import finish
from txnlog.errors import StorageError, TxnLogError
from txnlog.messages import Message
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import LastBatch, Owner, StagedBatch, TransactionMetadata
from txnlog.testing.auditor import AuditedTransaction


class Query(Actor):
    """One run of a query. A batch with an unknown outcome is retried before the next one.

    It reads under a generation of its own, and commits its input with the start of each batch.
    """

    def __init__(self, world: World, kind: Kind, number: int, *, keep: bool = False) -> None:
        super().__init__(world, kind, number)
        self.cluster = self.process.open()
        self.reader = consumer(self.process, JOBS, "read_committed")
        self.row: TransactionMetadata | None = None
        self.batch_id = 0
        self.txn: AuditedTransaction | None = None
        self._again: Callable[[], None] | None = None

    def start(self) -> None:
        self.call(lambda: self.reader.assign(EVERYTHING))

    def refused(self, error: TxnLogError) -> None:
        """Errors other than the store's fail the query."""
        if isinstance(error, StorageError):
            return
        self.is_dead = True
        if self.txn is not None and self._again is None:
            self.txn.settle(committed=False)

    def work(self, places: Sequence[tuple[str, int]], end: str) -> None:
        """The next batch, or the last one again."""
        if self._again is None:
            self.call(lambda: self._plan(1 + len(places)))
        elif self.call(self._again) == "done":
            self._again = None

    def _plan(self, count: int) -> None:
        coordinator = self.cluster.coordinator
        if self.row is None:
            owner = Owner(run_id=self.name, query_id=self.kind.name)
            self.row = coordinator.init_producer_id(self.kind.name, owner)
        elif self.row.state.is_prepared:
            # As the sink does where COMPLETE of the batch before is left.
            self.row = finish(self.cluster, self.row) or self.row
        self.is_dead = self.row.owner.run_id != self.name
        if self.is_dead:
            return
        self.world.check_epoch(self.row, self)
        held = {p.partition: p.offset for p in self.reader.position(EVERYTHING)}
        found = self.reader.consume(count, 0)
        if not found:
            return
        ends = {m.partition(): (m.offset() or 0) + 1 for m in found}
        # Before the first poll there is no position, and nothing has been read.
        starts = {n: at for n, at in held.items() if n in ends and at >= 0}
        self.batch_id += 1
        self.txn = self.world.auditor.begin(is_whole=True)
        try:
            batches = self._stage(self.txn, found)
        except StorageError:
            # A task failed: the next run reads its input again.
            self.is_dead = True
            raise
        offsets = GroupOffsets(
            group_id=JOBS,
            generation=self.reader.consumer_group_metadata().generation,
            start={SOURCE: starts},
            end={SOURCE: ends},
        )
        txn, row = self.txn, self.row
        last = LastBatch(batch_id=self.batch_id, topics=(COPIES,))

        def commit() -> None:
            self.row = coordinator.commit(row, batches, offsets=[offsets], last_batch=last)
            txn.settle(committed=True)
            self.txn = None
            seen["query: commit"] += 1

        try:
            commit()
        except StorageError:
            self._again = commit
            raise

    def _stage(self, txn: AuditedTransaction, found: Sequence[Message]) -> list[StagedBatch]:
        """One file per record, as separate tasks would write them."""
        auditor, batches = self.world.auditor, []
        for message in found:
            source = SOURCE, message.partition()
            origin = JOBS, source, message.offset() or 0
            value = auditor.name_record(self.name, txn, COPIES, copy_of=origin)
            auditor.take(value)
            data = [value.encode()]
            batches.append(staged(self.cluster, data, topic=COPIES, partition=message.partition()))
        return batches
