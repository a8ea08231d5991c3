"""Where a checkpoint lies: from Spark's (Hadoop's) way to write a path to that of our stores."""

from __future__ import annotations

import os
import re

from txnlog.errors import CheckpointError

__all__ = ["is_readable", "shown", "store_url"]

# Hadoop's scheme -> ours. Schemes that are not here need a Hadoop client, which we do not have.
STORE_SCHEMES: dict[str, str] = {
    "file": "file",
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "az": "az",
    "abfs": "abfs",
    "abfss": "abfss",
}

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?P<rest>.*)", re.DOTALL)
_FILE = re.compile(r"(?://(?:localhost)?(?=/)|(?!//))(/.*)", re.DOTALL)
_CREDENTIALS = re.compile(r"://[^/@]*:[^/@]*@")


def is_readable(location: str) -> bool:
    """Say whether our stores can read a checkpoint there, judged by its scheme alone."""
    try:
        store_url(location)
    except CheckpointError:
        return False
    return True


def store_url(location: str) -> str:
    """Give the address of a checkpoint location as ``ObjectStore.from_url`` takes it.

    A path without a scheme is taken as local. Local paths come out without a scheme, since Hadoop,
    unlike a URL parser, takes ``%20`` in a path letter for letter.

    Raises:
        CheckpointError: empty, or on a file system that only Hadoop can read.
    """
    if not location:
        raise CheckpointError(
            "The checkpoint location is empty: set option checkpointLocation on the query itself; "
            "spark.sql.streaming.checkpointLocation is not visible to the sink."
        )
    found = _SCHEME.fullmatch(location)
    if found is None:
        return _local_path(os.path.abspath(location))
    scheme, rest = found[1].lower(), found["rest"]
    if scheme == "file":
        local = _FILE.fullmatch(rest)
        if local is not None:
            return _local_path(local[1])
    elif scheme in STORE_SCHEMES and rest.startswith("//"):
        return f"{STORE_SCHEMES[scheme]}:{rest.rstrip('/')}" if rest != "//" else location
    raise CheckpointError(
        f"The checkpoint at {shown(location)!r} is on {scheme}:, which txnlog cannot read, and "
        "group.id needs the offsets in it. Put checkpointLocation on a local disk (file:/...), "
        "s3://, gs://, az:// or abfss://, or leave option group.id out of the sink.",
        location=shown(location),
        scheme=scheme,
    )


def _local_path(path: str) -> str:
    # normpath() keeps two slashes at the beginning, which POSIX may give a meaning; Hadoop has one.
    return "/" + os.path.normpath(path).lstrip("/")


def shown(location: str) -> str:
    """Return the location as messages may show it: without credentials."""
    return _CREDENTIALS.sub("://***@", location)
