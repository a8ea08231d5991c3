"""The checkpoint folder of one query: its id, its offset log and its commit log."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from checkpoint.location import redacted_location, store_url
from checkpoint.offset_seq import OffsetSeq, damaged, log_version, parse_offset_seq
from txnlog.errors import (
    CheckpointError,
    ConfigError,
    CorruptLogError,
    ObjectNotFoundError,
    UnsupportedStoreError,
)
from txnlog.protocol.decoding import decode
from txnlog.settings.storage_options import checked_types
from txnlog.storage.store.objects import ObjectStore

__all__ = ["Checkpoint"]

COMMIT_LOG_VERSION_MAX = 3


class _StreamMetadata(msgspec.Struct, frozen=True):
    id: str


_METADATA = msgspec.json.Decoder(_StreamMetadata)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Checkpoint:
    """Reads a checkpoint location; the constructor does no I/O, and instances can be pickled.

    ``storage_options`` are those of the checkpoint's store. Every read goes to the store: nothing
    is cached, since another driver may write to the same folder.

    Raises:
        CheckpointError: the location is on a file system our stores cannot read, or a file is
            damaged or of an unknown version; names the location or the file, and the remedy.
        StorageError: the store failed.
    """

    def __init__(self, location: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._url = store_url(location)
        self._location = location
        self._storage_options = dict(checked_types(storage_options))
        self._opened: ObjectStore | None = None

    def __repr__(self) -> str:
        # Storage options may be secrets.
        return f"Checkpoint({redacted_location(self._location)!r})"

    def __reduce__(self) -> tuple[type[Checkpoint], tuple[str, dict[str, str]]]:
        # The absolute URL: a relative location would be another folder where it is unpickled.
        return Checkpoint, (self._url, self._storage_options)

    def query_id(self) -> str:
        """The id of the query that owns this checkpoint."""
        file = self.file_name("metadata")
        data = self._read("metadata")
        if data is None:
            raise CheckpointError(
                f"{file} does not exist, so this is not the checkpoint of a query that has "
                f"started.{self._scheme_hint()}",
                file=file,
            )
        try:
            return decode(_METADATA, data).id
        except ValueError as error:
            raise damaged(file, f'it is not JSON with the query\'s "id" ({error})') from error

    def offsets(self, batch_id: int) -> OffsetSeq | None:
        """The end offsets planned for a batch, None if Spark has not written them."""
        path = f"offsets/{batch_id}"
        data = self._read(path)
        return None if data is None else parse_offset_seq(data, file=self.file_name(path))

    def planned(self, batch_id: int) -> OffsetSeq:
        """The end offsets of a batch that must have been planned, since it is running.

        Raises:
            CheckpointError: the file is missing; names it.
        """
        found = self.offsets(batch_id)
        if found is None:
            file = self.file_name(f"offsets/{batch_id}")
            raise CheckpointError(
                f"{file} does not exist, and the offsets of batch {batch_id} are needed. If "
                "files of the checkpoint were deleted, restore them or start a new query with a "
                "new checkpointLocation, the same group.id and startingOffsets=committed."
                f"{self._scheme_hint()}",
                file=file,
                batch_id=batch_id,
            )
        return found

    def committed(self, batch_id: int) -> bool:
        """Whether Spark has logged the batch as committed, which it does after the sink."""
        path = f"commits/{batch_id}"
        data = self._read(path)
        if data is None:
            return False
        file = self.file_name(path)
        version, _, metadata = data.partition(b"\n")
        log_version(version.decode("utf-8", "replace").strip(), COMMIT_LOG_VERSION_MAX, file)
        if metadata:
            try:
                decode(_OBJECT, metadata)
            except ValueError as error:
                raise damaged(file, f"line 2 is not a JSON object ({error})") from error
        return True

    def file_name(self, path: str) -> str:
        """The name of one of the checkpoint's files, for messages."""
        return f"{redacted_location(self._url)}/{path}"

    def _read(self, path: str) -> bytes | None:
        try:
            return self._store().get(path)
        except ObjectNotFoundError:
            return None
        except CorruptLogError as error:
            raise damaged(self.file_name(path), str(error)) from error

    def _store(self) -> ObjectStore:
        if self._opened is None:
            if os.path.isabs(self._url) and not os.path.isdir(self._url):
                raise ObjectNotFoundError(f"{self._url}: no such folder.", path=self._url)
            try:
                self._opened = ObjectStore.from_url(self._url, self._storage_options, create=False)
            except (ConfigError, UnsupportedStoreError) as error:
                location = redacted_location(self._location)
                raise CheckpointError(
                    f"The checkpoint at {location!r} cannot be opened: {error} Its store's "
                    "settings are the options checkpoint.storage.<key>.",
                    location=location,
                ) from error
        return self._opened

    def _scheme_hint(self) -> str:
        if self._url.startswith("/") and not self._location.startswith("file:"):
            return (
                f" {self._location!r} was read on this host's disk: if Spark's fs.defaultFS is "
                "another file system, write checkpointLocation with its scheme."
            )
        return ""
