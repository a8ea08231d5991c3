"""Requests to Azure's blob service signed with an account's key, for what obstore does not do."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import urllib.request
from urllib.parse import parse_qsl, urlsplit

VERSION = "2023-11-03"


def signed(method: str, url: str, account: str, key: str) -> urllib.request.Request:
    """A request without a body, signed as the service's Shared Key scheme asks."""
    parts = urlsplit(url)
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": VERSION}
    query = sorted(parse_qsl(parts.query, keep_blank_values=True))
    text = "\n".join(
        [
            method,
            *[""] * 11,
            *(f"{name}:{value}" for name, value in sorted(headers.items())),
            f"/{account}{parts.path}",
            *(f"{name.lower()}:{value}" for name, value in query),
        ]
    )
    digest = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
    headers["Content-Length"] = "0"
    return urllib.request.Request(url, method=method, headers=headers)
