"""KafkaError and KafkaException, and which of them an error of txnlog becomes.

A KafkaException has its KafkaError as `args[0]`, and the TxnLogError as `__cause__`. The flags
`retriable`, `fatal` and `txn_requires_abort` are those of the TxnLogError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from txnlog.compat.confluent_kafka.error_codes import CODES, NAMES
from txnlog.errors import (
    BufferExhaustedError,
    ClientStateError,
    ConfigError,
    InvalidTxnStateError,
    OperationTimedOutError,
    PartitionEndError,
    ProducerFencedError,
    RecordPurgedError,
    StorageError,
    TransactionAbortedError,
    TxnLogError,
)
from txnlog.text import printable

_OF_SERIALIZERS = (
    "KeyDeserializationError",
    "KeySerializationError",
    "ValueDeserializationError",
    "ValueSerializationError",
)
__all__ = [*_OF_SERIALIZERS, "ConsumeError", "KafkaError", "KafkaException", "ProduceError"]

_Text = str
"""The builtin, which a method of KafkaError hides."""

_LOCAL = (
    (ClientStateError, "_STATE"),
    (InvalidTxnStateError, "_STATE"),
    (ConfigError, "_INVALID_ARG"),
    (ProducerFencedError, "_FENCED"),
    (RecordPurgedError, "_PURGE_QUEUE"),
    (TransactionAbortedError, "_PURGE_QUEUE"),
    (OperationTimedOutError, "_TIMED_OUT"),
    (PartitionEndError, "_PARTITION_EOF"),
)
"""Errors for which librdkafka has a code of its own."""


class KafkaError:
    """What went wrong: Kafka's code, or a negative one of librdkafka, and a text.

    The class has every code by name: `error.code() == KafkaError._PARTITION_EOF`.
    """

    def __init__(
        self,
        error: int,
        reason: str | None = None,
        fatal: bool = False,
        retriable: bool = False,
        txn_requires_abort: bool = False,
    ) -> None:
        self._code = int(error)
        self._reason = None if reason is None else printable(reason)
        self._fatal = bool(fatal)
        self._retriable = bool(retriable)
        self._txn_requires_abort = bool(txn_requires_abort)

    def code(self) -> int:
        """Kafka's code, or librdkafka's."""
        return self._code

    def name(self) -> _Text:
        """The name of the code."""
        return NAMES.get(self._code, f"ERR_{self._code}?")

    def str(self) -> _Text:
        """What happened, for people."""
        return self._reason or self.name().strip("_").replace("_", " ").lower()

    def fatal(self) -> bool:
        """Whether the client cannot continue."""
        return self._fatal

    def retriable(self) -> bool:
        """Whether the same call may succeed when it is repeated."""
        return self._retriable

    def txn_requires_abort(self) -> bool:
        """Whether the transaction must be aborted; another one may then succeed."""
        return self._txn_requires_abort

    def __str__(self) -> _Text:
        return f'KafkaError{{code={self.name()},val={self._code},str="{self.str()}"}}'

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, KafkaError):
            return self._code == other._code
        return isinstance(other, int) and self._code == other

    def __lt__(self, other: KafkaError | int) -> bool:
        return self._code < (other._code if isinstance(other, KafkaError) else other)

    def __hash__(self) -> int:
        return hash(self._code)

    def __bool__(self) -> bool:
        return self._code != 0

    def __reduce__(self) -> Any:
        flags = (self._fatal, self._retriable, self._txn_requires_abort)
        return KafkaError, (self._code, self._reason, *flags)


for _name, _code in CODES.items():
    setattr(KafkaError, _name, _code)


class KafkaException(Exception):  # noqa: N818
    """Every failed call raises it; `args[0]` is the KafkaError."""


class _ClientError(KafkaException):
    def __init__(
        self,
        kafka_error: KafkaError,
        exception: Exception | None = None,
        kafka_message: Any = None,
    ) -> None:
        super().__init__(kafka_error)
        self.exception = exception
        self.kafka_message = kafka_message

    @property
    def code(self) -> int:
        """The code of the KafkaError."""
        return int(self.args[0].code())

    @property
    def name(self) -> str:
        """The name of that code."""
        return str(self.args[0].name())


class ConsumeError(_ClientError):
    """A DeserializingConsumer's poll failed; `kafka_message` has the record, if there is one."""


class ProduceError(_ClientError):
    """A SerializingProducer's produce failed."""


def __getattr__(name: str) -> Any:
    """The errors of serializers are confluent-kafka's, too: they are loaded with its package."""
    if name in _OF_SERIALIZERS:
        return getattr(import_module("txnlog.compat.confluent_kafka.serialization"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def kafka_error(error: Exception) -> KafkaError:
    """The KafkaError of an error of txnlog."""
    if not isinstance(error, TxnLogError):
        return KafkaError(CODES["_FAIL"], f"{type(error).__name__}: {error}")
    code = next((CODES[name] for kind, name in _LOCAL if isinstance(error, kind)), error.code)
    if code is None:
        code = CODES["_TRANSPORT" if isinstance(error, StorageError) else "_FAIL"]
    return KafkaError(code, error.message, error.fatal, error.retriable, error.abortable)


def kafka_exception(error: TxnLogError) -> KafkaException:
    """The KafkaException of an error of txnlog."""
    raised = KafkaException(kafka_error(error))
    raised.__cause__ = error
    return raised


@contextmanager
def translated() -> Iterator[None]:
    """Raise errors of txnlog as KafkaException.

    A full buffer stays the BufferError that it is, and a wrong type a TypeError.
    """
    try:
        yield
    except BufferExhaustedError:
        raise
    except TxnLogError as error:
        raise kafka_exception(error) from error
