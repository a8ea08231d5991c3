"""What PostgreSQL's output plugin `pgoutput` sends for a publication, decoded: whole transactions.

See the chapter "Logical Replication Message Formats" of PostgreSQL's documentation, protocol 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Row = dict[str, str | None]
"""Values as PostgreSQL writes them, by column. A large value that did not change is missing."""


@dataclass(frozen=True)
class Change:
    """`row` is the new row; of a delete the key, or what REPLICA IDENTITY says."""

    operation: str
    table: str
    row: Row


@dataclass
class SourceTransaction:
    """Its changes, in their order. `lsn` is where the log goes on after its commit."""

    changes: list[Change] = field(default_factory=list)
    lsn: int = 0


def transactions(messages: Iterable[bytes]) -> Iterator[SourceTransaction]:
    """Those of messages that begin and end with a transaction, in the order of their commits."""
    tables: dict[int, tuple[str, list[str]]] = {}
    current = SourceTransaction()
    for data in messages:
        message = _Message(data)
        kind = message.letter()
        if kind == "B":
            current = SourceTransaction()
        elif kind == "C":
            _, _, current.lsn, _ = message.take("!bqqq")
            yield current
        elif kind == "R":
            (number,) = message.take("!I")
            tables[number] = message.relation()
        elif kind in "IUD":
            (number,) = message.take("!I")
            table, columns = tables[number]
            part = message.letter()
            row = message.row(columns)
            if kind == "U" and part in "KO":
                message.letter()
                row = message.row(columns)
            current.changes.append(Change(kind, table, row))
        elif kind == "T":
            raise ValueError("The source has truncated a table: decide what that means.")


class _Message:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, form: str) -> tuple[int, ...]:
        found = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return found

    def letter(self) -> str:
        return chr(*self.take("!B"))

    def text(self, end: int) -> str:
        start, self.at = self.at, end
        return self.data[start:end].decode()

    def name(self) -> str:
        found = self.text(self.data.index(0, self.at))
        self.at += 1
        return found

    def relation(self) -> tuple[str, list[str]]:
        """The table with its schema, and its columns."""
        table = f"{self.name()}.{self.name()}"
        _, count = self.take("!BH")
        columns = []
        for _ in range(count):
            self.take("!B")
            columns.append(self.name())
            self.take("!Ii")
        return table, columns

    def row(self, columns: list[str]) -> Row:
        row: Row = {}
        self.take("!H")
        for column in columns:
            kind = self.letter()
            if kind == "t":
                (length,) = self.take("!I")
                row[column] = self.text(self.at + length)
            elif kind == "n":
                row[column] = None
        return row
