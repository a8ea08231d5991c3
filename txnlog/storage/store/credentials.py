"""Credentials by reference: a file that is read again, profiles, and the clouds' own libraries.

Options go into plans and pickles, and a stream outlives its keys (D81).

The store library asks a provider when it has no credentials, or they expire soon, from its own
threads. A provider's errors say which library and class failed, never the library's own text, which
may show a value (R67).
"""

from __future__ import annotations

import configparser
import importlib
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from txnlog.errors import ConfigError, TxnLogError
from txnlog.settings.roots import Place
from txnlog.settings.storage_options import StorageOptions, parse_storage_options
from txnlog.settings.storage_tables import CREDENTIALS
from txnlog.storage.store.host_files import UnusableFileError, read_text

CHECK_EVERY: Final = timedelta(seconds=10)
"""How long a change of the file, or of what a provider has, may go unnoticed."""
_BEFORE_EXPIRY: Final = timedelta(minutes=5)
_SECTION: Final = "default"

logger = logging.getLogger("txnlog")


class CredentialsError(Exception):
    """No credentials can be had now; the message shows no value."""


class CredentialsFile:
    """A file with storage options, as JSON or as lines `name = value`. Thread-safe.

    A file is replaced by renaming, and may be missing or half-written for a moment: then what was
    read last still holds.
    """

    def __init__(self, path: str, place: Place) -> None:
        self._path = path
        self._place = place
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._options: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"storage.credentials.file {self._path}"

    __str__ = __repr__

    def read(self) -> dict[str, str]:
        """The file's options. Raises ConfigError, which shows none of them."""
        with self._lock:
            self._refresh()
            return dict(self._options)

    def current(self) -> Mapping[str, str]:
        """The options, by row, as of the newest readable state of the file."""
        with self._lock:
            try:
                self._refresh()
            except ConfigError as error:
                logger.warning("%s Continuing with what was read before.", error.message)
            found = dict(self._options)
        return parse_storage_options(self._place.url, found, prefix="").of("store")

    def _refresh(self) -> None:
        try:
            stat = os.stat(self._path)
            seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if seen == self._seen:
                return
            options = _parsed(read_text(self._path))
        except OSError as error:
            raise self._unreadable(error.strerror or "it cannot be read") from None
        except UnusableFileError as error:
            raise self._unreadable(str(error)) from None
        if options is None:
            raise self._unreadable("it is neither a JSON object nor lines `name = value`")
        try:
            parse_storage_options(self._place.url, options, prefix="")
        except ConfigError as error:
            raise self._unreadable(error.message) from None
        self._options, self._seen = options, seen

    def _unreadable(self, why: str) -> ConfigError:
        return ConfigError(
            f"{self} cannot be used on this host: {why}", option="storage.credentials.file"
        )


def _parsed(text: str) -> dict[str, str] | None:
    """The options in a file's text; None if it has neither form."""
    if text.lstrip().startswith("{"):
        try:
            simple = {
                str(key): json.dumps(value) if isinstance(value, bool | dict) else str(value)
                for key, value in json.loads(text).items()
                if value is not None
            }
        except (ValueError, RecursionError):
            return None
        return {key.removeprefix("storage."): value for key, value in simple.items()}
    lines = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    try:
        is_plain = not any(line.strip().startswith("[") for line in text.splitlines())
        lines.read_string(f"[{_SECTION}]\n{text}" if is_plain else text)
    except configparser.Error:
        return None
    if not lines.has_section(_SECTION):
        return None
    return {key.removeprefix("storage."): value for key, value in lines.items(_SECTION)}


class Provider:
    """What the store library calls for credentials; `fetch` returns them with their expiry.

    `region` is that of a profile, used where no other is given.
    Its repr shows nothing, and it is not pickled: options travel, and each process makes its own.
    """

    refresh_threshold = _BEFORE_EXPIRY

    def __init__(
        self, what: str, fetch: Callable[[], dict[str, Any]], *, region: str | None = None
    ) -> None:
        self._what = what
        self._fetch = fetch
        self.region = region

    def __call__(self) -> dict[str, Any]:
        """Credentials for the library. Raises CredentialsError, without any value."""
        try:
            return self._fetch()
        except CredentialsError:
            raise
        except Exception as error:
            raise CredentialsError(f"{self._what} failed with {type(error).__name__}") from None

    def __repr__(self) -> str:
        return f"Provider({self._what})"

    def __reduce__(self) -> Any:
        raise TypeError("Credentials are not pickled; send the options that refer to them.")


def credential_provider(
    options: StorageOptions, place: Place, file: CredentialsFile | None
) -> Provider | None:
    """The provider that the options ask for; None where the store library finds credentials.

    Raises ConfigError for a missing extra, and for a profile that does not exist.
    """
    if file is not None:
        if not CREDENTIALS[place.cloud] & options.of("store").keys():
            return None
        return Provider(str(file), _from_file(file, place))
    match options.provider:
        case "boto3":
            return _from_boto3(options)
        case "azure":
            return Provider("azure-identity", _from_azure())
        case "google":
            return Provider("google-auth", _from_google())
    return None


def _from_file(file: CredentialsFile, place: Place) -> Callable[[], dict[str, Any]]:
    def fetch() -> dict[str, Any]:
        found = file.current()
        expires_at = _now() + _BEFORE_EXPIRY + CHECK_EVERY
        if place.cloud == "s3":
            if "aws_access_key_id" not in found or "aws_secret_access_key" not in found:
                raise CredentialsError(f"{file} has no aws_access_key_id, aws_secret_access_key")
            return {
                "access_key_id": found["aws_access_key_id"],
                "secret_access_key": found["aws_secret_access_key"],
                "token": found.get("aws_session_token"),
                "expires_at": expires_at,
            }
        keys = {
            "azure_storage_account_key": "access_key",
            "azure_storage_sas_token": "sas_token",
            "azure_storage_token": "token",
            "google_bearer_token": "token",
        }
        for name, key in keys.items():
            if name in CREDENTIALS[place.cloud] & found.keys():
                return {key: found[name], "expires_at": expires_at}
        raise CredentialsError(f"{file} has no credentials")

    return fetch


def _from_boto3(options: StorageOptions) -> Provider:
    """boto3's credentials; it renews them itself, 10 to 15 minutes before they expire."""
    profile = options.of("credentials").get("aws_profile")
    boto3 = _imported("boto3", "s3")
    auth = _imported("obstore.auth.boto3", "s3")
    try:
        session = boto3.Session(profile_name=profile)
        # The library would use them for half an hour, longer than boto3 says that they hold.
        provider = auth.Boto3CredentialProvider(session, ttl=_BEFORE_EXPIRY + CHECK_EVERY)
    except Exception as error:
        raise ConfigError(
            f"boto3 finds no credentials on this host ({type(error).__name__}). Check "
            "storage.aws_profile, ~/.aws and the variables AWS_*, which driver and executors "
            "each need; with SSO run `aws sso login`.",
            option="storage.aws_profile" if profile else "storage.credentials.provider",
        ) from None
    return Provider("boto3", _checked_call(provider), region=session.region_name)


def _from_azure() -> Callable[[], dict[str, Any]]:
    return _made(_imported("obstore.auth.azure", "azure"), "AzureCredentialProvider")


def _from_google() -> Callable[[], dict[str, Any]]:
    return _made(_imported("obstore.auth.google", "gcs"), "GoogleCredentialProvider")


def _made(module: Any, name: str) -> Callable[[], dict[str, Any]]:
    try:
        return _checked_call(getattr(module, name)())
    except TxnLogError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{module.__name__}.{name} finds no credentials on this host "
            f"({type(error).__name__}). Log in with the cloud's own tool, or give the host a role.",
            option="storage.credentials.provider",
        ) from None


def _checked_call(provider: Callable[[], Any]) -> Callable[[], dict[str, Any]]:
    """One call at a time: not every library's credentials are thread-safe."""
    lock = threading.Lock()

    def fetch() -> dict[str, Any]:
        with lock:
            return dict(provider())

    return fetch


def _imported(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"storage.credentials.provider needs {error.name or module}, which is not installed in "
            f"this Python. Run: pip install 'txnlog[{extra}]', on driver and executors.",
            option="storage.credentials.provider",
        ) from None


def _now() -> datetime:
    return datetime.now(timezone.utc)
