"""A batch write: one deferred transaction, whose state row is removed when it completes."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from txnlog.coordinator.finishing import finish, finish_own
from txnlog.coordinator.phases import Phases
from txnlog.coordinator.producer_ids import markers_of, unknown_producer_id
from txnlog.coordinator.root import Root
from txnlog.coordinator.staged_files import check_ages, check_batches, check_published
from txnlog.errors import (
    ConcurrentTransactionsError,
    DuplicateTransactionError,
    InvalidTxnStateError,
)
from txnlog.process.clock import OPERATION_ATTEMPTS_MAX
from txnlog.process.failpoint import reach
from txnlog.protocol.app_transactions import is_written, newest_version, transactional_id_of
from txnlog.protocol.metadata import (
    AppTransaction,
    Manifest,
    Owner,
    StagedBatch,
    TransactionMetadata,
)
from txnlog.protocol.transitions import Done, Transition, prepare_one_off_commit
from txnlog.storage.delta.readings import Reading


def commit_one_off(
    root: Root,
    batches: Sequence[StagedBatch],
    owner: Owner,
    *,
    app: AppTransaction | None = None,
    phases: Phases | None = None,
) -> bool:
    """Prepare and finish a batch write. False: not written, all topics already have `app`.

    Raises DuplicateTransactionError if only some of its topics have `app`, LogGapError if they have
    come to know its producer id, what fences or refuses a commit, and as `finish_own`.

    After PREPARE has landed, a missing row means that the write is complete. After a lost reply
    the marker in the first topic shows that; without a marker the write is prepared again.

    All writes of an app id share one transactional.id, so they are decided one after another: the
    row exists while one of them is decided and not yet in all topics. The topics are read after
    the row was found missing, and PREPARE lands only if it is still missing. So the versions read
    are complete, and no process can decide the same pair twice.
    """
    if not batches:
        return False
    write = _BatchWrite(root, batches, owner, app)
    measured = phases or Phases()
    # Before the topics are read: vacuum writes no barrier into a shard that does not exist (R72).
    shard = root.shard_for(write.transactional_id)
    with measured.measure("tail"):
        check_batches(root, batches)
    reach("prepare_commit.before")
    for _ in range(OPERATION_ATTEMPTS_MAX):
        write.identify()
        reading = Reading.begin(root.store.clock)
        try:
            with measured.measure("prepare"):
                row = shard.transition(write.transactional_id, write.decide)
        except DuplicateTransactionError:
            # Topics are read one after another, and another write may have landed meanwhile. Two
            # equal readings without a decided write between them are consistent.
            if write.is_confirmed:
                raise
            shard.refresh()
            continue
        if row is None:
            return not write.is_repeat
        if write.is_of(row):
            reach("prepare_commit.after")
            finish_own(root, row, reading=reading, phases=measured)
            return True
        if not row.state.is_prepared:
            raise InvalidTxnStateError(
                f"A producer uses the transactional.id {write.transactional_id!r}, which belongs "
                "to batch writes. Give the producer another id.",
                transactional_id=write.transactional_id,
            )
        finish(root, row)
    raise ConcurrentTransactionsError(
        f"{write.transactional_id!r}: other processes keep writing with this txnAppId; try again.",
        transactional_id=write.transactional_id,
    )


class _BatchWrite:
    """One batch write.

    `is_repeat`: all topics have its `app`. `is_confirmed`: the last two readings were equal.
    """

    def __init__(
        self,
        root: Root,
        batches: Sequence[StagedBatch],
        owner: Owner,
        app: AppTransaction | None,
    ) -> None:
        self._root = root
        self._batches = tuple(batches)
        self._owner = owner
        self._app = app
        self._topics = sorted({batch.topic for batch in batches})
        self.transactional_id = (
            f"_batch-{uuid.uuid4()}" if app is None else transactional_id_of(app.app_id)
        )
        self._producer_id = -1
        self._is_tried = False
        self.is_repeat = False
        self.is_confirmed = False
        self._read: dict[str, int] = {}

    def identify(self) -> None:
        """Take a producer id that the topics, which were read, do not know."""
        if not self._is_tried:
            self._producer_id = unknown_producer_id(self._root, self._topics)

    def is_of(self, row: TransactionMetadata) -> bool:
        """Whether the row is this write's: no other one has its files."""
        return row.pending.batches == self._batches

    def decide(self, row: TransactionMetadata | None) -> Transition | Done:
        """PREPARE_COMMIT; Done with an existing row, or with None if all is written."""
        if row is None and self._is_written():
            return Done(None)
        decision = prepare_one_off_commit(
            row,
            transactional_id=self.transactional_id,
            producer_id=self._producer_id,
            manifest=Manifest(batches=self._batches, app=self._app),
            owner=self._owner,
            markers=markers_of(self._root, self._producer_id, self._topics),
            now_ms=self._root.store.clock.now_ms(),
        )
        if isinstance(decision, Transition):
            check_ages(self._root, self._batches)
            self._is_tried = True
        return decision

    def _is_written(self) -> bool:
        if self._is_tried and self._is_published():
            return True
        if self._app is not None:
            before, self._read = self._read, self._versions(self._app.app_id)
            self.is_confirmed = self._read == before
            self.is_repeat = is_written(self._app, self._read)
        return self.is_repeat

    def _is_published(self) -> bool:
        """Whether an earlier try was decided, and is complete since; as `check_published`."""
        first = self._root.topic_log(self._topics[0])
        if first.log.exists:
            first.refresh()
        if first.view.markers.get(self._producer_id, -1) < 0:
            return False
        own = [batch for batch in self._batches if batch.topic == first.name]
        missing = [batch for batch in own if batch.path not in first.view.by_path]
        check_published(first, missing, self.transactional_id)
        return True

    def _versions(self, app_id: str) -> dict[str, int]:
        """Topic -> its newest version of the app id."""
        versions = {}
        for topic in self._topics:
            log = self._root.topic_log(topic)
            log.refresh()
            properties = {} if log.log.metadata is None else log.log.metadata.configuration
            versions[topic] = newest_version(
                log.view.txns,
                app_id,
                configuration=properties,
                now_ms=self._root.store.now_ms(),
            )
        return versions
