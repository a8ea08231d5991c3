"""An object of a store as a file that pyarrow reads by ranges."""

from __future__ import annotations

import io
from typing import BinaryIO

from txnlog.storage.store.errors import store_errors


class RemoteFile(io.RawIOBase):
    """A file of the store for pyarrow. Keeps the last span: it is checked, then decoded."""

    def __init__(self, path: str, reader: BinaryIO) -> None:
        self._path = path
        self._reader = reader
        self._position = 0
        self._kept = b""
        self._kept_at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            with store_errors(self._path, "read"):
                offset += int(self._reader.seek(0, io.SEEK_END))
        elif whence == io.SEEK_CUR:
            offset += self._position
        self._position = offset
        return offset

    def read(self, size_bytes: int = -1) -> bytes:
        start = self._position
        if size_bytes < 0:
            size_bytes = self.seek(0, io.SEEK_END) - start
        at = start - self._kept_at
        if at >= 0 and at + size_bytes <= len(self._kept):
            found = self._kept[at : at + size_bytes]
        else:
            found = self._fetch(start, size_bytes)
        self._position = start + len(found)
        return found

    def read_span(self, start: int, end: int) -> bytes:
        """Bytes [start, end), kept for the reads that follow."""
        self._kept, self._kept_at = b"", 0
        self._kept = self._fetch(start, end - start)
        self._kept_at = start
        return self._kept

    def _fetch(self, start: int, size_bytes: int) -> bytes:
        with store_errors(self._path, "read"):
            self._reader.seek(start)
            found = bytearray()
            while len(found) < size_bytes:
                part = bytes(self._reader.read(size_bytes - len(found)))
                if not part:
                    break
                found += part
        return bytes(found)
