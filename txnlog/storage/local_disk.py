"""A folder on a local disk, by system calls: the puts and gets of a commit's path.

The object store library does the same through a pool of threads, and the hand-over to them costs
several times what the calls do; and its listing asks the disk about each file that is there, not
only those after a name. Names of files under way end in "#<number>": no listing has them.
"""

from __future__ import annotations

import io
import os
import re
from contextlib import suppress
from typing import Any, BinaryIO, cast

from txnlog.clock import SystemClock

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_TEMPORARY = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_IS_TEMPORARY = re.compile(r"#\d+\Z")
_PUT_MS_MAX = 1_000
_clock = SystemClock()


class LocalDisk:
    """Paths are relative to `root`, with '/' between parts. Methods raise OSError, ValueError.

    With `fsync` whatever returned survives power loss: file, folder, and the folders above it.
    """

    def __init__(self, root: str, *, fsync: bool = False) -> None:
        self.root = os.path.normpath(root)
        self.fsync = fsync
        self._synced_folders: set[str] = set()

    def path(self, path: str) -> str:
        """Where an object lies. Raises ValueError for a path that leaves the root."""
        if ".." in path and ".." in path.split("/"):
            raise ValueError(f"{path!r} leaves its root")
        return f"{self.root}/{path}"

    def get(self, path: str) -> bytes:
        """The whole file. Raises FileNotFoundError."""
        file = os.open(self.path(path), os.O_RDONLY)
        try:
            size_bytes = os.fstat(file).st_size
            data = more = os.read(file, size_bytes)
            while more and len(data) < size_bytes:
                more = os.read(file, size_bytes - len(data))
                data += more
            return data
        except IsADirectoryError:
            raise FileNotFoundError(f"{path} is a folder") from None
        finally:
            os.close(file)

    def exists(self, path: str) -> bool:
        """Whether there is a file."""
        try:
            os.stat(self.path(path))
        except FileNotFoundError:
            return False
        return True

    def put(self, path: str, data: Any) -> None:
        """Write or overwrite, atomically."""
        target = self.path(path)
        temporary = self._write_temporary(target, data)
        try:
            os.rename(temporary, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        self.sync(path)

    def put_new(self, path: str, data: Any) -> None:
        """Write a file that nobody looks for yet: it need not appear whole."""
        target = self.path(path)
        try:
            self._write(target, _NEW, data)
        except BaseException:
            with suppress(OSError):
                os.unlink(target)
            raise
        self.sync(path)

    def put_if_absent(self, path: str, data: Any) -> bool:
        """Create the file, whole. False: there is one. An error may come after it is there."""
        target = self.path(path)
        begun_ms = _clock.boot_ms()
        temporary = self._write_temporary(target, data)
        try:
            os.link(temporary, target)
            if _clock.boot_ms() - begun_ms > _PUT_MS_MAX:
                _set_time_to_now(target)
        except FileExistsError:
            return False
        except FileNotFoundError as error:
            # Clean-up took the file of a process that stood still for long; nothing landed.
            raise OSError(f"{temporary} is gone") from error
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        self.sync(path)
        return True

    def open_writer(self, path: str) -> BinaryIO:
        """A new file to stream into; nobody looks for it before it is closed."""
        target = self.path(path)
        writer = _Writer(self, path, self._open(target, _NEW))
        return cast("BinaryIO", writer)

    def list_files(self, folder: str, start_after: str) -> list[tuple[str, int, int]]:
        """(path, size in bytes, time of its last change in ms) of all files below a folder whose
        path is after `start_after`; none where there is no folder.
        """
        found: list[tuple[str, int, int]] = []
        folders = [folder]
        while folders:
            folder = folders.pop()
            with (
                suppress(FileNotFoundError, NotADirectoryError),
                os.scandir(self.path(folder)) as entries,
            ):
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir():
                        folders.append(path)
                    elif path > start_after and not _IS_TEMPORARY.search(entry.name):
                        with suppress(FileNotFoundError):
                            status = entry.stat()
                            changed_ms = status.st_mtime_ns // 1_000_000
                            found.append((path, status.st_size, changed_ms))
        return found

    def list_temporaries(self, folder: str) -> list[tuple[str, int, int]]:
        """(path, size in bytes, time of its last change in ms) of files under way in a folder."""
        found = []
        try:
            with os.scandir(self.path(folder)) as entries:
                for entry in entries:
                    if _IS_TEMPORARY.search(entry.name):
                        with suppress(FileNotFoundError):
                            status = entry.stat(follow_symlinks=False)
                            changed_ms = status.st_mtime_ns // 1_000_000
                            found.append((f"{folder}/{entry.name}", status.st_size, changed_ms))
        except FileNotFoundError:
            return []
        return found

    def sync(self, path: str) -> None:
        """With `fsync`: make the name of a file survive power loss, whoever wrote it."""
        if not self.fsync:
            return
        folder = os.path.dirname(self.path(path))
        _sync_folder(folder)
        if folder in self._synced_folders:
            return
        # A folder's own name stands in the one above it.
        above = folder
        while above != self.root and above.startswith(self.root):
            above = os.path.dirname(above)
            _sync_folder(above)
        with suppress(PermissionError):
            _sync_folder(os.path.dirname(self.root))
        self._synced_folders.add(folder)

    def _write_temporary(self, target: str, data: Any) -> str:
        temporary = f"{target}#{int.from_bytes(os.urandom(7), 'little')}"
        try:
            self._write(temporary, _TEMPORARY, data)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        return temporary

    def _write(self, target: str, flags: int, data: Any) -> None:
        file = self._open(target, flags)
        try:
            _write_all(file, data)
            if self.fsync:
                os.fsync(file)
        finally:
            os.close(file)

    def _open(self, target: str, flags: int) -> int:
        try:
            return os.open(target, flags, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            return os.open(target, flags, 0o666)


class _Writer(io.RawIOBase):
    """A file under way. Dropped without `close` it stays, without a name in any log."""

    def __init__(self, disk: LocalDisk, path: str, file: int) -> None:
        self._disk = disk
        self._path = path
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return _write_all(self._file, data)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        try:
            if self._disk.fsync:
                os.fsync(self._file)
        finally:
            os.close(self._file)
        self._disk.sync(self._path)


def _write_all(file: int, data: Any) -> int:
    rest = memoryview(data).cast("B")
    size_bytes = written = len(rest)
    while size_bytes:
        written = os.write(file, rest)
        if written == len(rest):
            break
        rest = rest[written:]
    return size_bytes


def _set_time_to_now(target: str) -> None:
    """For a file that appeared long after it was written: clean-up goes by the time it has."""
    with suppress(OSError):
        os.utime(target)


def _sync_folder(folder: str) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
