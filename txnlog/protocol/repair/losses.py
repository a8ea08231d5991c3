"""What a repair could not save, for people and programs."""

from __future__ import annotations

import msgspec


class LostOffsets(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Offsets `first` to `last` of a partition have no records any more.

    `last` and `records` are None if unknown. `next_offset`, at the end of a partition, is where it
    goes on; None elsewhere.
    """

    topic: str
    partition: int
    first: int
    last: int | None
    records: int | None
    next_offset: int | None = None


class LostTransaction(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of a transaction: topics where it was `published` again, topics where records of
    it are, or may be, `lost`, topics that `kept` it. If `first_epoch` is another one, it stands for
    all up to `epoch`, of which only the last one is known.
    """

    transactional_id: str
    producer_id: int
    first_epoch: int
    epoch: int
    published: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        if not self.lost:
            return "published again" if self.published else "may be half"
        return "half" if self.published or self.kept else "lost"


class MovedOffset(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An offset of a group went from `before` (None: there was none) to `after`."""

    group: str
    topic: str
    partition: int
    before: int | None
    after: int


class DamagedTable(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A table with a damaged log. `kept_version` is the newest that counts, -1 if none does;
    `lost_commits` are those after it or before it that do not. `new_version` is that of the repair.
    """

    table: str
    kept_version: int
    lost_commits: int
    new_version: int


class RepairReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a repair found, and did or would do. `changed`: the tables that get a commit. Of
    `groups_behind` newer offsets than those that are left may be lost.

    `folder`: where it keeps what it cut. `interrupted`: that of an earlier repair, which the next
    one finishes. `is_done`: False for a dry run.
    """

    folder: str = ""
    is_done: bool = False
    interrupted: str = ""
    damaged: tuple[DamagedTable, ...] = ()
    changed: tuple[str, ...] = ()
    offsets: tuple[LostOffsets, ...] = ()
    transactions: tuple[LostTransaction, ...] = ()
    groups: tuple[MovedOffset, ...] = ()
    groups_behind: tuple[str, ...] = ()

    @property
    def is_needed(self) -> bool:
        """Whether there is, or was, anything to do."""
        return bool(self.damaged or self.changed or self.interrupted)
