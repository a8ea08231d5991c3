"""Converts checkpoint locations from Spark's (Hadoop's) notation to the URLs of our stores."""

from __future__ import annotations

import os
import re

from txnlog.errors import CheckpointError

__all__ = ["is_readable", "redacted_location", "store_url"]

# Hadoop's scheme -> the store's. Other schemes need a Hadoop client, which we do not have.
STORE_SCHEMES: dict[str, str] = {
    "file": "file",
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "az": "az",
    "abfs": "abfs",
    "abfss": "abfss",
    "wasb": "wasb",
    "wasbs": "wasbs",
}

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?P<rest>.*)", re.DOTALL)
_FILE = re.compile(r"(?://(?:localhost)?(?=/)|(?!//))(/.*)", re.DOTALL)
_CREDENTIALS = re.compile(r"://[^/@]*:[^/@]*@")


def is_readable(location: str) -> bool:
    """Whether our stores can read a checkpoint there, judged by its scheme alone."""
    try:
        store_url(location)
    except CheckpointError:
        return False
    return True


def store_url(location: str) -> str:
    """The URL of a checkpoint location for ``ObjectStore.from_url``.

    A path without a scheme is local. Local paths are returned without a scheme, since Hadoop,
    unlike a URL parser, does not decode ``%20`` in a path.

    Raises:
        CheckpointError: empty, or on a file system that only Hadoop can read.
    """
    if not location:
        raise CheckpointError(
            "The checkpoint location is empty: set option checkpointLocation on the query itself; "
            "spark.sql.streaming.checkpointLocation is not visible to the sink."
        )
    matched = _SCHEME.fullmatch(location)
    if matched is None:
        return _local_path(os.path.abspath(location))
    scheme, rest = matched[1].lower(), matched["rest"]
    if scheme == "file":
        local = _FILE.fullmatch(rest)
        if local is not None:
            return _local_path(local[1])
    elif scheme in STORE_SCHEMES and rest.startswith("//"):
        return f"{STORE_SCHEMES[scheme]}:{rest.rstrip('/')}" if rest != "//" else location
    printable = redacted_location(location)
    raise CheckpointError(
        f"The checkpoint at {printable!r} is on {scheme}:, which txnlog cannot read, and "
        "group.id needs the offsets in it. Put checkpointLocation on a local disk (file:/...), "
        "s3://, gs://, az:// or abfss://, or omit option group.id on the sink.",
        location=printable,
        scheme=scheme,
    )


def _local_path(path: str) -> str:
    # normpath() keeps two leading slashes, which POSIX allows to be special; Hadoop uses one.
    return "/" + os.path.normpath(path).lstrip("/")


def redacted_location(location: str) -> str:
    """The location without credentials, for messages."""
    return _CREDENTIALS.sub("://***@", location)
