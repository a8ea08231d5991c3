"""Codes and flags of every error class, against Kafka's, and flags where errors are raised."""

from __future__ import annotations

import inspect
import itertools
import pickle

import pytest

from txnlog import errors
from txnlog.errors import FLAGS, TxnLogError
from txnlog.protocol.producer_states import LifecycleState, failed_call, failed_state

# org.apache.kafka.common.protocol.Errors: code -> (exception, whether it is retriable).
KAFKA = {
    -1: ("UnknownServer", False),
    1: ("OffsetOutOfRange", False),
    2: ("CorruptRecord", True),
    3: ("UnknownTopicOrPartition", True),
    7: ("Timeout", True),
    10: ("RecordTooLarge", False),
    12: ("OffsetMetadataTooLarge", False),
    15: ("CoordinatorNotAvailable", True),
    16: ("NotCoordinator", True),
    17: ("InvalidTopic", False),
    22: ("IllegalGeneration", False),
    23: ("InconsistentGroupProtocol", False),
    25: ("UnknownMemberId", False),
    27: ("RebalanceInProgress", False),
    29: ("TopicAuthorization", False),
    30: ("GroupAuthorization", False),
    31: ("ClusterAuthorization", False),
    35: ("UnsupportedVersion", False),
    36: ("TopicExists", False),
    37: ("InvalidPartitions", False),
    45: ("OutOfOrderSequence", False),
    46: ("DuplicateSequence", False),
    47: ("InvalidProducerEpoch", False),
    48: ("InvalidTxnState", False),
    49: ("InvalidPidMapping", False),
    50: ("InvalidTxnTimeout", False),
    51: ("ConcurrentTransactions", True),
    53: ("TransactionalIdAuthorization", False),
    59: ("UnknownProducerId", False),
    68: ("GroupNotEmpty", False),
    69: ("GroupIdNotFound", False),
    82: ("FencedInstanceId", False),
    87: ("InvalidRecord", False),
    88: ("UnstableOffsetCommit", True),
    90: ("ProducerFenced", False),
    91: ("ResourceNotFound", False),
    100: ("UnknownTopicId", True),
    105: ("TransactionalIdNotFound", False),
    120: ("TransactionAbortable", False),
}

# Errors that are retriable either only here or only in Kafka, and why.
DIFFERENT = {
    "BucketNotFoundError": "another coordinator cannot be found in a bucket that does not exist",
    "NotSyncedError": "a second fsync would succeed, and show nothing",
    "CorruptLogError": "Kafka asks another replica; there is one log here",
    "LogGapError": "as CorruptLogError",
    "UnknownTopicOrPartitionError": "Kafka's metadata may be behind; we have read the log",
    "UnknownTopicIdError": "as UnknownTopicOrPartitionError",
    "NotCoordinatorError": "Kafka finds the coordinator again; here a new client is needed",
    "OutcomeLostError": "the retries have been made",
    "RebalanceInProgressError": "after a poll the same call may be made again",
}

# code, retriable, abortable, fatal
N, R, A, F = "none", "retriable", "abortable", "fatal"
TABLE: dict[str, tuple[int | None, str]] = {
    "BucketNotFoundError": (15, F),
    "BufferExhaustedError": (7, R),
    "CheckpointError": (None, F),
    "ClientStateError": (None, N),
    "CommitStateUnknownError": (7, R),
    "ConcurrentTransactionsError": (51, R),
    "ConfigError": (None, N),
    "CorruptLogError": (2, F),
    "DataLossError": (1, N),
    "PartitionEndError": (None, N),
    "DuplicateSequenceError": (46, N),
    "DuplicateTransactionError": (None, F),
    "FencedInstanceIdError": (82, F),
    "FolderNotFoundError": (15, R),
    "ForeignTableError": (17, N),
    "ForkedProcessError": (None, F),
    "GroupAuthorizationError": (30, N),
    "GroupIdNotFoundError": (69, N),
    "IllegalGenerationError": (22, A),
    "InconsistentGroupProtocolError": (23, F),
    "InvalidCommitError": (None, A),
    "InvalidPartitionsError": (37, N),
    "InvalidProducerEpochError": (47, A),
    "InvalidProducerIdMappingError": (49, A),
    "InvalidRecordError": (87, N),
    "InvalidTopicError": (17, N),
    "InvalidTxnStateError": (48, N),
    "InvalidTxnTimeoutError": (50, F),
    "LogGapError": (2, F),
    "NonEmptyGroupError": (68, N),
    "NotCoordinatorError": (16, F),
    "NothingWrittenError": (15, R),
    "NotSyncedError": (15, F),
    "ObjectNotFoundError": (None, N),
    "OffsetConflictError": (None, F),
    "OffsetMetadataTooLargeError": (12, N),
    "OffsetOutOfRangeError": (1, N),
    "OperationTimedOutError": (7, R),
    "OutOfOrderSequenceError": (45, F),
    "OutOfMemoryError": (None, R),
    "OutcomeLostError": (7, F),
    "ProducerFencedError": (90, F),
    "RebalanceInProgressError": (27, R),
    "RecordPurgedError": (None, A),
    "RecordTooLargeError": (10, N),
    "SnapshotNotFoundError": (91, N),
    "StagedFileTooOldError": (None, A),
    "StorageError": (15, R),
    "StorePermissionError": (31, F),
    "TableChangedError": (None, A),
    "TableConflictError": (None, A),
    "TableDataError": (None, A),
    "TableFeatureError": (None, A),
    "TopicAlreadyExistsError": (36, N),
    "TopicAuthorizationError": (29, N),
    "TransactionAbortableError": (120, A),
    "TransactionAbortedError": (None, N),
    "TransactionalIdAuthorizationError": (53, F),
    "TransactionalIdNotFoundError": (105, N),
    "TxnLogError": (None, N),
    "UnexpectedError": (-1, A),
    "UnknownMemberIdError": (25, A),
    "UnknownProducerIdError": (59, N),
    "UnknownTableError": (None, A),
    "UnknownTopicIdError": (100, A),
    "UnknownTopicOrPartitionError": (3, N),
    "UnstableOffsetCommitError": (88, R),
    "UnsupportedProtocolError": (35, F),
    "UnsupportedStoreError": (None, F),
}

CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, TxnLogError)
}


def flag_of(error: TxnLogError | type[TxnLogError]) -> str:
    """The one flag that is true."""
    found = [flag for flag in FLAGS if getattr(error, flag)]
    assert len(found) <= 1, f"{error!r} says {found}"
    return found[0] if found else N


def test_every_error_has_the_code_and_the_flag_of_the_table() -> None:
    """Handlers rely on them: each new error needs a decision (R42)."""
    assert {name: (kind.code, flag_of(kind)) for name, kind in CLASSES.items()} == TABLE


def test_codes_and_retriable_flags_are_kafkas_but_for_listed_exceptions() -> None:
    """Users know Kafka's errors (R42)."""
    for name, (code, flag) in TABLE.items():
        if code is not None:
            is_same = KAFKA[code][1] == (flag == R)
            assert is_same != (name in DIFFERENT), name


def test_errors_pass_between_processes_with_their_flags() -> None:
    """Spark's tasks and drivers are separate processes."""
    error = errors.StorageError("m", path="p", store_code="SlowDown").replace(retriable=False)
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.path, copied.store_code, copied.retriable) == ("p", "SlowDown", False)
    assert errors.StorageError("m").retriable


@pytest.mark.parametrize(
    ("name", "state"),
    list(
        itertools.product(
            sorted(CLASSES), [LifecycleState.IN_TRANSACTION, LifecycleState.COMMITTING]
        )
    ),
)
def test_call_that_failed_raises_what_the_producers_state_allows(
    name: str, state: LifecycleState
) -> None:
    """An error is abortable only while the producer accepts an abort (R42)."""
    error = CLASSES[name]("it failed", topic="t")
    left = failed_state(error, state)
    told = failed_call(error, left)
    assert told.fatal == (left is LifecycleState.FATAL_ERROR)
    assert told.abortable == (left is LifecycleState.ABORTABLE_ERROR)
    assert not told.retriable or left is not LifecycleState.ABORTABLE_ERROR
    assert error.message in told.message
    # A commit that may be decided stays a commit: only the same call may be repeated.
    committing = failed_call(error, LifecycleState.COMMITTING)
    assert not committing.abortable
    assert committing.retriable != committing.fatal
