"""The object store: all access to bytes outside this process (with obstore).

Local folders and object stores have the same interface: atomic puts, put-if-absent, listings.
Paths are relative to the store's url, with '/' between parts.
"""

from __future__ import annotations

import builtins
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

import obstore
from obstore import exceptions as obstore_exceptions
from obstore.store import AzureStore, LocalStore, MemoryStore, S3Store

from txnlog.errors import (
    ConfigError,
    FolderNotFoundError,
    ObjectNotFoundError,
    TxnLogError,
)
from txnlog.process.caches import local_path
from txnlog.process.clock import Clock, SystemClock, backoff_ms
from txnlog.process.failures import Failures
from txnlog.process.forking import check_parent, use_object_store
from txnlog.process.latency import LATENCY_MS_MAX, Latency
from txnlog.process.retries import Retries
from txnlog.process.together import together
from txnlog.settings.roots import place_of, without_secrets
from txnlog.settings.storage_options import parse_storage_options
from txnlog.storage.store.clock import StoreClock
from txnlog.storage.store.codes import shown_reason
from txnlog.storage.store.errors import (
    FAILURES,
    WHOLE_BYTES_MAX,
    check_size,
    folder_gone,
    is_conflict,
    shown_cause,
    store_error,
)
from txnlog.storage.store.fsync import sync_below
from txnlog.storage.store.local_disk import LocalDisk, TooLargeError
from txnlog.storage.store.opening import open_place
from txnlog.storage.store.panics import LibraryPanicError, is_panic

logger = logging.getLogger("txnlog")

T = TypeVar("T")

LOOK_MS = 1_000
"""How old what a process knows of its root's fsync may be when a write begins."""
SOME = 1_000
"""Objects of one page of a listing."""
_AT_ONCE = 64
"""Requests of one piece of work that an object store gets at the same time."""
_DELETED_AT_ONCE = 1_000
"""Paths that S3 takes in one request for deletion; Azure takes 256."""

BACKOFF_MS_MAX = 200.0
LOCAL_BACKOFF_MS_MAX = 50.0
"""On a local disk, where what others do takes milliseconds."""
_LOCAL_LATENCY_MS_MAX = 10.0
"""No longer wait for other writers than 50 ms there, either: they are up to five puts."""


class ObjectMeta(NamedTuple):
    """An object in a listing; the time is the store's own, in ms since the epoch."""

    path: str
    size_bytes: int
    last_modified_ms: int


class ObjectStore:
    """A root folder on a local disk, in memory, or in an object store.

    Every method may raise StorageError (retriable; a write may or may not have landed),
    NothingWrittenError (it has not), StorePermissionError, OutOfMemoryError, or ForkedProcessError
    in a child of `os.fork()`.
    """

    takes_writes = True

    def __init__(
        self,
        store: Any,
        url: str,
        *,
        clock: Clock | None = None,
        fsync: bool | None = None,
        makes_folders: bool = True,
    ) -> None:
        self._store = store
        self.url = url
        self.clock = clock or SystemClock()
        self.retries = Retries(self.clock.boot_ms)
        self._store_clock = StoreClock(self, self.clock)
        self._home: tuple[str, Callable[[], None]] | None = None
        self._must_check_home = False
        self._at_once = 1 if isinstance(store, LocalStore | MemoryStore) else _AT_ONCE
        self._deletes_lists = isinstance(store, S3Store | AzureStore | MemoryStore)
        self._disk = (
            LocalDisk(str(store.prefix), fsync=fsync or False, makes_folders=makes_folders)
            if isinstance(store, LocalStore)
            else None
        )
        self.fsync = fsync if self.is_local else None
        """The option `storage.fsync`; None: not given, or without effect here."""
        self._look: Callable[[], object] | None = None
        self._looked_ms: int | None = None
        self._looking = threading.Lock()
        self._bucket: Any = None
        """Of `take`: what has the objects of both stores."""
        self._options: Callable[[], Mapping[str, str]] = dict
        """A call, so that nothing shows the secrets among them (R67)."""
        self.latency = Latency(_LOCAL_LATENCY_MS_MAX if self.is_local else LATENCY_MS_MAX)

    @classmethod
    def from_url(
        cls,
        url: str,
        options: Mapping[str, str] | None = None,
        *,
        create: bool = True,
        clock: Clock | None = None,
    ) -> ObjectStore:
        """Open "/abs/path", "file:///path", "s3://bucket/prefix", "gs://...", "az://...".

        The path of a file: URL is literal: it has no escapes, no query and no fragment.
        Hadoop's s3a://, abfss:// and wasbs:// are the same places; `url` has one name for each.
        "memory://" gives a new, empty store at each call. `options` are those of
        settings.storage_tables, in any spelling. `create` creates missing local folders, until
        `watch_folder` is called. No request is made.
        Raises ConfigError for another url, an unknown or malformed option, and for a missing local
        folder unless `create`.
        """
        settings = parse_storage_options(url, options or {})
        path = local_path(url)
        if path is not None:
            opened = cls._local(os.path.abspath(path), create, clock, settings.fsync)
            opened._options = lambda: options or {}
            return opened
        check_parent()
        scheme = url.partition(":")[0].lower()
        place, shown = place_of(url), without_secrets(url)
        if scheme == "file":
            raise ConfigError(f"{shown!r} names a host; write file:///absolute/path.", url=shown)
        if scheme == "memory":
            return cls(MemoryStore(), url, clock=clock)
        if place is None:
            hint = (
                " Leave out credentials, query and fragment; credentials are storage.* options."
                if shown != url
                else ""
            )
            raise ConfigError(
                f"{shown!r}: scheme {scheme!r} cannot be opened, or the bucket is missing. "
                "Use a local path, file://, s3://bucket/..., gs://bucket/..., "
                f"az://container/... or abfss://container@account.dfs.core.windows.net/...{hint}",
                url=shown,
            )
        opened = cls(open_place(place.url, settings), place.url, clock=clock)
        opened._options = lambda: options or {}
        return opened

    def at(self, url: str) -> ObjectStore:
        """Another place. It has the options of this one if both are in one cloud, or on this disk;
        else its credentials are those of the environment.

        Raises ConfigError, also for a local folder that does not exist.
        """
        opened = self.beside(url, create=False)
        disk = self._disk
        if disk is not None and opened.is_local:
            # What the root records of fsync is for what its transactions write elsewhere, too.
            opened.watch_fsync(lambda: opened.set_fsync(disk.fsync, by_all=False))
        return opened

    def beside(self, url: str, *, create: bool = True) -> ObjectStore:
        """Another place, with the options as `at`; what is recorded here of fsync is not for it.

        Raises ConfigError, also for a local folder that does not exist, unless `create`.
        """
        here, there = place_of(self.url), place_of(url)
        is_same = (here and here.cloud) == (there and there.cloud)
        options = self._options() if is_same else {}
        return ObjectStore.from_url(url, options, create=create, clock=self.clock)

    @classmethod
    def _local(
        cls, folder: str, create: bool, clock: Clock | None, fsync: bool | None
    ) -> ObjectStore:
        if not create and not os.path.isdir(folder):
            raise ConfigError(f"There is no folder {folder}. Check the path.", url=folder)
        try:
            store = LocalStore(folder, mkdir=create)
        except (obstore_exceptions.BaseError, OSError) as error:
            raise ConfigError(
                f"The folder {folder} cannot be created or opened ({shown_reason(error)}). Check "
                "the path and its permissions.",
                url=folder,
            ) from error
        return cls(store, f"file://{folder}", clock=clock, fsync=fsync, makes_folders=create)

    def reopened(self) -> ObjectStore:
        """The same folder, opened again, where nothing is created and none is watched.

        Raises ConfigError if it does not exist.
        """
        disk = self._disk
        return self if disk is None else self._local(disk.root, False, self.clock, self.fsync)

    def __repr__(self) -> str:
        return f"ObjectStore({self.url!r})"

    def __reduce__(self) -> Any:
        raise TypeError("An ObjectStore is not pickled; send its url and options instead.")

    # -- bytes -----------------------------------------------------------------------------------

    def get(self, path: str) -> bytes:
        """The whole object. Raises ObjectNotFoundError; CorruptLogError for what cannot be a file
        of txnlog: a FIFO, a folder, or more than WHOLE_BYTES_MAX bytes.
        """
        disk = self._disk
        if disk is not None:
            return self._call("get", path, lambda: disk.get(path, WHOLE_BYTES_MAX))

        def fetch() -> bytes:
            found = obstore.get(self._store, path)
            if found.meta["size"] > WHOLE_BYTES_MAX:
                raise TooLargeError(found.meta["size"])
            return bytes(found.bytes())

        return self._call("get", path, fetch)

    def get_many(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """The objects in the order of `paths`, several fetched at a time."""
        return self.together([partial(self.get, path) for path in paths])

    def together(self, calls: Sequence[Callable[[], T]]) -> builtins.list[T]:
        """Make independent calls at the same time, where each waits for the network.

        Results in order; all calls are made even if some raise, then the first error is raised.
        Calls on a local disk, which takes microseconds, are made in turn by this thread. Calls run
        in other threads, so no two may use the same log.
        """
        return together(calls, at_once=self._at_once)

    def put(self, path: str, data: Any) -> None:
        """Write or overwrite, atomically. `data`: bytes or any buffer.

        Raises RecordTooLargeError for more than `get` reads.
        """
        check_size(self.url, path, data)
        disk = self._disk
        if disk is not None:
            self._call("put", path, lambda: disk.put(path, data))
        else:
            self._call("put", path, lambda: obstore.put(self._store, path, data, mode="overwrite"))

    def put_new(self, path: str, data: Any) -> None:
        """Write an object that no process reads before a commit references it.

        The cheapest put: on a local disk the file need not appear at once.
        """
        disk = self._disk
        if disk is not None:
            self._call("put", path, lambda: disk.put_new(path, data))
        else:
            self._call("put", path, lambda: obstore.put(self._store, path, data, mode="overwrite"))

    def shares_with(self, other: ObjectStore) -> bool:
        """Whether `take` works: both are on one file system, or in one bucket."""
        here, there = place_of(self.url), place_of(other.url)
        if here is not None and there is not None:
            return replace(here, prefix="") == replace(there, prefix="")
        disk, source = self._disk, other._disk
        if disk is None or source is None:
            return False
        return os.stat(disk.root).st_dev == os.stat(source.root).st_dev

    def take(self, path: str, other: ObjectStore) -> None:
        """Give an object of a store with which it shares the same path here, that is not taken.

        A link on a local disk, a copy by the service elsewhere: no bytes pass through here (D143).
        Raises ObjectNotFoundError.
        """
        disk, source = self._disk, other._disk
        if disk is not None and source is not None:
            self._call("put", path, lambda: disk.link(path, source.path(path)))
            return
        here, there = place_of(self.url), place_of(other.url)
        assert here is not None
        assert there is not None
        if self._bucket is None:
            self._bucket = self.beside(replace(here, prefix="").url)._store
        names = [f"{place.prefix}/{path}".lstrip("/") for place in (there, here)]
        self._call("put", path, lambda: obstore.copy(self._bucket, *names))

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create the object. False: it exists.

        Raises NothingWrittenError if it certainly did not land, any other StorageError if it may
        have; RecordTooLargeError for more than `get` reads.
        """
        check_size(self.url, path, data)
        disk = self._disk
        if disk is not None:
            return self._call("put", path, lambda: disk.put_if_absent(path, data))
        try:
            self._call("put", path, lambda: obstore.put(self._store, path, data, mode="create"))
        except _ExistsError:
            return False
        return True

    # -- durability on a local disk: D26 ----------------------------------------------------------

    def set_fsync(self, is_on: bool, *, by_all: bool) -> bool:
        """Whether writes from now on are synced; `by_all`: by every process that writes here.

        True if they were not before.
        """
        disk = self._disk
        if disk is None:
            return False
        self._looked_ms = self.clock.boot_ms()
        was_on, disk.fsync, disk.others_fsync = disk.fsync, is_on, by_all
        return is_on and not was_on

    def watch_fsync(self, look: Callable[[], object]) -> None:
        """Before a write, where the last `set_fsync` is LOOK_MS ago, `look` reads what the root
        says now, and calls it. It writes nothing; after a TxnLogError the last value holds.
        """
        if self._disk is not None:
            self._look = look

    def rely_on(self, paths: Sequence[str]) -> None:
        """With fsync, make files of one folder survive power loss that others may have written."""
        disk = self._disk
        if disk is not None and disk.fsync:
            self._call("sync", paths[-1], lambda: disk.rely_on(paths))

    def sync(self, path: str) -> None:
        """Make a file and its name survive power loss, with or without fsync.

        Raises ObjectNotFoundError, NotSyncedError.
        """
        disk = self._disk
        if disk is not None:
            self._call("sync", path, lambda: disk.sync(path))

    def sync_all(self, report: Callable[[int, int], None]) -> None:
        """Make every file and folder survive power loss that is there now, with or without fsync.

        `report(files done, number of files)` is called now and then. Raises NotSyncedError.
        """
        disk = self._disk
        if disk is not None:
            self._call("sync", "", lambda: sync_below(disk.root, report))

    def _look_if_due(self) -> None:
        look = self._look
        if look is None:
            return
        now_ms = self.clock.boot_ms()
        is_due = self._looked_ms is None or now_ms - self._looked_ms > LOOK_MS
        if is_due and self._looking.acquire(blocking=False):
            self._looked_ms = now_ms
            try:
                look()
            except TxnLogError as error:
                # What cannot be read cannot have been changed either.
                logger.debug("%s: fsync stays as it was: %s", self.url, error)
            finally:
                self._looking.release()

    def head(self, path: str) -> ObjectMeta:
        """Size and time of an object. Raises ObjectNotFoundError."""
        disk = self._disk
        if disk is not None:
            return ObjectMeta(*self._call("head", path, lambda: disk.head(path)))
        return _meta(self._call("head", path, lambda: obstore.head(self._store, path)))

    def back_off(self, attempt: int) -> None:
        """Wait before retry number `attempt` (0, 1, ...) of an operation that others interrupt, or
        of a call that failed.
        """
        backoff_ms_max = LOCAL_BACKOFF_MS_MAX if self.is_local else BACKOFF_MS_MAX
        self.clock.sleep_ms(backoff_ms(attempt, backoff_ms_max=backoff_ms_max))

    @property
    def is_remote(self) -> bool:
        """Whether each call is a request that waits for a network, and costs money."""
        return self._at_once > 1

    @property
    def is_local(self) -> bool:
        """Whether the store is a local disk: a call takes microseconds, and is no request."""
        return self._disk is not None

    def free_bytes(self) -> int | None:
        """The free space of a local disk; None for another store."""
        disk = self._disk
        return None if disk is None else self._call("head", "", disk.free_bytes)

    def exists(self, path: str) -> bool:
        """Whether the object exists."""
        disk = self._disk
        if disk is not None:
            return self._call("head", path, lambda: disk.exists(path))
        try:
            self.head(path)
        except ObjectNotFoundError:
            return False
        return True

    def list(self, prefix: str, *, start_after: str | None = None) -> builtins.list[ObjectMeta]:
        """All objects below a folder, recursively and unordered; only those after `start_after`."""
        disk = self._disk

        def fetch() -> builtins.list[ObjectMeta]:
            if disk is not None:
                return [ObjectMeta(*item) for item in disk.list_files(prefix, start_after or "")]
            pages = obstore.list(self._store, prefix or None, offset=start_after)
            # Azure's servers of versions before startFrom ignore it, and list from the beginning
            # (D84).
            found = [_meta(item) for page in pages for item in page]
            return [meta for meta in found if meta.path > (start_after or "")]

        return self._call("list", prefix, fetch)

    def list_some(self, prefix: str) -> builtins.list[ObjectMeta]:
        """Objects below a folder, recursively: the first SOME in an object store, in one request;
        all of them on a disk.
        """
        disk = self._disk

        def fetch() -> builtins.list[ObjectMeta]:
            if disk is not None:
                return [ObjectMeta(*item) for item in disk.list_files(prefix, "")]
            pages = obstore.list(self._store, prefix or None, chunk_size=SOME)
            return [_meta(item) for item in next(iter(pages), ())]

        return self._call("list", prefix, fetch)

    def list_files(self, prefix: str) -> builtins.list[ObjectMeta]:
        """The objects directly in a folder, unordered."""
        disk = self._disk

        def fetch() -> builtins.list[ObjectMeta]:
            if disk is not None:
                return [ObjectMeta(*item) for item in disk.list_folder(prefix)[1]]
            found = obstore.list_with_delimiter(self._store, prefix or None)
            return [_meta(item) for item in found["objects"]]

        return self._call("list", prefix, fetch)

    def list_temporaries(self, prefix: str) -> builtins.list[ObjectMeta]:
        """Temporary files of killed puts in a folder of a local disk; listings leave them out."""
        disk = self._disk
        if disk is None:
            return []
        found = self._call("list", prefix, lambda: disk.list_temporaries(prefix))
        return [ObjectMeta(*item) for item in found]

    def delete_temporaries(self, paths: Iterable[str]) -> None:
        """Delete files that `list_temporaries` returned."""
        disk = self._disk
        if disk is None:
            return
        for path in paths:
            with suppress(ObjectNotFoundError):
                self._call("delete", path, partial(os.unlink, disk.path(path)))

    def list_folders(self) -> builtins.list[str]:
        """Names of the folders directly below the root."""
        disk = self._disk

        def fetch() -> builtins.list[str]:
            if disk is not None:
                return disk.list_folder("")[0]
            found = obstore.list_with_delimiter(self._store)
            return [folder.rstrip("/").rsplit("/", 1)[-1] for folder in found["common_prefixes"]]

        return self._call("list", "", fetch)

    def move(self, path: str, target: str) -> None:
        """Give an object another name, in a folder that exists; a missing one is ignored.

        An object store copies it, then deletes it: after an error it may have both names.
        """
        disk = self._disk

        def rename() -> None:
            if disk is None:
                obstore.copy(self._store, path, target)
                return
            os.rename(disk.path(path), disk.path(target))
            disk.sync_name(target)
            disk.sync_name(path)

        with suppress(ObjectNotFoundError):
            self._call("put", target, rename)
            if disk is None:
                self._delete_one(path)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects, in any order; missing ones are ignored.

        S3 and Azure take lists of them, several at a time. All are tried, but of a list only the
        first if that fails alone, too; then the errors are raised as one, with their paths.
        """
        listed = builtins.list(paths)
        size = _DELETED_AT_ONCE if self._deletes_lists else 1
        parts = [listed[at : at + size] for at in range(0, len(listed), size)]
        failures = Failures("Deleting", logging.DEBUG)
        calls = [partial(self._delete_list, part) for part in parts]
        names = [part[0] if len(part) == 1 else f"list from {part[0]} on" for part in parts]
        failures.together(self.together, builtins.list(zip(names, calls, strict=True)))
        failures.check()

    def delete_in_order(self, paths: Iterable[str]) -> None:
        """Delete objects one after the other: if one is gone, so are those before it.

        A list deletes them in any order, and may leave some. Missing ones are ignored; the first
        error ends it.
        """
        for path in paths:
            self._delete_one(path)

    def _delete_list(self, paths: Sequence[str]) -> None:
        if len(paths) > 1:
            try:
                self._call(
                    "delete", paths[0], partial(obstore.delete, self._store, builtins.list(paths))
                )
                return
            except TxnLogError:
                # Azure reports a missing object, some services take no lists, and the error of a
                # list does not name its path. If the store is at fault, the next call shows it.
                pass
        self._delete_one(paths[0])
        failures = Failures("Deleting", logging.DEBUG)
        calls = [(path, partial(self._delete_one, path)) for path in paths[1:]]
        failures.together(self.together, calls)
        failures.check()

    def _delete_one(self, path: str) -> None:
        disk = self._disk
        delete = partial(obstore.delete, self._store) if disk is None else disk.delete
        with suppress(ObjectNotFoundError):
            self._call("delete", path, partial(delete, path))

    def open_writer(self, path: str) -> BinaryIO:
        """A binary file to stream into, which no process reads before it is closed.

        Before close() the file exists, incomplete, on a local disk only.
        """
        disk = self._disk
        if disk is not None:
            return self._call("put", path, lambda: disk.open_writer(path, self._look_if_due))
        # Each part being uploaded is in memory, and a task has several writers open.
        writer: Any = self._call(
            "put", path, lambda: obstore.open_writer(self._store, path, max_concurrency=2)
        )
        return cast(BinaryIO, writer)

    def open_reader(self, path: str) -> BinaryIO:
        """A seekable binary file. Raises ObjectNotFoundError."""
        reader: Any = self._call("get", path, lambda: obstore.open_reader(self._store, path))
        return cast(BinaryIO, reader)

    def local_path(self, path: str) -> str | None:
        """The object's path on this machine's disk, None for other stores."""
        return None if self._disk is None else self._disk.path(path)

    def check_regular(self, path: str) -> None:
        """Raise CorruptLogError for a FIFO, before a library opens it and waits for a writer."""
        disk = self._disk
        if disk is not None:
            self._call("get", path, lambda: disk.check_regular(path))

    # -- folders of a local disk -----------------------------------------------------------------

    def make_folder(self, path: str) -> None:
        """Create a table's folder, for a new table only. Object stores have no folders.

        Raises FolderNotFoundError if the watched folder, and so the root, is gone.
        """
        disk = self._disk
        if disk is not None:
            if self._home is not None:
                self.check_folder(self._home[0])
            self._call("put", path, lambda: disk.make_folder(path))

    def set_aside(self, path: str) -> None:
        """Rename what is in the place of a folder and is none, on a local disk."""
        disk = self._disk
        if disk is not None:
            self._call("put", path, lambda: disk.set_aside(path))

    def check_folder(self, path: str) -> None:
        """Raise FolderNotFoundError if a folder that existed is gone from a local disk."""
        disk = self._disk
        if disk is not None and not disk.has_folder(path):
            self._must_check_home = True
            raise folder_gone(f"{self.url}/{path}", path)

    def watch_folder(self, path: str, check: Callable[[], None]) -> None:
        """From now on only `make_folder` creates folders, and only while this folder exists.

        An unmounted root is an empty folder, and what is written there is hidden by the next mount
        (D66). After a folder was missing, `check` runs before the next call: it raises for another
        cluster's root.
        """
        self._home = (path, check)
        if self._disk is not None:
            self._disk.makes_folders = False

    def _check_home(self, disk: LocalDisk) -> None:
        if self._home is not None:
            path, check = self._home
            if not disk.has_folder(path):
                raise folder_gone(f"{self.url}/{path}", path)
            check()
        self._must_check_home = False

    # -- see txnlog.storage.store.clock ----------------------------------------------------------

    def now_ms(self) -> int:
        """The store's time."""
        return self._store_clock.now_ms()

    def forget_clock(self) -> None:
        """Measure the store's time at the next `now_ms`: the last one was wrong."""
        self._store_clock.forget()

    def _call(self, verb: str, path: str, call: Callable[[], T]) -> T:
        if self._disk is None:
            use_object_store()
        elif self._must_check_home:
            self._check_home(self._disk)
        if verb == "put":
            self._look_if_due()
        try:
            return call()
        except obstore_exceptions.AlreadyExistsError as error:
            if not is_conflict(error):
                raise _ExistsError(path) from None
            failure: Exception = error
        except FAILURES as error:
            failure = error
        except BaseException as error:
            if not is_panic(error):
                raise
            failure = LibraryPanicError(str(error))
        # Not in a handler: the library's error has the store's reply, which may name a key (R67).
        found = self._failed(failure, verb, path)
        raise found from None if isinstance(found, ObjectNotFoundError) else shown_cause(failure)

    def _failed(self, error: Exception, verb: str, path: str) -> TxnLogError:
        is_local = self._disk is not None
        found = store_error(error, verb, path, url=self.url, is_local=is_local)
        self._must_check_home |= isinstance(found, FolderNotFoundError)
        return found


class _ExistsError(Exception):
    """put-if-absent found an existing object."""


def _meta(item: Mapping[str, Any]) -> ObjectMeta:
    modified_ms = int(item["last_modified"].timestamp() * 1000)
    return ObjectMeta(item["path"], item["size"], modified_ms)
