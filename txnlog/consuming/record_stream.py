"""The chunk that is being handed out, as messages or as Arrow batches, and how far it has come."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import islice

import pyarrow as pa

from txnlog.consuming.fetching import Chunk, Fetcher, Key, PartitionReader
from txnlog.errors import TxnLogError
from txnlog.messages import Message
from txnlog.storage.batches.records import MESSAGE_SCHEMA


class RecordStream:
    """Records of all assigned partitions. A position moves with the record that is handed out."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._chunk: Chunk | None = None
        self._at = 0
        self._messages: Iterator[Message] | None = None
        self._before: dict[PartitionReader, int | None] = {}

    def next(self) -> Message | None:
        """The next message of the chunk at hand; None at its end."""
        messages, chunk = self._messages, self._chunk
        if messages is None or chunk is None:
            return None
        before = chunk.reader.position
        try:
            message = next(messages, None)
            if message is None:
                self._chunk = self._messages = None
                return None
            self._at += 1
            # What was read has an offset; asking by a method would cost a tenth of the rate.
            chunk.reader.position = message._offset + 1  # type: ignore[operator]
            return message
        except BaseException:
            chunk.reader.position = before
            self._take_back()
            raise

    @contextmanager
    def handing_out(self) -> Iterator[None]:
        """Around calls whose records the application gets at the end, or else not at all.

        Control-C may come anywhere, most likely while more is waited for: what was taken out by
        then is taken back, and read again.
        """
        try:
            yield
        except TxnLogError:
            raise
        except BaseException:
            self._take_back()
            raise
        finally:
            self._before.clear()

    def _take_back(self) -> None:
        self._chunk = self._messages = None
        for reader, position in self._before.items():
            reader.position = position
        for reader in self._fetcher.readers.values():
            reader.rewind()

    def take(self, count: int) -> list[Message]:
        """Up to `count` messages that are there now. Raises only if there is none before it."""
        found: list[Message] = []
        while len(found) < count and self._fill(has_some=bool(found)):
            chunk, messages = self._chunk, self._messages
            assert chunk is not None
            if messages is None:
                messages = self._messages = chunk.messages(self._at)
            part = list(islice(messages, count - len(found)))
            if part:
                found += part
                self._move(chunk, len(part))
        return found

    def take_arrow(self, rows_max: int | None, bytes_max: int) -> pa.Table:
        """A table of MESSAGE_SCHEMA with what is there now, one record at least if there is one.

        Raises only if there is none before it.
        """
        found: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        while (rows_max is None or rows < rows_max) and self._fill(has_some=rows > 0):
            chunk = self._chunk
            assert chunk is not None
            left = chunk.num_rows - self._at
            wanted = left if rows_max is None else min(left, rows_max - rows)
            wanted = _fitting(chunk, self._at, wanted, bytes_max - size_bytes)
            if wanted == 0:
                if found:
                    break
                wanted = 1
            batch = chunk.to_arrow(self._at, wanted)
            self._messages = None
            self._move(chunk, wanted)
            found.append(batch)
            rows += wanted
            size_bytes += batch.nbytes
        return pa.Table.from_batches(found, schema=MESSAGE_SCHEMA)

    def drop(self, keys: Collection[Key]) -> None:
        """Hand out no more of what was read of these partitions; they are read again."""
        if self._chunk is not None:
            reader = self._chunk.reader
            if (reader.topic, reader.partition) in keys:
                self._chunk = self._messages = None
        for key in keys:
            if key in self._fetcher.readers:
                self._fetcher.readers[key].rewind()

    def _fill(self, *, has_some: bool) -> bool:
        """Whether there is a chunk with something left in it.

        Positions are past what the caller `has`, so an error may not keep that from him: it comes
        back at the next call.
        """
        chunk = self._chunk
        if chunk is not None and self._at < chunk.num_rows:
            return True
        self._chunk = self._messages = None
        try:
            self._chunk, self._at = self._fetcher.fetch(), 0
        except TxnLogError:
            if not has_some:
                raise
        return self._chunk is not None

    def _move(self, chunk: Chunk, rows: int) -> None:
        self._before.setdefault(chunk.reader, chunk.reader.position)
        self._at += rows
        chunk.reader.position = chunk.offset(self._at - 1) + 1


def _fitting(chunk: Chunk, start: int, rows: int, bytes_max: int) -> int:
    """How many of these rows fit: exact for a whole chunk, by the average record for a part."""
    size_bytes = chunk.nbytes(start, rows)
    if size_bytes <= bytes_max:
        return rows
    return max(0, min(rows, bytes_max * rows // max(1, size_bytes)))
