"""Error codes of a store: the name of its exception, and its own code for the reason.

obstore has one class for most errors, with the store's response in their text; a local disk has
errno. Handlers and dashboards want the code: SlowDown is not NoSuchBucket.
"""

from __future__ import annotations

import errno
import re

_XML_CODE = re.compile(r"<Code>\s*([A-Za-z][\w.]*)\s*</Code>")
_JSON_CODE = re.compile(r'"(?:code|error_code|reason)"\s*:\s*"([A-Za-z][\w.]*)"')
_HTTP_STATUS = re.compile(r"\bstatus(?: code)?:? (\d{3})\b", re.IGNORECASE)
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


PLACE_MISSING = frozenset({"NoSuchBucket", "ContainerNotFound", "FilesystemNotFound"})
"""The bucket or container is missing: this does not answer whether the object exists."""


def describe_store_error(error: BaseException) -> dict[str, str | None]:
    """`store_error`, the name of the store's exception, and `store_code`, None without one."""
    return {"store_error": type(error).__name__, "store_code": store_code(error)}


def store_code(error: BaseException) -> str | None:
    """S3's or Azure's code, else the name of the errno, else the HTTP status; None if none."""
    number = error.errno if isinstance(error, OSError) else None
    text = str(error)
    if number is None:
        for pattern in (_XML_CODE, _JSON_CODE):
            found = pattern.search(text)
            if found is not None:
                return found.group(1)
        found = _OS_ERROR.search(text)
        if found is not None:
            number = int(found.group(1))
    if number is not None:
        return errno.errorcode.get(number, str(number))
    found = _HTTP_STATUS.search(text)
    return None if found is None else found.group(1)
