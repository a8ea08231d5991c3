"""Opens a store of the library from a root's URL and parsed options (D80)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from obstore import exceptions as obstore_exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from txnlog.errors import ConfigError
from txnlog.settings.roots import AZURE_SUFFIX, FABRIC_SUFFIX, Place, place_of
from txnlog.settings.storage_options import StorageOptions, parse_storage_options
from txnlog.settings.storage_tables import CREDENTIALS, PREFIXES, Cloud, spellings
from txnlog.settings.storage_values import is_pem
from txnlog.settings.storage_values import path as path_option
from txnlog.storage.store.credentials import CredentialsFile, credential_provider
from txnlog.storage.store.host_files import UnusableFileError, check_regular, read_text
from txnlog.storage.store.panics import LibraryPanicError, panics_as_errors

_STORES: Final[Mapping[str, Any]] = {"s3": S3Store, "azure": AzureStore, "gcs": GCSStore}
_ENDPOINTS: Final = ("aws_endpoint", "azure_storage_endpoint", "google_base_url")
_FILES: Final = ("root_certificate", "proxy_ca_certificate")
_QUOTED: Final = re.compile(r"\"[^\"]*\"|'[^']*'")
_REFUSALS: Final = (
    obstore_exceptions.BaseError,
    LibraryPanicError,
    ValueError,
    TypeError,
    OverflowError,
    OSError,
)


def open_place(url: str, options: StorageOptions) -> Any:
    """The library's store at `url`, a place in an object store. Makes no request.

    Raises ConfigError that names the options, never a value.
    """
    place = place_of(url)
    assert place is not None
    file = CredentialsFile(options.file, place) if options.file else None
    merged = options if file is None else _with_file(url, options, file)
    provider = credential_provider(merged, place, file)
    config = {**_account(place, merged), **merged.of("store")}
    if provider is not None:
        config = {k: v for k, v in config.items() if k not in CREDENTIALS[place.cloud]}
        if provider.region and "AWS_REGION" not in os.environ:
            config = {"aws_region": provider.region, **config}
    _check_http(merged)
    _check_files(config, place.cloud)
    try:
        with panics_as_errors():
            return _STORES[place.cloud].from_url(
                place.store_url,
                config=config,
                client_options=_client(merged.of("client")),
                retry_config=_retry(merged.of("retry")),
                credential_provider=provider,
            )
    except _REFUSALS as error:
        names = ", ".join(sorted(merged.values)) or "none"
        raise ConfigError(
            f"{url!r} cannot be opened: {_reason(error, merged)}. Options storage.*: {names}. "
            f"Check them, and the variables {PREFIXES[place.cloud][-1].upper()}* of this process.",
            url=url,
        ) from None


def complete_options(url: str, given: Mapping[str, str]) -> StorageOptions:
    """The options of the store at `url`, with those of its credentials file as they are now.

    Raises ConfigError.
    """
    options, place = parse_storage_options(url, given), place_of(url)
    if place is None or options.file is None:
        return options
    return _with_file(url, options, CredentialsFile(options.file, place))


def _with_file(url: str, options: StorageOptions, file: CredentialsFile) -> StorageOptions:
    """The options with those of the credentials file. Raises ConfigError for one in both."""
    found = parse_storage_options(url, file.read(), prefix="")
    if found.of("credentials"):
        name = min(found.of("credentials"))
        raise ConfigError(
            f"{file} contains {name}: it may not refer to other credentials. Leave it out.",
            option="storage.credentials.file",
        )
    twice = sorted(options.values.keys() & found.values.keys())
    if twice:
        raise ConfigError(
            f"Option storage.{twice[0]} is also in {file}. Keep one of them.",
            option=f"storage.{twice[0]}",
        )
    names = (*options.parts, *found.parts)
    parts = {part: {**options.of(part), **found.of(part)} for part in names}
    return StorageOptions(cloud=options.cloud, parts=parts)


def _account(place: Place, options: StorageOptions) -> dict[str, str]:
    """The settings of an Azure root that names its account. Raises ConfigError for another one."""
    if not place.account:
        return {}
    given = options.of("store").get("azure_storage_account_name", place.account)
    if given != place.account:
        raise ConfigError(
            f"The root is in storage account {place.account}, and storage."
            "azure_storage_account_name names another one. Leave the option out.",
            option="storage.azure_storage_account_name",
        )
    found = {"azure_storage_account_name": place.account}
    if place.suffix == FABRIC_SUFFIX:
        found["azure_use_fabric_endpoint"] = "true"
    elif place.suffix != AZURE_SUFFIX:
        # The clouds of governments and of China, and private links.
        found["azure_storage_endpoint"] = f"https://{place.account}.blob.{place.suffix}"
    return found


def _client(options: Mapping[str, str]) -> Any:
    found: dict[str, Any] = dict(options)
    if "default_headers" in found:
        found["default_headers"] = json.loads(found["default_headers"])
    for name in _FILES:
        if name in found and not is_pem(found[name]):
            found[name] = _text_of(name, found[name])
    return found or None


def _text_of(name: str, path: str) -> str:
    try:
        text = read_text(path)
    except UnusableFileError as error:
        raise _unusable(name, error) from None
    if not is_pem(text):
        raise ConfigError(
            f"The file of storage.{name} has no certificate in PEM form.", option=f"storage.{name}"
        )
    return text


def _check_files(options: Mapping[str, str], cloud: Cloud) -> None:
    """Raise ConfigError for a FIFO or a device that the library would wait for."""
    rows = spellings(cloud)
    for name, value in options.items():
        try:
            if rows[name].parse is path_option:
                check_regular(value)
        except UnusableFileError as error:
            raise _unusable(name, error) from None


def _unusable(name: str, why: UnusableFileError) -> ConfigError:
    return ConfigError(
        f"The file of storage.{name} cannot be used on this host: {why}.", option=f"storage.{name}"
    )


def _retry(options: Mapping[str, str]) -> Any:
    def length(name: str) -> timedelta:
        return timedelta(milliseconds=int(options[name].removesuffix("ms")))

    backoff: dict[str, Any] = {
        name: length(name) for name in ("init_backoff", "max_backoff") if name in options
    }
    if "backoff_base" in options:
        backoff["base"] = float(options["backoff_base"])
    found: dict[str, Any] = {"backoff": backoff} if backoff else {}
    if "max_retries" in options:
        found["max_retries"] = int(options["max_retries"])
    if "retry_timeout" in options:
        found["retry_timeout"] = length("retry_timeout")
    return found or None


def _check_http(options: StorageOptions, environ: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError for an endpoint without TLS that is not allowed; requests would fail."""
    values = options.values
    plain = [name for name in _ENDPOINTS if values.get(name, "").startswith("http:")]
    allowed = values.get("allow_http") == "true" or any(
        f"{prefix}ALLOW_HTTP" in environ for prefix in ("AWS_", "AZURE_", "GOOGLE_")
    )
    if plain and not allowed:
        raise ConfigError(
            f"storage.{plain[0]} is an http:// URL: set storage.allow_http=true to allow requests "
            "without TLS, or use https://.",
            option=f"storage.{plain[0]}",
        )


def _reason(error: BaseException, options: StorageOptions) -> str:
    """The first line of the library's error, without anything that may be a value."""
    text = str(error).strip().split("\n", 1)[0]
    for value in sorted(options.values.values(), key=len, reverse=True):
        text = text.replace(value, "...") if len(value) > 3 else text
    return _QUOTED.sub('"..."', text).rstrip(".") or type(error).__name__
