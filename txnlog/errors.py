"""All errors of txnlog, by what a handler should do.

    TxnLogError
    |- retriable   repeat the same call                   StorageError, ConcurrentTransactionsError
    |- abortable   abort the transaction, then continue   TransactionAbortableError, ...
    |- fatal       stop this client or query              ProducerFencedError, CorruptLogError
    `- none        the call had no effect; the client     ConfigError, RecordTooLargeError,
                   continues unchanged                    InvalidTxnStateError

At most one of the three flags is true. They are no base classes, as one error is fatal to one call
and not to another. A producer whose transaction has failed raises only
abortable errors: TransactionAbortableError with the cause where the cause is not abortable itself.
`code` is Kafka's error code (org.apache.kafka.common.protocol.Errors), None where Kafka has no such
error. Keyword arguments of an error become attributes, so handlers need not parse messages.
"""

from __future__ import annotations

from typing import TypeVar

from txnlog.text import printable

__all__ = [
    "BucketNotFoundError",
    "BufferExhaustedError",
    "CheckpointError",
    "ClientStateError",
    "CommitStateUnknownError",
    "ConcurrentTransactionsError",
    "ConfigError",
    "CorruptLogError",
    "DataLossError",
    "DuplicateSequenceError",
    "DuplicateTransactionError",
    "FencedInstanceIdError",
    "FolderNotFoundError",
    "ForeignTableError",
    "ForkedProcessError",
    "GroupAuthorizationError",
    "GroupIdNotFoundError",
    "IllegalGenerationError",
    "InconsistentGroupProtocolError",
    "InvalidCommitError",
    "InvalidPartitionsError",
    "InvalidProducerEpochError",
    "InvalidProducerIdMappingError",
    "InvalidRecordError",
    "InvalidTopicError",
    "InvalidTxnStateError",
    "InvalidTxnTimeoutError",
    "LogGapError",
    "NonEmptyGroupError",
    "NotCoordinatorError",
    "NotSyncedError",
    "NothingWrittenError",
    "ObjectNotFoundError",
    "OffsetConflictError",
    "OffsetMetadataTooLargeError",
    "OffsetOutOfRangeError",
    "OperationTimedOutError",
    "OutOfMemoryError",
    "OutOfOrderSequenceError",
    "OutcomeLostError",
    "PartitionEndError",
    "ProducerFencedError",
    "RebalanceInProgressError",
    "RecordPurgedError",
    "RecordTooLargeError",
    "SnapshotNotFoundError",
    "StagedFileTooOldError",
    "StorageError",
    "StorePermissionError",
    "TableChangedError",
    "TableConflictError",
    "TableDataError",
    "TableFeatureError",
    "TopicAlreadyExistsError",
    "TopicAuthorizationError",
    "TransactionAbortableError",
    "TransactionAbortedError",
    "TransactionalIdAuthorizationError",
    "TransactionalIdNotFoundError",
    "TxnLogError",
    "UnexpectedError",
    "UnknownMemberIdError",
    "UnknownProducerIdError",
    "UnknownTableError",
    "UnknownTopicIdError",
    "UnknownTopicOrPartitionError",
    "UnstableOffsetCommitError",
    "UnsupportedProtocolError",
    "UnsupportedStoreError",
]

E = TypeVar("E", bound="TxnLogError")

FLAGS = ("retriable", "abortable", "fatal")

RESTORE_ALL = "Restore all tables of the root together, from one backup."
"""The advice after a loss: one table of an older state does not fit the others."""
RESTORE_FILE = (
    "Restore this very file from a backup or a replica of the root; without it, all tables of the "
    "root together, from one backup."
)
"""The advice for one file, which never changes once it is written."""


class TxnLogError(Exception):
    """Base of all errors: a message for people, attributes for programs.

    `code` and the flags are those of the class, unless set for this instance. Names in the text are
    untrusted: it is printable, in `lines` that only the raiser separates. `message` is all of them
    on one line. The attributes are exact.
    """

    code: int | None = None
    retriable: bool = False
    abortable: bool = False
    fatal: bool = False

    def __init__(self, message: str, *more_lines: str, **context: object) -> None:
        self.lines = tuple(map(printable, (message, *more_lines)))
        super().__init__("\n".join(self.lines))
        self.message = " ".join(self.lines)
        self.context = context
        if context:
            self.__dict__.update((name, context[name]) for name in _OVERRIDABLE if name in context)

    def replace(self: E, *lines: str, **context: object) -> E:
        """The same error with another text, if given, or other flags or attributes."""
        return _rebuild(type(self), lines or self.lines, {**self.context, **context})

    def __getattr__(self, name: str) -> object:
        context = self.__dict__.get("context", {})
        if name in context:
            return context[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.lines, self.context)


_OVERRIDABLE = ("code", *FLAGS)


def _rebuild(cls: type[E], lines: tuple[str, ...], context: dict[str, object]) -> E:
    first, *more = lines
    return cls(first, *more, **context)


# -- invalid requests ----------------------------------------------------------------------------


class ConfigError(TxnLogError, ValueError):
    """An option or setting is missing, malformed, or contradicts another one."""


class ClientStateError(TxnLogError, RuntimeError):
    """A client call out of order, or after close; names the call to make instead (R39)."""


class InvalidTopicError(TxnLogError):
    """A topic name that Kafka refuses, or a user's write to an internal topic."""

    code = 17


class ForeignTableError(InvalidTopicError):
    """A Delta table below the root, named like a topic, that txnlog did not create."""


class InvalidPartitionsError(TxnLogError):
    """An invalid number of partitions."""

    code = 37


class TopicAlreadyExistsError(TxnLogError):
    """A live topic of that name exists."""

    code = 36


class UnknownTopicOrPartitionError(TxnLogError):
    """No such topic, or no such partition in it."""

    code = 3


class SnapshotNotFoundError(TxnLogError):
    """No snapshot has this name, it has expired, or is of another root; or the logs no longer show
    what it has.
    """

    code = 91


class UnknownTopicIdError(TxnLogError):
    """The topic was deleted (and perhaps created again) since the caller looked it up."""

    code = 100
    abortable = True


class InvalidRecordError(TxnLogError):
    """A row or column is not a valid record; names it. The record was not accepted."""

    code = 87


class RecordTooLargeError(TxnLogError):
    """A record above max.message.bytes. It was not accepted; the transaction is unaffected."""

    code = 10


class OffsetOutOfRangeError(TxnLogError):
    """A position below the log start or above the end."""

    code = 1


class PartitionEndError(TxnLogError):
    """With enable.partition.eof: all records of a partition so far were returned."""


class DataLossError(OffsetOutOfRangeError):
    """Data that a query has not read is gone; with `failOnDataLoss=false` it continues."""


# -- storage -------------------------------------------------------------------------------------


class StorageError(TxnLogError):
    """The object store failed; a write may have succeeded.

    `store_error` is the name of the store's exception, `store_code` the store's own code
    (NoSuchBucket, SlowDown, ENOSPC, 503), None without one.
    """

    code = 15
    retriable = True


class NotSyncedError(StorageError):
    """fsync of a file or its folder failed: what was written may not survive a power cut.

    A second fsync would show nothing, so this process relies on nothing in that folder any more.
    """

    retriable = False
    fatal = True


class ObjectNotFoundError(TxnLogError):
    """No object at that path."""


class NothingWrittenError(StorageError):
    """A write failed before any of it became visible: no space, too many open files, ..."""


class FolderNotFoundError(NothingWrittenError):
    """A table's folder is missing: its file system was unmounted, or the folder removed."""


class BucketNotFoundError(NothingWrittenError):
    """The root's bucket or container does not exist."""

    retriable = False
    fatal = True


class OutOfMemoryError(TxnLogError, MemoryError):
    """Not enough memory in this process to read or write a file; the file may be intact."""

    retriable = True


class StorePermissionError(NothingWrittenError):
    """The store denied permission; nothing was written."""

    code = 31
    retriable = False
    fatal = True


class TopicAuthorizationError(StorePermissionError):
    """No permission for a topic's log or files; other topics may work."""

    code = 29
    fatal = False


class GroupAuthorizationError(StorePermissionError):
    """No permission for the consumer offsets; transactions without offsets may work."""

    code = 30
    fatal = False


class TransactionalIdAuthorizationError(StorePermissionError):
    """No permission for the transaction state."""

    code = 53


class ForkedProcessError(TxnLogError):
    """The object store was used before os.fork(); its threads do not exist in the child."""

    fatal = True


class UnsupportedStoreError(TxnLogError):
    """The store has no working conditional put, or its URL scheme is unknown."""

    fatal = True


class CorruptLogError(TxnLogError):
    """A damaged file: truncated, zero-filled, or with a wrong checksum; names the file."""

    code = 2
    fatal = True


class InvalidCommitError(TxnLogError):
    """A commit that could not be read back; it was not written."""

    abortable = True


class LogGapError(CorruptLogError):
    """Commits of a log are missing: in its middle, or the newest ones, as other tables show."""


class UnsupportedProtocolError(TxnLogError):
    """The table requires Delta features, or a format version of txnlog, that are not supported."""

    code = 35
    fatal = True


class CommitStateUnknownError(StorageError):
    """It is unknown whether a commit succeeded; repeat the same call to find out."""

    code = 7


class OutcomeLostError(CommitStateUnknownError):
    """Whether a transaction was committed can no longer be determined; check the topics."""

    retriable = False
    fatal = True


class StagedFileTooOldError(TxnLogError):
    """A staged file is so old that vacuum may have deleted it; stage the data again."""

    abortable = True


class CheckpointError(TxnLogError):
    """A Spark checkpoint is unreadable, or contradicts the transaction log."""

    fatal = True


# -- the transaction protocol --------------------------------------------------------------------


class OutOfOrderSequenceError(TxnLogError):
    """A gap in a producer's sequence numbers; nothing was written."""

    code = 45
    fatal = True


class DuplicateSequenceError(TxnLogError):
    """A batch that overlaps, or is older than, the producer's last five batches."""

    code = 46


class DuplicateTransactionError(TxnLogError):
    """Only some topics of a batch write have its txnAppId and txnVersion."""

    fatal = True


class NotCoordinatorError(TxnLogError):
    """The transaction log belongs to another cluster than the one that was opened."""

    code = 16
    fatal = True


class UnknownProducerIdError(TxnLogError):
    """An expired idempotent producer retries a batch that it may have written already."""

    code = 59


class InvalidProducerEpochError(TxnLogError):
    """A write with an older epoch than the partition's or the coordinator's."""

    code = 47
    abortable = True


class InvalidTxnStateError(TxnLogError):
    """A call that is invalid in the transaction's state; names the call to make instead.

    The call had no effect, and the client can continue (Kafka's IllegalStateException).
    """

    code = 48


class InvalidProducerIdMappingError(TxnLogError):
    """The transactional.id has no row, or its row holds another producer id."""

    code = 49
    abortable = True


class InvalidTxnTimeoutError(TxnLogError):
    """transaction.timeout.ms is above transaction.max.timeout.ms, or not positive."""

    code = 50
    fatal = True


class ConcurrentTransactionsError(TxnLogError):
    """A concurrent operation on the same transactional.id or log; retry later."""

    code = 51
    retriable = True


class ProducerFencedError(TxnLogError):
    """A newer owner of the transactional.id exists; names it, and since when."""

    code = 90
    fatal = True


class TransactionAbortableError(TxnLogError):
    """The transaction can no longer commit; abort it and begin another."""

    code = 120
    abortable = True


class TransactionAbortedError(TxnLogError):
    """In a delivery callback: the record was discarded, because its transaction was aborted."""


# -- Delta tables of others in a transaction -------------------------------------------------------


class UnknownTableError(TxnLogError):
    """No Delta table at that URL, or another one than was enlisted."""

    abortable = True


class TableFeatureError(TxnLogError):
    """The table needs what txnlog may not write, or what only an engine can stage; names it."""

    abortable = True


class TableDataError(TxnLogError):
    """Rows that the schema of a table refuses: null in a NOT NULL column, another type."""

    abortable = True


class TableChangedError(TxnLogError):
    """The table was changed so that what is staged does not fit it any more; says how.

    With `decided` the transaction is committed: all else has it, and this table gets
    it once the change is undone, or the rows are restaged.
    """

    abortable = True


class TableConflictError(TxnLogError):
    """Others have changed what a merge of this transaction has read; nothing of it was written.

    Read and merge again, in another transaction; `transactional` does so by itself.
    """

    abortable = True


# -- clients -------------------------------------------------------------------------------------


class UnexpectedError(TxnLogError):
    """An exception other than a TxnLogError ended this one request; it is the `__cause__`.

    It is unknown whether the request was written. Kafka: UNKNOWN_SERVER_ERROR.
    """

    code = -1
    abortable = True


class RecordPurgedError(TxnLogError):
    """The record was discarded by purge() before it was delivered."""

    abortable = True


class OperationTimedOutError(TxnLogError):
    """A call timed out; calling it again continues where it stopped."""

    code = 7
    retriable = True


class BufferExhaustedError(OperationTimedOutError, BufferError):
    """buffer.memory stayed full for max.block.ms; the record was not accepted."""


class TransactionalIdNotFoundError(TxnLogError):
    """The transactional.id has no state row: it was never used, or has expired."""

    code = 105


# -- groups --------------------------------------------------------------------------------------


class OffsetMetadataTooLargeError(TxnLogError):
    """An offset's metadata is larger than offset.metadata.max.bytes; nothing was committed."""

    code = 12


class IllegalGenerationError(TxnLogError):
    """The group has a newer generation; clients with the old one must stop or rejoin."""

    code = 22
    abortable = True


class InconsistentGroupProtocolError(TxnLogError):
    """The members of a group have no common assignor."""

    code = 23
    fatal = True


class UnknownMemberIdError(TxnLogError):
    """The consumer left its group or was expelled; it rejoins at its next poll."""

    code = 25
    abortable = True


class RebalanceInProgressError(TxnLogError):
    """The consumer has revoked its partitions and waits for new ones: poll, then continue."""

    code = 27
    retriable = True


class GroupIdNotFoundError(TxnLogError):
    """No such group: nothing was ever committed in it, and it has no members."""

    code = 69


class NonEmptyGroupError(TxnLogError):
    """The group has members; the operation needs a group without."""

    code = 68


class FencedInstanceIdError(TxnLogError):
    """A newer consumer with the same group.instance.id has replaced this one."""

    code = 82
    fatal = True


class UnstableOffsetCommitError(TxnLogError):
    """A transaction that has not ended may still commit offsets of these partitions."""

    code = 88
    retriable = True


class OffsetConflictError(TxnLogError):
    """The group's offsets are past the start of this batch: another run committed the input."""

    fatal = True
