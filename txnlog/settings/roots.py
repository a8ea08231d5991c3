"""Where a root is: its cloud, bucket and prefix, and the one spelling of each place.

Hadoop and the store library name the same place differently (s3a://b/p and s3://b/p,
wasbs://c@a.blob... and abfss://c@a.dfs...). Caches, comparisons and messages use one name (D82).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from txnlog.settings.storage_tables import Cloud

_AZURE_HOST: Final = re.compile(
    r"(?P<account>[a-z0-9-]+(?:\.z[a-z0-9]+)?)\.(?:dfs|blob)\.(?P<suffix>[a-z0-9.-]+)"
)
_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<place>[^/?#]*)(?P<path>[^?#]*)", re.DOTALL
)
_HEAD: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?[/\\]*")
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
