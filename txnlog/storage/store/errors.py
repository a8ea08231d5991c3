"""Translation of a store's failures into errors that say what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from obstore import exceptions as obstore_exceptions

from txnlog.errors import (
    RESTORE_ALL,
    RESTORE_FILE,
    BucketNotFoundError,
    CorruptLogError,
    FolderNotFoundError,
    NothingWrittenError,
    NotSyncedError,
    ObjectNotFoundError,
    OutOfMemoryError,
    RecordTooLargeError,
    StorageError,
    StorePermissionError,
    TxnLogError,
)
from txnlog.settings.roots import place_of
from txnlog.settings.storage_tables import CLOUD_NAMES
from txnlog.storage.store.codes import (
    CONFLICTS,
    NO_CREDENTIALS,
    PLACE_MISSING,
    WRONG_KEY,
    WRONG_PLACE,
    describe_store_error,
    has_code,
    http_status,
    is_of_provider,
    shown_reason,
    store_code,
    was_retried,
)
from txnlog.storage.store.fsync import NotSyncedOSError
from txnlog.storage.store.local_disk import (
    FolderAwayError,
    IrregularFileError,
    NothingWrittenOSError,
    TooLargeError,
)
from txnlog.storage.store.panics import LibraryPanicError, panics_as_errors

WHOLE_BYTES_MAX = 1 << 30
"""Largest object that is read as a whole, or written for it; a log file is far smaller."""

_MEMORY_SIGNS = ("std::bad_alloc", "Cannot allocate memory", "malloc of size")

FAILURES = (
    obstore_exceptions.BaseError,
    FolderAwayError,
    IrregularFileError,
    TooLargeError,
    OSError,
    ValueError,
    MemoryError,
    NotImplementedError,
)
"""Exceptions of a store call that `store_error` translates."""

_WRITES = ("put", "upload", "delete")
_NO_BUCKET = "The bucket does not exist. Create it, or correct the root."
_WRONG_REGION = (
    "The bucket is in another region, or at another endpoint: set storage.aws_region or "
    "storage.aws_endpoint."
)
_CREDENTIALS = {
    "ExpiredToken": "they have expired. Renew them, or use storage.credentials.file or a role.",
    "TokenRefreshRequired": "they have expired. Renew them, or use storage.credentials.file.",
    "SignatureDoesNotMatch": "the secret key does not belong to the key id, or the endpoint is "
    "behind something that changes requests.",
    "InvalidAccessKeyId": "the store does not know the key id. Check it, and storage.aws_endpoint.",
    "RequestTimeTooSkewed": "this host's clock is wrong. Set it.",
}

_TRIED = {
    "s3": "storage.aws_access_key_id, the variables AWS_*, a web identity and the role of this "
    "host, but not ~/.aws, which needs storage.credentials.provider=boto3",
    "azure": "storage.azure_storage_account_key, the variables AZURE_*, a workload identity and "
    "the managed identity of this host",
    "gcs": "storage.google_service_account, the variables GOOGLE_*, the default credentials of "
    "gcloud and the service account of this host",
}
"""Where the store library looks for credentials, in this order."""

_REMEDIES = {
    errno.ENOSPC: "The disk is full: make room, then try again.",
    errno.EDQUOT: "The disk quota is used up: make room or raise it, then try again.",
    errno.EROFS: "The file system is mounted read-only: mount it writable, then try again.",
    errno.EMFILE: "This process has too many open files: raise its limit (ulimit -n), or close "
    "some, then try again.",
    errno.ENFILE: "The machine has too many open files: raise fs.file-max, then try again.",
    errno.EFBIG: "The file is larger than this process may write: raise its limit (ulimit -f), "
    "then try again.",
    errno.ENAMETOOLONG: "The path is too long for this file system: use a shorter root.",
    errno.EIO: "The disk has an error: check it (dmesg), then try again.",
}


def store_error(error: Exception, verb: str, path: str, *, url: str, is_local: bool) -> TxnLogError:
    """The error to raise from `error`, which a call of `verb` on `path` raised."""
    where = f"{url}/{path}"
    if isinstance(error, NothingWrittenOSError):
        return _not_written(error, where, path)
    if isinstance(error, NotSyncedOSError):
        return _not_synced(error, where, path)
    if isinstance(error, FolderAwayError):
        return folder_gone(f"{url}/{error}", path)
    if isinstance(error, FileNotFoundError) and (is_local or not has_code(error, PLACE_MISSING)):
        return ObjectNotFoundError(f"{where}: no such object.", path=path)
    if isinstance(error, IrregularFileError | TooLargeError):
        return _unlike_ours(error, url, path)
    if is_out_of_memory(error):
        return out_of_memory(where, path)
    if not is_local:
        return remote_error(error, where, verb, path)
    # A put on a local disk may lack a permission only after its file exists: state unknown.
    if verb != "put" and _is_refusal(error):
        return _refused(error, where, verb, path)
    return failed(where, verb, error, path=path)


def remote_error(error: Exception, where: str, verb: str, path: str) -> StorageError:
    """The error for a reply of an object store, or for none."""
    code, status = store_code(error), http_status(error)
    # An earlier try of a put may have taken effect before the store refused the last one.
    is_sure = verb not in _WRITES or not was_retried(error)
    if code in PLACE_MISSING and is_sure:
        return _misdirected(BucketNotFoundError, error, where, path, _NO_BUCKET)
    if code in WRONG_PLACE and is_sure:
        return _misdirected(NothingWrittenError, error, where, path, _WRONG_REGION)
    if code == NO_CREDENTIALS:
        return _without_credentials(error, where, path)
    if is_sure and (status in (401, 403) or code in WRONG_KEY or _is_refusal(error)):
        return _refused(error, where, verb, path)
    return failed(where, verb, error, path=path)


def failed(where: str, verb: str, error: BaseException, **context: object) -> StorageError:
    """The StorageError for what a store raised, with the store's code and reason.

    It is retriable, except for what comes again: a panic of the library, and a call that it lacks.
    """
    remedy = _remedy(error, "Check the store, then try again.")
    if "builder error" in str(error):
        remedy = "An http:// endpoint needs storage.allow_http=true; a proxy needs a valid URL."
    if isinstance(error, LibraryPanicError):
        context["retriable"] = False
        remedy = (
            "The store library failed inside: a storage.* option, or a variable of this process, "
            "cannot be used in a request, such as an endpoint that is no URL, or a key with a line "
            "break. Correct it; else report this."
        )
    if isinstance(error, NotImplementedError):
        context["retriable"] = False
        remedy = "Leave out storage.aws_conditional_put, and the variable AWS_CONDITIONAL_PUT."
    return StorageError(
        f"{where}: {verb} failed ({shown_reason(error)}). {remedy}",
        **context,
        **describe_store_error(error),
    )


def is_conflict(error: BaseException) -> bool:
    """Whether "exists" is not what the store replied, only what the library made of it."""
    return has_code(error, CONFLICTS)


def shown_cause(error: BaseException) -> BaseException:
    """The error as the cause of ours: of the same type, without the store's reply (R67)."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    try:
        return type(error)(shown_reason(error))
    except Exception:
        return LibraryFailedError(shown_reason(error))


class LibraryFailedError(Exception):
    """Stands for an error of the store library that cannot be copied."""


def out_of_memory(where: str, path: str) -> OutOfMemoryError:
    """Never CorruptLogError: an operator would delete an intact file."""
    return OutOfMemoryError(
        f"{where}: this process has not enough memory for it. The file may be intact. "
        "Give the process more memory, or let it do less at a time.",
        file=path,
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a library's error means that memory ran out, whatever its type."""
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in _MEMORY_SIGNS)


def folder_gone(where: str, path: str) -> FolderNotFoundError:
    """The error for a missing folder `where`."""
    return FolderNotFoundError(
        f"{where}: this folder is not there; nothing was written. Its file system is not mounted, "
        "or the folder was removed. Mount it, and the work continues by itself. If it is "
        f"lost: {RESTORE_ALL}",
        path=path,
    )


def check_size(url: str, path: str, data: Any) -> None:
    """Raise RecordTooLargeError for data that readers would refuse."""
    size_bytes = memoryview(data).nbytes
    if size_bytes > WHOLE_BYTES_MAX:
        raise RecordTooLargeError(
            f"{url}/{path} would have {size_bytes} bytes, and readers accept {WHOLE_BYTES_MAX} in "
            "such a file. Nothing was written. Write less at once.",
            path=path,
        )


def _is_refusal(error: Exception) -> bool:
    refusals = (
        PermissionError,
        obstore_exceptions.PermissionDeniedError,
        obstore_exceptions.UnauthenticatedError,
    )
    return isinstance(error, refusals) or "Permission denied" in str(error)


def _refused(error: Exception, where: str, verb: str, path: str) -> StorePermissionError:
    code = store_code(error)
    remedy = "Give this process permission for the path."
    if code in WRONG_KEY:
        remedy = "It does not accept the credentials: " + _CREDENTIALS.get(
            code or "", "check the storage.* options, or the environment, of this process."
        )
    return StorePermissionError(
        f"{where}: the store refuses to {verb} ({shown_reason(error)}). {remedy}",
        path=path,
        **describe_store_error(error),
    )


def _misdirected(
    kind: type[NothingWrittenError], error: Exception, where: str, path: str, remedy: str
) -> NothingWrittenError:
    return kind(
        f"{where}: {shown_reason(error)}. {remedy}",
        path=path,
        retriable=False,
        fatal=True,
        **describe_store_error(error),
    )


def _without_credentials(error: Exception, where: str, path: str) -> NothingWrittenError:
    """Nothing was sent: no credentials were given, or who supplies them does not answer."""
    status, place = http_status(error), place_of(where)
    is_retriable = status is None or status == 429 or status >= 500
    again = "; it is tried again" if is_retriable else ""
    assert place is not None
    tried = f"{_TRIED[place.cloud]} ({shown_reason(error)})"
    if is_of_provider(error):
        tried = f"storage.credentials.* only ({shown_reason(error)})"
    return NothingWrittenError(
        f"No {CLOUD_NAMES[place.cloud]} credentials found for {replace(place, prefix='').url}; "
        f"tried {tried}{again}.",
        path=path,
        retriable=is_retriable,
        fatal=not is_retriable,
        **describe_store_error(error),
    )


def _not_written(error: NothingWrittenOSError, where: str, path: str) -> NothingWrittenError:
    if error.errno in (errno.EACCES, errno.EPERM):
        return _refused(error, where, "put", path)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return folder_gone(where.rpartition("/")[0], path)
    remedy = _remedy(error, "Check the disk, then try again.")
    return NothingWrittenError(
        f"{where}: nothing was written ({shown_reason(error)}). {remedy}",
        path=path,
        **describe_store_error(error),
    )


def _not_synced(error: NotSyncedOSError, where: str, path: str) -> NotSyncedError:
    remedy = (
        "Check the disk (dmesg), then restart this process: it does not rely on this folder again."
    )
    if error.errno in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        remedy = "This file system cannot sync folders: create the root on another one, or with "
        remedy += "storage.fsync=false."
    return NotSyncedError(
        f"{where}: fsync failed ({shown_reason(error)}), so what was written there may not survive "
        f"a power cut. {remedy}",
        path=path,
        **describe_store_error(error),
    )


def _remedy(error: BaseException, otherwise: str) -> str:
    return _REMEDIES.get(getattr(error, "errno", None) or 0, otherwise)


def _unlike_ours(error: Exception, url: str, path: str) -> CorruptLogError:
    if isinstance(error, IrregularFileError):
        what, path = str(error), error.path
    else:
        what = f"it has {error} bytes, and no such file has more than {WHOLE_BYTES_MAX}"
    return CorruptLogError(
        f"{url}/{path}: {what}. It was not written by txnlog, or is damaged. Remove it. If "
        f"one of txnlog was there: {RESTORE_FILE}",
        file=path,
    )


@contextmanager
def store_errors(path: str, verb: str) -> Iterator[None]:
    """Translate the errors of the store's streams; callers handle TxnLogErrors only."""
    found: TxnLogError
    try:
        with panics_as_errors():
            yield
        return
    except TxnLogError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            found = out_of_memory(path, path)
        elif isinstance(error, OSError) and error.errno is not None:
            found = failed(path, verb, error, path=path)
        else:
            found = remote_error(error, path, verb, path)
        found.__cause__ = shown_cause(error)
    raise found
