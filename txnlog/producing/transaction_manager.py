"""A producer's transactions, as its calls see them: state, buffered records, the coordinator.

Mirrors org.apache.kafka.clients.producer.internals.TransactionManager. Each call enters its state,
holds `io`, retries until its deadline, and records in the state what came of it. One attempt of a
call at the coordinator is in txnlog.producing.producer_session.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from txnlog.coordinator.staged_files import Staging
from txnlog.errors import (
    CommitStateUnknownError,
    InvalidTxnStateError,
    OperationTimedOutError,
    ProducerFencedError,
    TxnLogError,
    UnknownTopicIdError,
)
from txnlog.messages import ConsumerGroupMetadata, TopicPartition
from txnlog.process.client_metrics import Times
from txnlog.process.failures import parts_of, unexpected
from txnlog.producing.deadlines import Deadline
from txnlog.producing.destinations import Destinations
from txnlog.producing.lifecycle import Lifecycle
from txnlog.producing.producer_session import ProducerSession
from txnlog.producing.publishing import Deferred, Outlet, aborted
from txnlog.producing.requests import Eager
from txnlog.producing.sender import Sender
from txnlog.producing.table_writes import TableWrites
from txnlog.protocol.producer_states import (
    LifecycleState,
    ProducerCall,
    failed_call,
    failed_state,
    failed_transaction,
)

logger = logging.getLogger("txnlog")

T = TypeVar("T")

_WITHOUT_TRANSACTION = frozenset({ProducerCall.INIT, ProducerCall.BEGIN, ProducerCall.ABORT})
"""Calls after whose errors no transaction is open that could be aborted."""


class TransactionManager:
    """The transactions of one producer. Any thread may call it."""

    def __init__(
        self,
        session: ProducerSession,
        *,
        lifecycle: Lifecycle,
        sender: Sender,
        destinations: Destinations,
        outlet: Outlet,
        is_eager: bool,
    ) -> None:
        self.session = session
        self.is_eager = is_eager
        self._lifecycle = lifecycle
        self._sender = sender
        self._destinations = destinations
        self._outlet = outlet
        self.commits = Times()
        self.aborts = 0

    @property
    def prepared_state(self) -> str | None:
        """State of the prepared transaction; None when there is none."""
        if self._lifecycle.state is not LifecycleState.PREPARED:
            return None
        return self.session.prepared_state

    def init(self, deadline: Deadline, *, keep_prepared: bool) -> None:
        call = ProducerCall.INIT
        number = self._lifecycle.enter(call)

        def init() -> None:
            if self._lifecycle.has_ended(call, number):
                return
            is_kept = deadline.retry(lambda: self.session.init(keep_prepared=keep_prepared))
            row = self.session.row
            logger.info(
                "Producer %r is initialised: producer id %d, epoch %d",
                self.session.transactional_id,
                row.producer_id,
                row.producer_epoch,
            )
            self._lifecycle.move(LifecycleState.PREPARED if is_kept else LifecycleState.READY)

        self._run(call, number, deadline, init)

    def begin(self, deadline: Deadline) -> None:
        call = ProducerCall.BEGIN
        self._lifecycle.check_usable()
        self._lifecycle.check_call(call)
        if self.session.is_stale:
            number = self._lifecycle.transaction
            self._run(call, number, deadline, lambda: deadline.retry(self.session.renew))

        def reset() -> None:
            self.session.begin()
            self._sender.publication = (
                Eager(self._outlet, open_partitions=self.session.open)
                if self.is_eager
                else Deferred(self._outlet)
            )

        # Checked again: another thread may have begun.
        self._lifecycle.begin(reset)

    def add_offsets(
        self,
        positions: Sequence[TopicPartition],
        group: ConsumerGroupMetadata,
        deadline: Deadline,
    ) -> None:
        call = ProducerCall.SEND_OFFSETS
        number = self._lifecycle.enter(call)

        def add() -> None:
            self.session.add_offsets(positions, group, eager=self.is_eager)

        self._run(call, number, deadline, lambda: deadline.retry(add))

    def write_table(self, write: Callable[[TableWrites], None], deadline: Deadline) -> None:
        """Stage rows for a table of others."""
        call = ProducerCall.WRITE_TABLE
        number = self._lifecycle.enter(call)

        def stage() -> None:
            write(self.session.tables)

        self._run(call, number, deadline, lambda: deadline.retry(stage))

    def prepare(self, deadline: Deadline) -> str:
        call = ProducerCall.PREPARE
        number = self._lifecycle.enter(call)

        def prepare() -> str:
            if self._lifecycle.state is LifecycleState.PREPARED:
                return self.session.prepared_state
            staging = self._flush(deadline)
            state = deadline.retry(lambda: self.session.prepare(staging))
            self._lifecycle.move(LifecycleState.PREPARED)
            return state

        return self._run(call, number, deadline, prepare)

    def complete(self, state: str | None, deadline: Deadline) -> bool:
        """Commit if `state` is that of the prepared transaction, else abort; whether it committed.

        A transaction that is being aborted stays so (R41).
        """
        number = self._lifecycle.enter(ProducerCall.COMPLETE)
        entered = self._lifecycle.state
        if state == self.session.prepared_state and entered is not LifecycleState.ABORTING:
            self.commit(deadline, of=number)
            return True
        if entered is LifecycleState.COMMITTING:
            raise InvalidTxnStateError(
                f"This producer is committing {self.session.prepared_state}; it cannot complete "
                f"{state!r} now. Call commit_transaction() again.",
                state=entered.name,
            )
        self.abort(deadline, of=number)
        return False

    def commit(self, deadline: Deadline, *, of: int | None = None) -> None:
        """Commit the transaction of this number, or the one that is open."""
        call = ProducerCall.COMMIT
        number = self._lifecycle.enter(call, of=of)

        def commit() -> None:
            if self._lifecycle.has_ended(call, number):
                return
            with self.commits.timing():
                staging = self._flush(deadline)
                publication = self._sender.publication
                if not self.session.is_empty(staging):
                    deadline.retry(lambda: self.session.commit(staging))
                    if isinstance(publication, Deferred):
                        publication.report()
            self._end()

        self._run(call, number, deadline, commit)

    def abort(self, deadline: Deadline, *, of: int | None = None) -> None:
        """Abort the transaction of this number, or the one that is open."""
        call = ProducerCall.ABORT
        number = self._lifecycle.enter(call, of=of)

        def abort() -> None:
            if self._lifecycle.has_ended(call, number):
                return
            self._sender.discard_held(aborted(self.session.transactional_id))
            deadline.retry(self.session.abort)
            self.aborts += 1
            logger.info("Producer %r has aborted its transaction", self.session.transactional_id)
            self._end()

        self._run(call, number, deadline, abort)

    def close(self, deadline: Deadline) -> None:
        """Write the COMPLETE that the last commit has left.

        An error is not the caller's: what was committed is visible, and any process completes it.
        """
        try:
            self._sender.exclusively(deadline, self.session.complete)
        except TxnLogError as error:
            logger.debug(
                "COMPLETE of %r is left to others: %s", self.session.transactional_id, error
            )

    def left_by_close(self) -> CommitStateUnknownError | None:
        """The error of records that are committed, or may be; None if they are not."""
        if not (self.session.has_row and self.session.may_be_committed):
            return None
        return CommitStateUnknownError(
            "The producer was closed before it learned whether the transaction of "
            f"{self.session.transactional_id!r} is committed, and with it this record. Read the "
            "topic before you produce it again, after the next init_transactions() of this id.",
            transactional_id=self.session.transactional_id,
            # Producing the record again might write it twice.
            retriable=False,
        )

    # -- inside ----------------------------------------------------------------------------------

    def _end(self) -> None:
        self._sender.publication = None
        self._lifecycle.end_transaction(self.session.fenced_error)

    def _flush(self, deadline: Deadline) -> Staging:
        """Send all records; those of a deferred transaction are still to be written to files.

        Raises for a failed send (R40).
        """
        publication = self._sender.publication
        if publication is None:
            return Staging.done(())
        self._sender.flush(deadline)
        error = publication.error
        if error is not None:
            if failed_state(error, self._lifecycle.state) is LifecycleState.FATAL_ERROR:
                raise error
            raise failed_transaction(error) from error
        return publication.staging if isinstance(publication, Deferred) else Staging.done(())

    def _run(
        self, call: ProducerCall, number: int, deadline: Deadline, action: Callable[[], T]
    ) -> T:
        """Make a call while `io` is held; record in the state the error that ends it.

        What other threads did to its transaction, of this number, while it waited is its error,
        and changes nothing.
        """
        refused: TxnLogError | None = None

        def act() -> T | None:
            nonlocal refused
            if not self._lifecycle.has_ended(call, number):
                refused = self._lifecycle.overtaken(call, number)
            return action() if refused is None else None

        try:
            found = self._sender.exclusively(deadline, act)
        except OperationTimedOutError:
            # The state says which call may be repeated.
            raise
        except Exception as raised:
            error = self._fail(call, unexpected(raised, call.value))
            shown = failed_call(error, self._lifecycle.state)
            if shown is raised:
                raise
            raise shown from raised
        if refused is not None:
            raise refused
        return cast(T, found)

    def _fail(self, call: ProducerCall, error: TxnLogError) -> TxnLogError:
        """Record an error; returns it, or one that says that the commit may be decided."""
        self.session.note_failure(error)
        if isinstance(error, ProducerFencedError):
            logger.info("Producer %r is fenced: %s", self.session.transactional_id, error)
        if any(isinstance(one, UnknownTopicIdError) for one in parts_of(error)):
            self._destinations.forget_all()
        to = failed_state(error, self._lifecycle.state)
        if call is ProducerCall.COMMIT:
            try:
                # If it is decided, no error of its later steps undoes it.
                if self.session.has_ended or self.session.is_committed():
                    return error
            except Exception:
                return error if error.fatal else self._unsettled(error)
        if to is not LifecycleState.ABORTABLE_ERROR or call not in _WITHOUT_TRANSACTION:
            self._lifecycle.fail(error, to)
        return error

    def _unsettled(self, error: TxnLogError) -> CommitStateUnknownError:
        return CommitStateUnknownError(
            f"Whether the transaction of {self.session.transactional_id!r} is committed cannot be "
            "read now: call commit_transaction() again. The commit has failed with "
            f"{type(error).__name__}: {error.message}",
            transactional_id=self.session.transactional_id,
        )
