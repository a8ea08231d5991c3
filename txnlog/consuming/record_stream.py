"""The current chunk of records, returned as messages or Arrow batches, and the position in it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterator
from itertools import islice

import pyarrow as pa

from txnlog.consuming.fetcher import Fetcher
from txnlog.consuming.fetching import Chunk, Key, PartitionReader
from txnlog.errors import PartitionEndError, TxnLogError
from txnlog.messages import Message
from txnlog.storage.batches.records import MESSAGE_SCHEMA

logger = logging.getLogger("txnlog")


class Before(dict[PartitionReader, int | None]):
    """Positions before the records that a call has taken, and not returned yet; and the notices."""

    def __init__(self) -> None:
        self.notices: list[Message] = []
        self.is_returned = False
        """Whether the caller has the records. No call may follow: an interrupt would lose them."""
        self.is_unwanted = False
        """Whether nobody awaits the call any more: then it takes nothing."""


_NOTHING = Before()


class RecordStream:
    """Records of all assigned partitions. Returning a record moves its partition's position.

    A notice is a message with an error, and comes after the records before it: `take` returns it;
    or with `raises` takes nothing beyond it before `take_notice` was called. `report_ends`: there
    is one with a PartitionEndError as often as a partition's end is reached.
    """

    def __init__(self, fetcher: Fetcher, *, report_ends: bool, raises: bool) -> None:
        self._fetcher = fetcher
        self._report_ends = report_ends
        self._raises = raises
        self._notices: deque[Message] = deque()
        self._chunk: Chunk | None = None
        self._at = 0
        self._messages: Iterator[Message] | None = None
        self._before = Before()

    def next(self) -> Message | None:
        """The next message of the current chunk; None at its end."""
        messages, chunk = self._messages, self._chunk
        if messages is None or chunk is None:
            return None
        reader = chunk.reader
        before = reader.position
        self._before = _NOTHING
        try:
            message = next(messages, None)
            if message is None:
                self._chunk = self._messages = None
                return None
            self._at += 1
            # Messages that were read have an offset; calling offset() costs a tenth of the rate.
            reader.position = message._offset + 1  # type: ignore[operator]
            return message
        except BaseException:
            reader.position = before
            self._rewind()
            raise

    def put_back(self, message: Message) -> None:
        """Read the last result of `next` again, unless more was returned since."""
        reader = self._fetcher.readers.get((message.topic(), message.partition()))
        if reader is not None and reader.position == message._offset + 1:  # type: ignore[operator]
            reader.position = message._offset
            self._rewind()

    def begin(self, before: Before) -> None:
        """Note in `before` the positions before the records that are taken from now on."""
        self._before = before

    def returned(self, reader: PartitionReader) -> int | None:
        """The position after the records that were returned: without those of a call under way."""
        before = self._before
        return reader.position if before.is_returned else before.get(reader, reader.position)

    def take_back(self, before: Before) -> None:
        """Return once more what was taken, unless another call has taken some since."""
        if self._before is before and not before.is_returned:
            for reader, position in before.items():
                reader.position = position
            self._notices.extendleft(reversed(before.notices))
            self._before = Before()
            self._rewind()

    def _rewind(self) -> None:
        """Discard what was fetched and not taken."""
        self._chunk = self._messages = None
        for reader in self._fetcher.readers.values():
            reader.rewind()
        self._fetcher.wake()

    def notify(self, message: Message) -> None:
        """Add a notice."""
        self._notices.append(message)

    @property
    def must_raise(self) -> bool:
        """Whether there is a notice that `take` does not return."""
        return self._raises and bool(self._notices)

    def take_notice(self) -> Exception:
        """The error of the first notice, once."""
        error = self._notices.popleft().error()
        assert error is not None
        return error

    def take(self, count: int, end_ms: float | None = None) -> list[Message]:
        """Up to `count` messages, of one look at the logs.

        With messages taken, no request to a remote store begins after `end_ms` (boot clock), and
        an error is left to the next call.
        """
        taken: list[Message] = []
        while len(taken) < count:
            if not self._has_rows:
                self._note_ends()
            if self.must_raise:
                break
            while self._notices and len(taken) < count:
                self._before.notices.append(self._notices.popleft())
                taken.append(self._before.notices[-1])
            if len(taken) == count:
                break
            if not self._fill(end_ms, has_some=bool(taken)):
                if self._note_ends():
                    continue
                break
            if self._before.is_unwanted:
                break
            chunk, messages = self._chunk, self._messages
            assert chunk is not None
            if messages is None:
                messages = self._messages = chunk.messages(self._at)
            part = list(islice(messages, count - len(taken)))
            if part:
                taken += part
                self._advance(chunk, len(part))
        return taken

    def take_arrow(
        self, rows_max: int | None, bytes_max: int, end_ms: float | None = None
    ) -> pa.Table:
        """As `take`, a table of MESSAGE_SCHEMA; at least one record if there is any."""
        batches: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        while rows_max is None or rows < rows_max:
            if not self._has_rows:
                self._note_ends()
            if self.must_raise or not self._fill(end_ms, has_some=rows > 0):
                break
            chunk = self._chunk
            assert chunk is not None
            left = chunk.num_rows - self._at
            wanted = left if rows_max is None else min(left, rows_max - rows)
            wanted = _fitting(chunk, self._at, wanted, bytes_max - size_bytes)
            if wanted == 0:
                if batches:
                    break
                wanted = 1
            batch = chunk.to_arrow(self._at, wanted)
            self._messages = None
            self._advance(chunk, wanted)
            batches.append(batch)
            rows += wanted
            size_bytes += batch.nbytes
        if not rows:
            self._note_ends()
        return pa.Table.from_batches(batches, schema=MESSAGE_SCHEMA)

    def seek(self, reader: PartitionReader, position: int | None) -> None:
        """Continue at `position`, whatever a call under way has taken."""
        self._before.pop(reader, None)
        reader.position = position
        self.drop([(reader.topic, reader.partition)])

    def drop(self, keys: Collection[Key]) -> None:
        """Discard fetched records of these partitions; they are read again."""
        if self._chunk is not None:
            reader = self._chunk.reader
            if (reader.topic, reader.partition) in keys:
                self._chunk = self._messages = None
        for key in keys:
            if key in self._fetcher.readers:
                self._fetcher.readers[key].rewind()
        self._fetcher.wake()

    @property
    def _has_rows(self) -> bool:
        """Whether records of the current chunk are left."""
        return self._chunk is not None and self._at < self._chunk.num_rows

    def _note_ends(self) -> bool:
        """Note the partitions that have reached their end; whether there is a notice."""
        if not self._report_ends and not logger.isEnabledFor(logging.DEBUG):
            return False
        for (topic, partition), reader in self._fetcher.readers.items():
            end = reader.position
            if end is None or reader.reported_end == end or not reader.is_at_end:
                continue
            reader.reported_end = end
            logger.debug("Reached the end of %s-%d at offset %d", topic, partition, end)
            if self._report_ends:
                error = PartitionEndError(
                    f"The end of {topic}-{partition} is reached, at offset {end}: more records may "
                    "follow.",
                    topic=topic,
                    partition=partition,
                    offset=end,
                )
                self.notify(Message(topic, partition, end, None, None, None, None, error))
        return bool(self._notices)

    def _fill(self, end_ms: float | None, *, has_some: bool) -> bool:
        """Ensure a chunk with records left; False if there is none.

        With `has_some` the caller must get what was taken, since the positions are past it: another
        look at the logs, what is requested after `end_ms`, and an error are left to the next call.
        """
        if self._has_rows:
            return True
        self._chunk = self._messages = None
        try:
            self._chunk, self._at = self._fetcher.fetch(end_ms, has_some=has_some), 0
        except TxnLogError:
            if not has_some:
                raise
        return self._chunk is not None

    def _advance(self, chunk: Chunk, rows: int) -> None:
        self._before.setdefault(chunk.reader, chunk.reader.position)
        self._at += rows
        chunk.reader.position = chunk.offset(self._at - 1) + 1


def _fitting(chunk: Chunk, start: int, rows: int, bytes_max: int) -> int:
    """How many of these rows fit: exact for a whole chunk, by the average record for a part."""
    size_bytes = chunk.nbytes(start, rows)
    if size_bytes <= bytes_max:
        return rows
    return max(0, min(rows, bytes_max * rows // max(1, size_bytes)))
