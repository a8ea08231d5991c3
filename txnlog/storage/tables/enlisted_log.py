"""The log of an enlisted Delta table, at any URL: others write it, too.

Nothing is assumed of the other writers but that each creates a version only if it is absent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txnlog.protocol.enlisted.actions import TableState
from txnlog.protocol.enlisted.parts import Decided, Part
from txnlog.storage.store.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class Published:
    """Our commit has this version; to be proved before the transaction is completed."""

    version: int
    write_id: str


@dataclass(frozen=True, slots=True)
class AlreadyPublished:
    """The table has the transaction's txn: this process, or another one, published it before."""

    version: int


@dataclass(frozen=True, slots=True)
class TableReplaced:
    """The table was dropped and made again: as if the part had been published just before."""

    table_id: str


Publication = Published | AlreadyPublished | TableReplaced


@dataclass(frozen=True, slots=True)
class PartFile:
    """Where a part file is, below the table's URL; the manifest holds this."""

    path: str
    size_bytes: int
    digest: str


class EnlistedLog:
    """The log of the table at the URL of `store`. Not thread-safe; the constructor does no I/O.

    `now_ms` is the time of the root's store. All methods raise StorageError and UnknownTableError
    (no log at this URL); CorruptLogError, which names the URL and the version.
    """

    def __init__(self, store: ObjectStore, now_ms: Callable[[], int]) -> None:
        self.store = store
        self.state = TableState(store.url)

    def refresh(self) -> None:
        """Bring `state` up to the head of the log."""
        raise NotImplementedError

    def check(self, part: Part) -> None:
        """Before the decision, after `refresh`: whether a part could be published now.

        Raises TableFeatureError, TableChangedError, UnknownTableError (another table).
        """
        raise NotImplementedError

    def put_part(self, part: Part, *, cluster_id: str) -> PartFile:
        """Write the part file, which no log refers to."""
        raise NotImplementedError

    def read_part(self, file: PartFile) -> Part:
        """Read a part file. Raises CorruptLogError, ObjectNotFoundError."""
        raise NotImplementedError

    def publish(
        self,
        part: Part,
        decided: Decided,
        *,
        is_still_decided: Callable[[], bool],
        is_head_read: bool = False,
    ) -> Publication | None:
        """Put the publication at the next version, unless the table has its txn already.

        `is_still_decided` is asked after each reading of the head, before the put: a process that
        has not written the decision a short time ago reads the row again. None: it said no.
        `is_head_read`: the state is as of a moment ago, so the first put needs no reading.
        Raises TableChangedError with `decided`.
        """
        raise NotImplementedError

    def prove(self, published: Published) -> bool:
        """Whether the version before the publication is there; else the log was cleaned up or made
        again meanwhile: our commit is deleted if it is still ours, and is to be published again.
        """
        raise NotImplementedError
