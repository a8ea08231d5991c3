"""Writing a file of a local disk through its descriptor."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any


class LocalWriter(io.RawIOBase):
    """A file being written. If it is dropped without `close`, it stays, unreferenced."""

    def __init__(
        self, file: int, *, must_sync: Callable[[], bool], on_close: Callable[[], None]
    ) -> None:
        """`must_sync` is asked when all is written: the root may have changed meanwhile."""
        self._file = file
        self._must_sync = must_sync
        self._on_close = on_close

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return write_all(self._file, data)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        try:
            if self._must_sync():
                os.fsync(self._file)
        finally:
            os.close(self._file)
        self._on_close()


def write_all(file: int, data: Any) -> int:
    """Write all of a buffer; returns its size in bytes."""
    rest = memoryview(data).cast("B")
    size_bytes = written = len(rest)
    while size_bytes:
        written = os.write(file, rest)
        if written == len(rest):
            break
        rest = rest[written:]
    return size_bytes
