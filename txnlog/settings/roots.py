"""Roots: which are accepted; their cloud, bucket and prefix; and the one spelling of each place.

Hadoop and the store library name the same place differently (s3a://b/p and s3://b/p,
wasbs://c@a.blob... and abfss://c@a.dfs...). Caches, comparisons and messages use one name (D82).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from txnlog.errors import ConfigError
from txnlog.process.caches import local_path, normal_url
from txnlog.settings.arguments import shown
from txnlog.settings.storage_tables import Cloud

_AZURE_HOST: Final = re.compile(
    r"(?P<account>[a-z0-9-]+(?:\.z[a-z0-9]+)?)\.(?:dfs|blob)\.(?P<suffix>[a-z0-9.-]+)"
)
_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<place>[^/?#]*)(?P<path>[^?#]*)", re.DOTALL
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
_HEAD: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?[/\\]*")
ROOT_NAMES: Final = ("path", "txnlog.root")
AZURE_SUFFIX: Final = "core.windows.net"
FABRIC_SUFFIX: Final = "fabric.microsoft.com"
SCHEMES: Final[dict[str, Cloud]] = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    **dict.fromkeys(("az", "azure", "adl", "abfs", "abfss", "wasb", "wasbs"), "azure"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder in an object store.

    `account` and `suffix` (core.windows.net) are of an Azure root that names them, else empty.
    """

    cloud: Cloud
    bucket: str
    prefix: str
    account: str = ""
    suffix: str = ""

    @property
    def url(self) -> str:
        """The one spelling of this place."""
        tail = f"/{self.prefix}" if self.prefix else ""
        if self.cloud == "s3":
            return f"s3://{self.bucket}{tail}"
        if self.cloud == "gcs":
            return f"gs://{self.bucket}{tail}"
        if self.account:
            return f"abfss://{self.bucket}@{self.account}.dfs.{self.suffix}{tail}"
        return f"az://{self.bucket}{tail}"

    @property
    def store_url(self) -> str:
        """The place as the store library reads it, without the account."""
        scheme = {"s3": "s3", "gcs": "gs", "azure": "az"}[self.cloud]
        return f"{scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


def place_of(url: str) -> Place | None:
    """The place of a URL in an object store; None for other URLs, and for one without a bucket.

    User names other than Azure's containers, queries and fragments make it None, too: they may be
    secrets, and opening such a URL raises.
    """
    found = _URL.fullmatch(url)
    cloud = SCHEMES.get(found["scheme"].lower()) if found else None
    if found is None or cloud is None:
        return None
    where, prefix = found["place"], found["path"].strip("/")
    user, at, host = where.rpartition("@")
    if ":" in host:
        # A password with a slash: s3://user:pass/word@bucket.
        return None
    if not at:
        return Place(cloud=cloud, bucket=host, prefix=prefix) if host else None
    matched = _AZURE_HOST.fullmatch(host.lower()) if cloud == "azure" else None
    if matched is None or not user or ":" in user:
        return None
    account, suffix = matched["account"], matched["suffix"]
    return Place(cloud=cloud, bucket=user, prefix=prefix, account=account, suffix=suffix)


def canonical_url(url: str) -> str:
    """The one spelling of a place in an object store; any other text unchanged."""
    place = place_of(url)
    return url if place is None else place.url


def without_secrets(url: str) -> str:
    """A text that is no place, perhaps a mistyped URL, without what may be a user, a password, a
    query or a fragment.
    """
    found = _HEAD.match(url)
    head = found[0] if found else ""
    hidden, at, rest = url[len(head) :].rpartition("@")
    if "?" in hidden or "#" in hidden:
        return f"{head}..."
    return head + ("...@" if at else "") + re.split("[?#]", rest, maxsplit=1)[0]


def root_of(given: Iterable[object]) -> str | None:
    """The root, which settings may name twice; None if none does. Raises ConfigError."""
    roots = [checked_root(value) for value in given]
    if len({normal_url(root) for root in roots}) > 1:
        raise ConfigError(
            f"Two roots: path {redacted_url(roots[0])} and txnlog.root {redacted_url(roots[1])}. "
            "Keep one of them.",
            option="txnlog.root",
        )
    return roots[0] if roots else None


def checked_root(given: object) -> str:
    """Check a cluster's root: an absolute path or a URL, as str or pathlib.Path.

    Every client and every Spark function calls this. A relative path would be another folder in
    each process, and a root made from a wrong value would be a new, empty cluster. Of the names
    that a place in an object store has, the result is one: s3:// for s3a://.
    Control characters are refused, also at the ends, since blanks are cut off there: the root
    would be another folder. Raises ConfigError.
    """
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str) or not path.strip():
        # The value is not shown: a root may hold credentials.
        what = "blank" if isinstance(path, str) else f"of type {type(path).__name__}"
        raise ConfigError(
            f"The root is {what}. Give a str: an absolute path or a URL.", option="txnlog.root"
        )
    root = str.__str__(path).strip()
    printable = shown(redacted_url(root))
    if _ABSOLUTE.match(root) is None:
        raise ConfigError(
            f"Root {printable} is relative: it would be another folder in each process. Give an "
            "absolute path or a URL; ~ is not expanded.",
            option="txnlog.root",
        )
    if _CONTROL.search(path) or not _is_utf8(root):
        raise ConfigError(
            f"Root {shown(redacted_url(path))} contains a control character, such as a line break, "
            "or half of a surrogate pair. Give an absolute path or a URL without it.",
            option="txnlog.root",
        )
    return canonical_url(root)


def redacted_url(url: str) -> str:
    """The URL without user, password and query: they may be secrets (R67)."""
    place = place_of(url)
    if place is not None:
        return place.url
    is_local = (local_path(url) or "").startswith("/")
    return url if is_local else without_secrets(url)


def _is_utf8(root: str) -> bool:
    try:
        root.encode()
    except UnicodeEncodeError:
        return False
    return True
