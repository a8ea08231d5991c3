"""Converts checkpoint locations from Spark's (Hadoop's) notation to the URLs of our stores."""

from __future__ import annotations

import os
import re

from txnlog.errors import CheckpointError
from txnlog.process.caches import local_path
from txnlog.settings.roots import SCHEMES, canonical_url, place_of, redacted_url

__all__ = ["is_readable", "redacted_location", "store_url"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?P<rest>.*)", re.DOTALL)


def is_readable(location: str) -> bool:
    """Whether our stores can read a checkpoint there, judged by its scheme alone."""
    try:
        store_url(location)
    except CheckpointError:
        return False
    return True


def store_url(location: str) -> str:
    """The URL of a checkpoint location for ``ObjectStore.from_url``.

    A path without a scheme is local. Local paths are returned without a scheme.

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
        path = local_path(location)
        if path is not None and path.startswith("/"):
            return _local_path(path)
    elif _is_of_a_cloud(scheme, rest, location):
        return canonical_url(location)
    printable = redacted_location(location)
    raise CheckpointError(
        f"The checkpoint at {printable!r} is on {scheme}:, which txnlog cannot read, and "
        "group.id needs the offsets in it. Put checkpointLocation on a local disk (file:/...), "
        "s3://, gs://, az:// or abfss://, or omit option group.id on the sink.",
        location=printable,
        scheme=scheme,
    )


def _is_of_a_cloud(scheme: str, rest: str, location: str) -> bool:
    """Other schemes need a Hadoop client, which we do not have; so does wasb without a host."""
    is_place = place_of(location) is not None or not scheme.startswith("wasb")
    return scheme in SCHEMES and rest.startswith("//") and is_place


def _local_path(path: str) -> str:
    # normpath() keeps two leading slashes, which POSIX allows to be special; Hadoop uses one.
    return "/" + os.path.normpath(path).lstrip("/")


def redacted_location(location: str) -> str:
    """The location without credentials, for messages."""
    return location if place_of(location) is not None else redacted_url(location)
