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
_RETRIES = re.compile(r"\bafter \d+ retries\b")
_XML_TEXT = re.compile(r"<(?:Message|Details)>\s*([^<]*?)\s*</", re.IGNORECASE)
_JSON_TEXT = re.compile(r'"(?:message|error_description)"\s*:\s*"([^"\\]*)')
_NETWORK = re.compile(
    r"Connection refused|Connection reset|Network is unreachable|dns error|operation timed out"
    r"|InvalidCertificate\(\w+\)|tls handshake eof"
)
_PROVIDER_FAILED = "credential provider: CredentialsError: "
_CREDENTIAL_SERVICE = re.compile(
    r"performing token request|//169\.254\.(?:169\.254|170\.2)|//metadata\.google\.internal"
    r"|/latest/(?:api/token|meta-data/iam)|AssumeRoleWithWebIdentity"
)
_SECRET_LIKE = re.compile(
    r"\b(?:AKIA|ASIA)[A-Z0-9]{8,}\b|\bBearer\s+\S+|(?:sig|signature|token|key)=[^\s&;,]+"
    r"|(?<=//)[^\s/?#]+(?=@)",
    re.IGNORECASE,
)
_LONG_WORD = re.compile(r"[A-Za-z0-9+/_-]{40,}={0,2}")
_TEXT_MAX = 300

PLACE_MISSING = frozenset({"NoSuchBucket", "ContainerNotFound", "FilesystemNotFound"})
"""The bucket or container is missing: this does not answer whether the object exists."""
NO_CREDENTIALS = "NoCredentials"
"""Our own code: nothing was sent, because there are no credentials at the moment."""
WRONG_KEY = frozenset(
    {
        "AuthenticationFailed", "AuthorizationFailure", "ExpiredToken", "InvalidAccessKeyId",
        "InvalidAuthenticationInfo", "InvalidSecurity", "InvalidToken",
        "KeyBasedAuthenticationNotPermitted", "NoAuthenticationInformation", "RequestExpired",
        "RequestTimeTooSkewed", "SignatureDoesNotMatch", "TokenRefreshRequired",
        "authError", "invalid_client", "invalid_grant",
    }
)  # fmt: skip
"""The store does not accept the credentials themselves."""
WRONG_PLACE = frozenset(
    {
        "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect",
        "TemporaryRedirect",
    }
)  # fmt: skip
"""The bucket is in another region, or at another endpoint."""
CONFLICTS = frozenset(
    {
        "AccountBeingCreated", "ContainerBeingDeleted", "ContainerBeingDisabled",
        "LeaseIdMissing", "OperationAborted", "SnapshotsPresent",
    }
)  # fmt: skip
"""The store replied "conflict", which the library takes for "exists", and nothing exists."""


def describe_store_error(error: BaseException) -> dict[str, str | None]:
    """`store_error`, the name of the store's exception, and `store_code`, None without one."""
    return {"store_error": type(error).__name__, "store_code": store_code(error)}


def store_code(error: BaseException) -> str | None:
    """S3's or Azure's code, else the name of the errno, else the HTTP status; None if none."""
    number = error.errno if isinstance(error, OSError) else None
    text = str(error)
    if is_of_provider(error) or _CREDENTIAL_SERVICE.search(text.split("\n", 1)[0]):
        return NO_CREDENTIALS
    if "redirect without LOCATION" in text:
        return "PermanentRedirect"
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


def has_code(error: BaseException, codes: frozenset[str]) -> bool:
    """Whether `store_code` is one of the store's own `codes`: cheap where the text has none.

    "No such object" and "exists" are common replies, and no failures.
    """
    text = str(error)
    return any(code in text for code in codes) and store_code(error) in codes


def is_of_provider(error: BaseException) -> bool:
    """Whether one of storage.store.credentials has failed, not the store library's own search."""
    return _PROVIDER_FAILED in str(error)


def http_status(error: BaseException) -> int | None:
    """The status of the store's reply; None without one."""
    found = _HTTP_STATUS.search(str(error))
    return None if found is None else int(found.group(1))


def was_retried(error: BaseException) -> bool:
    """Whether the library had sent the request before: an earlier try may have taken effect."""
    return _RETRIES.search(str(error)) is not None


def shown_reason(error: BaseException) -> str:
    """What a store's failure says, on one line, without what may be a credential (R67, D83).

    A reply's body names keys and signatures, so only its code and its message are taken. The
    library's own text is its first line; the pages below it have nothing but the network's reason.
    """
    text = str(error)
    status, code = http_status(error), store_code(error)
    if is_of_provider(error):
        # Its text is ours.
        reason = text.partition(_PROVIDER_FAILED)[2].split("\n", 1)[0]
    elif status is not None:
        told = " ".join((_XML_TEXT.findall(text) or _JSON_TEXT.findall(text))[:2])
        told = _LONG_WORD.sub("...", told)
        parts = [f"HTTP {status}", "" if code in (str(status), NO_CREDENTIALS) else code or ""]
        reason = " ".join(filter(None, parts)) + (f": {told}" if told else "")
        if was_retried(error):
            reason += f", {_RETRIES.findall(text)[0]}"
    else:
        reason = text.strip().split("\n", 1)[0]
        network = _NETWORK.search(text)
        if network is not None and network.group() not in reason:
            reason += f": {network.group()}"
        if code not in (None, NO_CREDENTIALS) and code not in reason:
            reason = f"{code}: {reason}"
    reason = _SECRET_LIKE.sub("...", " ".join(reason.split()))
    return reason[:_TEXT_MAX] or type(error).__name__
