"""A folder on a local disk, by system calls: the puts and gets of a commit (D25).

The object store library does the same through a pool of threads, and the hand-over costs several
times the calls; and its listing calls stat on every file, not only on those after a name. Names of
temporary files end in "#<number>"; listings leave them out.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO, cast

from txnlog.process.clock import SystemClock
from txnlog.storage.store.fsync import SyncedNames, check_synced, sync
from txnlog.storage.store.local_writer import LocalWriter, write_all

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
"""Without O_NONBLOCK the open of a FIFO waits for a writer, perhaps for ever."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK
_TEMPORARY = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_SURE_REFUSALS = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EMLINK,
        errno.ENAMETOOLONG,
        errno.ENOSPC,
        errno.ENOTSUP,
        errno.EPERM,
        errno.EROFS,
    }
)
"""Errors of link and rename that guarantee that no name was created."""
_LOG_ENDINGS = (".json", ".parquet")
_IS_TEMPORARY = re.compile(r"#\d+\Z")
_PUT_MS_MAX = 1_000
_BROKEN = "a link that leads nowhere"
_clock = SystemClock()


class NothingWrittenOSError(OSError):
    """A put failed before its file had a name that readers use."""


class IrregularFileError(Exception):
    """There is a FIFO, a device, a socket, a folder or a broken link instead of a file; or, above
    a file, something else than a folder. `path` is that place, relative to the root.
    """

    def __init__(self, kind: str, path: str, *, wanted: str = "a file") -> None:
        super().__init__(f"it is {kind}, not {wanted}")
        self.path = path


class FolderAwayError(Exception):
    """A link to a folder leads nowhere: the file system behind it is not mounted."""


class TooLargeError(Exception):
    """A file has more bytes than the caller reads at once."""


class LocalDisk:
    """Paths are relative to `root`, with '/' between parts. Methods raise OSError, ValueError.

    Puts create missing folders only while `makes_folders`: after a file system was unmounted, its
    mount point is an empty folder that must not be written to. With `fsync` each write that
    returned survives power loss: file, folder, and the folders above it. `others_fsync`: so does
    each other process, so a file that has its name is on the disk.
    """

    def __init__(self, root: str, *, fsync: bool = False, makes_folders: bool = True) -> None:
        self.root = os.path.normpath(root)
        self.fsync = fsync
        self.others_fsync = False
        self.makes_folders = makes_folders
        self._names = SyncedNames(self.root)

    def path(self, path: str) -> str:
        """The path of an object. Raises ValueError for a path that leaves the root."""
        if ".." in path and ".." in path.split("/"):
            raise ValueError(f"{path!r} leaves its root")
        return f"{self.root}/{path}"

    def free_bytes(self) -> int:
        """What this user can still write; 0 where no file can be created."""
        status = os.statvfs(self.root)
        if status.f_files and not status.f_favail:
            return 0
        return status.f_bavail * status.f_frsize

    def get(self, path: str, bytes_max: int | None = None) -> bytes:
        """The whole file. Raises FileNotFoundError, IrregularFileError, TooLargeError."""
        try:
            file = os.open(self.path(path), _READ)
        except OSError as error:
            self._check_irregular(path, error)
            raise
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise IrregularFileError(_kind(status.st_mode), path)
            size_bytes = status.st_size
            if bytes_max is not None and size_bytes > bytes_max:
                raise TooLargeError(size_bytes)
            data = more = os.read(file, size_bytes)
            while more and len(data) < size_bytes:
                more = os.read(file, size_bytes - len(data))
                data += more
            return data
        finally:
            os.close(file)

    def exists(self, path: str) -> bool:
        """Whether the name is taken, by a file or by anything else: a put would find it there."""
        try:
            os.lstat(self.path(path))
        except FileNotFoundError:
            return False
        except OSError as error:
            self._check_irregular(path, error)
            raise
        return True

    def head(self, path: str) -> tuple[str, int, int]:
        """(path, size in bytes, modification time in ms) of a file.

        Raises FileNotFoundError, IrregularFileError.
        """
        self.check_regular(path)
        status = os.stat(self.path(path))
        return path, status.st_size, status.st_mtime_ns // 1_000_000

    def check_regular(self, path: str) -> None:
        """Raise FileNotFoundError, IrregularFileError unless there is a file to open."""
        try:
            mode = os.stat(self.path(path)).st_mode
        except OSError as error:
            self._check_irregular(path, error)
            raise
        if not stat.S_ISREG(mode):
            raise IrregularFileError(_kind(mode), path)

    def has_folder(self, path: str) -> bool:
        """Whether the folder exists."""
        return os.path.isdir(self.path(path))

    def set_aside(self, path: str) -> None:
        """Rename whatever has the name of a folder and leads to none; what it holds stays."""
        target = self.path(path)
        if os.path.lexists(target) and not os.path.isdir(target):
            os.rename(target, f"{target}.damaged-{os.urandom(4).hex()}")

    def make_folder(self, path: str) -> None:
        """Create a folder and those above it, including the root's."""
        try:
            os.makedirs(self.path(path), exist_ok=True)
        except OSError as error:
            raise _nothing_written(error) from error

    def put(self, path: str, data: Any) -> None:
        """Write or overwrite, atomically."""
        target = self.path(path)
        temporary = self._write_temporary(target, data)
        try:
            os.rename(temporary, target)
        except BaseException as error:
            with suppress(OSError):
                os.unlink(temporary)
            if isinstance(error, OSError) and error.errno in _SURE_REFUSALS:
                raise _nothing_written(error) from error
            raise
        self.sync_name(path)

    def put_new(self, path: str, data: Any) -> None:
        """Write a file that no log references yet: it need not appear at once."""
        target = self.path(path)
        try:
            self._fill(self._open_new(target), target, data)
        except OSError as error:
            raise _nothing_written(error) from error
        self.sync_name(path)

    def link(self, path: str, file: str) -> None:
        """Give an existing file, anywhere on this file system, a name here that is not taken."""
        target = self.path(path)
        if self.makes_folders:
            os.makedirs(os.path.dirname(target), exist_ok=True)
        if not (os.path.exists(target) and os.path.samefile(file, target)):
            os.link(file, target)
        if self.fsync:
            self.sync(path)

    def put_if_absent(self, path: str, data: Any) -> bool:
        """Create the complete file. False: it exists. After an error the file may exist, unless it
        is a NothingWrittenOSError.
        """
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
            # Clean-up removed the temporary file of a process that was paused; nothing landed.
            raise OSError(f"{temporary} is gone") from error
        except OSError as error:
            if error.errno in _SURE_REFUSALS:
                raise _nothing_written(error) from error
            raise
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        self.sync_name(path)
        return True

    def delete(self, path: str) -> None:
        """Delete a file. A folder in its place only gets another name."""
        target = self.path(path)
        try:
            os.unlink(target)
        except OSError:
            if os.path.islink(target) or not os.path.isdir(target):
                raise
            os.rename(target, f"{target}.folder")

    def open_writer(self, path: str, look: Callable[[], object] = int) -> BinaryIO:
        """A new file to stream into; no log references it before it is closed.

        `look` is called before that: `fsync` may have changed since the file was opened.
        """
        try:
            file = self._open_new(self.path(path))
        except OSError as error:
            raise _nothing_written(error) from error

        def must_sync() -> bool:
            look()
            return self.fsync

        on_close = partial(self.sync_name, path)
        writer = LocalWriter(file, must_sync=must_sync, on_close=on_close)
        return cast("BinaryIO", writer)

    def list_files(self, folder: str, start_after: str) -> list[tuple[str, int, int]]:
        """(path, size in bytes, modification time in ms) of all files below a folder whose path is
        after `start_after`; none if there is no folder.

        Whatever has the name of a log's file is listed, also a folder or a broken link: it takes
        the place of that file. Raises IrregularFileError if there is something else than a folder,
        FolderAwayError.
        """
        found: list[tuple[str, int, int]] = []
        folders = [folder]
        top = folder
        while folders:
            folder = folders.pop()
            try:
                entries = os.scandir(self.path(folder))
            except OSError as error:
                if folder == top:
                    self._check_away(folder, error)
                    self._check_irregular(folder, error, wanted="a folder")
                if not isinstance(error, FileNotFoundError | NotADirectoryError):
                    raise
                continue
            with entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    # A link to a folder above would be an endless loop.
                    is_folder = entry.is_dir(follow_symlinks=False)
                    if is_folder:
                        folders.append(path)
                    if (
                        path > start_after
                        and not _IS_TEMPORARY.search(entry.name)
                        and not (is_folder and not entry.name.endswith(_LOG_ENDINGS))
                    ):
                        with suppress(FileNotFoundError):
                            status = _status(entry)
                            changed_ms = status.st_mtime_ns // 1_000_000
                            found.append((path, status.st_size, changed_ms))
        return found

    def list_folder(self, folder: str) -> tuple[list[str], list[tuple[str, int, int]]]:
        """Names of the folders in a folder, and its files as `list_files` gives them.

        A name that is not UTF-8 has surrogates. A broken link is neither.
        """
        folders: list[str] = []
        files: list[tuple[str, int, int]] = []
        with (
            suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(self.path(folder)) as entries,
        ):
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir():
                        folders.append(entry.name)
                    elif not _IS_TEMPORARY.search(entry.name):
                        status = entry.stat()
                        path = f"{folder}/{entry.name}" if folder else entry.name
                        files.append((path, status.st_size, status.st_mtime_ns // 1_000_000))
        return folders, files

    def list_temporaries(self, folder: str) -> list[tuple[str, int, int]]:
        """(path, size in bytes, modification time in ms) of temporary files in a folder."""
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

    def rely_on(self, paths: Sequence[str]) -> None:
        """With `fsync`: make files of one folder survive power loss, whoever wrote them."""
        for path in paths if self.fsync and not self.others_fsync else ():
            # A file that is gone was replaced by a checkpoint, which clean-up has synced.
            with suppress(FileNotFoundError):
                sync(self.path(path))
        self.sync_name(paths[-1])

    def sync(self, path: str) -> None:
        """Make a file and its name survive power loss, with or without `fsync`."""
        sync(self.path(path))
        self._names.sync(os.path.dirname(self.path(path)))

    def sync_name(self, path: str) -> None:
        """With `fsync`: make the name of a file survive power loss. Raises NotSyncedOSError."""
        if self.fsync:
            self._names.sync(os.path.dirname(self.path(path)))

    def _write_temporary(self, target: str, data: Any) -> str:
        temporary = f"{target}#{int.from_bytes(os.urandom(7), 'little')}"
        try:
            self._fill(self._open(temporary, _TEMPORARY), temporary, data)
        except OSError as error:
            raise _nothing_written(error) from error
        return temporary

    def _fill(self, file: int, name: str, data: Any) -> None:
        """Write a new file; remove it if that fails."""
        try:
            try:
                write_all(file, data)
                if self.fsync:
                    os.fsync(file)
            finally:
                os.close(file)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise

    def _open_new(self, target: str) -> int:
        try:
            return self._open(target, _TEMPORARY)
        except FileExistsError:
            file = self._open(target, _NEW)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EEXIST, "not a regular file", target)
        return file

    def _open(self, target: str, flags: int) -> int:
        if self.fsync:
            check_synced(os.path.dirname(target))
        try:
            return os.open(target, flags, 0o666)
        except FileNotFoundError:
            if not self.makes_folders:
                raise
            os.makedirs(os.path.dirname(target), exist_ok=True)
            return os.open(target, flags, 0o666)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                self._check_irregular(os.path.relpath(target, self.root), error)
            raise

    def _check_irregular(self, path: str, error: OSError, *, wanted: str = "a file") -> None:
        """Raise IrregularFileError if a call failed because of the kind of a file; it always will.

        `wanted` is what should be at the path; above it there should be folders.
        """
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            # A name that does not exist may be a link that leads nowhere.
            if isinstance(error, FileNotFoundError) and os.path.islink(self.path(path)):
                raise IrregularFileError(_BROKEN, path, wanted=wanted) from error
            return
        parts = path.split("/")
        for count in range(1, len(parts)):
            self._check_kind("/".join(parts[:count]), "a folder", error)
        self._check_kind(path, wanted, error)

    def _check_away(self, folder: str, error: OSError) -> None:
        """Raise FolderAwayError if a folder was not found because of a link."""
        if not isinstance(error, FileNotFoundError):
            return
        parts = folder.split("/")
        for count in range(1, len(parts) + 1):
            place = self.path("/".join(parts[:count]))
            if os.path.islink(place) and not os.path.exists(place):
                raise FolderAwayError("/".join(parts[:count])) from error

    def _check_kind(self, path: str, wanted: str, error: OSError) -> None:
        kind = "a link to itself"
        try:
            mode = os.stat(self.path(path)).st_mode
        except OSError as found:
            if found.errno != errno.ELOOP:
                return
        else:
            if (stat.S_ISDIR if wanted == "a folder" else stat.S_ISREG)(mode):
                return
            kind = _kind(mode)
        raise IrregularFileError(kind, path, wanted=wanted) from error


def _nothing_written(error: OSError) -> NothingWrittenOSError:
    return NothingWrittenOSError(error.errno, error.strerror or str(error), error.filename)


def _status(entry: os.DirEntry[str]) -> os.stat_result:
    try:
        return entry.stat()
    except OSError:
        # A broken link: a process that opens it gets the error, with its name.
        return entry.stat(follow_symlinks=False)


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFREG: "a file",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


def _set_time_to_now(target: str) -> None:
    """For a file that appeared long after it was written: clean-up uses its modification time."""
    with suppress(OSError):
        os.utime(target)
