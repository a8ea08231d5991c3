"""Every error txnlog raises, sorted by what a handler would do.

    TxnLogError
    |- retriable   the same call may be made again       StorageError, ConcurrentTransactionsError
    |- abortable   abort the transaction, then go on      TransactionAbortableError, ...
    |- fatal       this client or query must stop         ProducerFencedError, CorruptLogError
    `- none        the call did nothing, and the client   ConfigError, RecordTooLargeError,
                   is as it was before                    InvalidTxnStateError

At most one of the three is true. A producer whose transaction has failed raises abortable errors
only: TransactionAbortableError, with the cause, for errors that are not abortable by themselves.
`code` is Kafka's error code where Kafka has the error (org.apache.kafka.common.protocol.Errors),
else None. Keyword arguments of an error become attributes, so handlers need not parse messages.
"""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound="TxnLogError")

FLAGS = ("retriable", "abortable", "fatal")


class TxnLogError(Exception):
    """Base of all errors: a message for people, attributes for programs.

    `code` and the flags are the class's, unless they are given for this one error.
    """

    code: int | None = None
    retriable: bool = False
    abortable: bool = False
    fatal: bool = False

    def __init__(self, message: str, **context: object) -> None:
        super().__init__(message)
        self.message = message
        self.context = context
        if context:
            self.__dict__.update((name, context[name]) for name in _GIVEN if name in context)

    def replace(self: E, **context: object) -> E:
        """The same error with other flags or attributes."""
        return type(self)(self.message, **{**self.context, **context})

    def __getattr__(self, name: str) -> object:
        context = self.__dict__.get("context", {})
        if name in context:
            return context[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.context)


_GIVEN = ("code", *FLAGS)


def _rebuild(cls: type[TxnLogError], message: str, context: dict[str, object]) -> TxnLogError:
    return cls(message, **context)


# -- what the caller asked for cannot be ---------------------------------------------------------


class ConfigError(TxnLogError, ValueError):
    """An option or setting is missing, malformed, or contradicts another one."""


class ClientStateError(TxnLogError, RuntimeError):
    """A call of a client out of order, or after close; says which call would be right (R39)."""


class InvalidTopicError(TxnLogError):
    """A topic name Kafka would refuse, or an internal topic written by a user."""

    code = 17


class ForeignTableError(InvalidTopicError):
    """A Delta table below the root that is none of txnlog's, under the name of a topic."""


class InvalidPartitionsError(TxnLogError):
    """A number of partitions that cannot be."""

    code = 37


class TopicAlreadyExistsError(TxnLogError):
    """create_topic met a live topic of that name."""

    code = 36


class UnknownTopicOrPartitionError(TxnLogError):
    """No such topic, or no such partition in it."""

    code = 3


class UnknownTopicIdError(TxnLogError):
    """The topic was deleted (and perhaps created again) since the caller looked it up."""

    code = 100
    abortable = True


class InvalidRecordError(TxnLogError):
    """A row or column that cannot become a record; names the row or column. It was not taken."""

    code = 87


class RecordTooLargeError(TxnLogError):
    """A record above max.message.bytes. It was not taken, and harms no transaction."""

    code = 10


class OffsetOutOfRangeError(TxnLogError):
    """A position below the log start or above the end."""

    code = 1


class DataLossError(OffsetOutOfRangeError):
    """Data a query wants is gone; `failOnDataLoss=false` goes on without it."""


# -- storage -------------------------------------------------------------------------------------


class StorageError(TxnLogError):
    """The object store failed; whether a write landed is not known from this error.

    What the store itself raised stays with it: `store_error` is the name of its exception,
    `store_code` its own code where it gave one (NoSuchBucket, SlowDown, ENOSPC, 503), else None.
    """

    code = 15
    retriable = True


class ObjectNotFoundError(TxnLogError):
    """No object at that path."""


class NothingWrittenError(StorageError):
    """A write failed before anything of it could be seen: no space, too many open files, ..."""


class FolderNotFoundError(NothingWrittenError):
    """A table's folder is not there: its file system was unmounted, or the folder removed."""


class OutOfMemoryError(TxnLogError, MemoryError):
    """This process has not enough memory to read or write a file; the file may be whole."""

    retriable = True


class StorePermissionError(NothingWrittenError):
    """The store refused for lack of permission; nothing was written."""

    code = 31
    retriable = False
    fatal = True


class TopicAuthorizationError(StorePermissionError):
    """No permission to read a topic's log, or to write it or its files; other topics may do."""

    code = 29
    fatal = False


class GroupAuthorizationError(StorePermissionError):
    """No permission to read or write the consumer offsets; transactions without them may do."""

    code = 30
    fatal = False


class TransactionalIdAuthorizationError(StorePermissionError):
    """No permission to read or write the transaction state."""

    code = 53


class ForkedProcessError(TxnLogError):
    """The object store was used before os.fork(); its threads do not exist in the child."""

    fatal = True


class UnsupportedStoreError(TxnLogError):
    """The store has no working conditional put, or its scheme is not one we know."""

    fatal = True


class CorruptLogError(TxnLogError):
    """A truncated, zero-filled or garbled file; names the file."""

    code = 2
    fatal = True


class InvalidCommitError(TxnLogError):
    """A commit that no process could read back; it was not written."""

    abortable = True


class LogGapError(CorruptLogError):
    """A commit in the middle of a log is missing; names the version."""


class UnsupportedProtocolError(TxnLogError):
    """The table asks for Delta features, or our own format version, that we do not know."""

    code = 35
    fatal = True


class CommitStateUnknownError(StorageError):
    """We gave up before learning whether a commit landed; retrying the same call settles it."""

    code = 7


class OutcomeLostError(CommitStateUnknownError):
    """Whether a transaction was committed cannot be found out any more; look into the topics."""

    retriable = False
    fatal = True


class StagedFileTooOldError(TxnLogError):
    """A staged file is so old that vacuum may have taken it; stage the data again."""

    abortable = True


class CheckpointError(TxnLogError):
    """A Spark checkpoint we cannot read or that contradicts the transaction log."""

    fatal = True


# -- the transaction protocol --------------------------------------------------------------------


class OutOfOrderSequenceError(TxnLogError):
    """A gap in a producer's sequence numbers; nothing was written."""

    code = 45
    fatal = True


class DuplicateSequenceError(TxnLogError):
    """A batch that overlaps, or is older than, the batches still remembered."""

    code = 46


class DuplicateTransactionError(TxnLogError):
    """Some topics of a batch write have its txnAppId and txnVersion, others lack them."""

    fatal = True


class NotCoordinatorError(TxnLogError):
    """The transaction log found is another cluster's than the one that was opened."""

    code = 16
    fatal = True


class UnknownProducerIdError(TxnLogError):
    """A producer forgotten for being idle sends again what it may have written before."""

    code = 59


class InvalidProducerEpochError(TxnLogError):
    """A write with an epoch older than the partition, or the coordinator, has seen."""

    code = 47
    abortable = True


class InvalidTxnStateError(TxnLogError):
    """A call that the state of the transaction does not allow; says which call would be right.

    Nothing was done, and the client goes on (Kafka's IllegalStateException).
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
    """The same transactional.id, or a lost race for a log, is busy just now."""

    code = 51
    retriable = True


class ProducerFencedError(TxnLogError):
    """A newer owner of the transactional.id exists; says who and since when."""

    code = 90
    fatal = True


class TransactionAbortableError(TxnLogError):
    """The transaction cannot commit any more; abort it and begin another."""

    code = 120
    abortable = True


class TransactionAbortedError(TxnLogError):
    """In a delivery callback: the record was thrown away, since its transaction was aborted."""


# -- clients -------------------------------------------------------------------------------------


class UnexpectedError(TxnLogError):
    """An exception that is no TxnLogError ended this request alone; it is the `__cause__`.

    Whether the request was written is not known. Kafka: UNKNOWN_SERVER_ERROR.
    """

    code = -1
    abortable = True


def unexpected(error: Exception, doing: str) -> TxnLogError:
    """The error itself if it is one of ours, else an UnexpectedError that names what was done."""
    if isinstance(error, TxnLogError):
        return error
    found = UnexpectedError(
        f"{doing} ended in {type(error).__name__}: {error}. This is a bug in txnlog or in what it "
        "calls; please report it with the traceback in the log."
    )
    found.__cause__ = error
    return found


class RecordPurgedError(TxnLogError):
    """The record was thrown away by purge() before it was delivered."""

    abortable = True


class OperationTimedOutError(TxnLogError):
    """A call did not end within its time; calling it again goes on where it stopped."""

    code = 7
    retriable = True


class BufferExhaustedError(OperationTimedOutError, BufferError):
    """buffer.memory stayed full for max.block.ms; the record was not taken."""


class TransactionalIdNotFoundError(TxnLogError):
    """No state row of that transactional.id: it was never used, or has expired."""

    code = 105


# -- groups --------------------------------------------------------------------------------------


class OffsetMetadataTooLargeError(TxnLogError):
    """Metadata of an offset above offset.metadata.max.bytes; nothing was committed."""

    code = 12


class IllegalGenerationError(TxnLogError):
    """The group has moved to another generation; whoever holds the old one must stop or rejoin."""

    code = 22
    abortable = True


class InconsistentGroupProtocolError(TxnLogError):
    """The members of a group know no assignor in common."""

    code = 23
    fatal = True


class UnknownMemberIdError(TxnLogError):
    """The consumer left its group, or was taken for dead; it joins anew at its next poll."""

    code = 25
    abortable = True


class RebalanceInProgressError(TxnLogError):
    """The consumer has let go of its partitions and waits for new ones: poll, then go on."""

    code = 27
    retriable = True


class GroupIdNotFoundError(TxnLogError):
    """No such group: nothing was ever committed in it, and it has no members."""

    code = 69


class NonEmptyGroupError(TxnLogError):
    """The group has members; what was asked for needs a group that has none."""

    code = 68


class FencedInstanceIdError(TxnLogError):
    """A newer consumer with the same group.instance.id took this one's place."""

    code = 82
    fatal = True


class UnstableOffsetCommitError(TxnLogError):
    """Offsets of an open transaction are pending on these partitions."""

    code = 88
    retriable = True


class OffsetConflictError(TxnLogError):
    """The group already stands past the start of this batch: another run committed the input."""

    fatal = True
