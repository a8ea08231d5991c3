"""Opens a store of the library from a root's URL and parsed options (D80)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from obstore import exceptions as obstore_exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from txnlog.errors import ConfigError
from txnlog.settings.roots import AZURE_SUFFIX, FABRIC_SUFFIX, Place, place_of
from txnlog.settings.storage_options import StorageOptions, parse_storage_options
from txnlog.settings.storage_tables import (
    CLOUD_NAMES,
    CREDENTIALS,
    PREFIXES,
    Cloud,
    spellings,
)
from txnlog.settings.storage_values import ON, refused
from txnlog.settings.storage_values import path as absolute_path
from txnlog.storage.store.credentials import CredentialsFile, credential_provider
from txnlog.storage.store.host_files import UnusableFileError, check_regular, read_text
from txnlog.storage.store.panics import LibraryPanicError, panics_as_errors

_STORES: Final[Mapping[str, Any]] = {"s3": S3Store, "azure": AzureStore, "gcs": GCSStore}
_ENDPOINTS: Final = ("aws_endpoint", "azure_storage_endpoint", "google_base_url")
_CERTIFICATES: Final = ("root_certificate", "proxy_ca_certificate")
_FILES: Final = frozenset(
    {
        "aws_web_identity_token_file",
        "aws_container_authorization_token_file",
        "azure_federated_token_file",
        "google_service_account",
        "google_application_credentials",
    }
)
"""Settings that name a file which the library opens itself."""
_PEM: Final = re.compile(r"\s*-----BEGIN ")
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
    _check_files(config)
    settings = {"config": config, "client_options": _client(place.cloud, merged.of("client"))}

    def build(settings: Mapping[str, Mapping[str, Any]]) -> Any:
        with panics_as_errors():
            return _STORES[place.cloud].from_url(
                place.store_url,
                **settings,
                retry_config=_retry(merged.of("retry")),
                credential_provider=provider,
            )

    try:
        return build(settings)
    except _REFUSALS as error:
        reason = str(error)
    # Not in the handler: the library's error would be its context, and may show a value.
    raise _refusal(place, _refused_names(build, settings, reason), sorted(merged.values))


def _refused_names(
    build: Callable[[Mapping[str, Mapping[str, Any]]], Any],
    settings: Mapping[str, Mapping[str, Any]],
    reason: str,
) -> list[str]:
    """The settings that the library refuses for the same reason when each is given alone.

    Its reason shows values, and not always the setting. Without the account Azure's store is never
    opened.
    """
    account = {k: v for k, v in settings["config"].items() if k == "azure_storage_account_name"}
    none: dict[str, dict[str, Any]] = {"config": account, "client_options": {}}

    def is_reason(few: Mapping[str, Mapping[str, Any]]) -> bool:
        try:
            build(few)
        except _REFUSALS as error:
            return str(error) == reason
        return False

    if is_reason(none):
        return []
    return sorted(
        name
        for part, values in settings.items()
        for name, value in values.items()
        if is_reason({**none, part: {**none[part], name: value}})
    )


def _refusal(place: Place, names: list[str], given: list[str]) -> ConfigError:
    """The error for a store that the library does not open; `names` are the settings at fault."""
    what = f"{place.url!r} cannot be opened: the store library for {CLOUD_NAMES[place.cloud]}"
    if names:
        rows = spellings(place.cloud)
        shown = ", ".join(f"storage.{name} ({rows[name].doc.rstrip('.')})" for name in names)
        return ConfigError(
            f"{what} refuses {shown}. Its value is not shown; docs/configuration.md says what it "
            "takes.",
            url=place.url,
            option=f"storage.{names[0]}",
        )
    needs_account = place.cloud == "azure" and "azure_storage_account_name" not in given
    return ConfigError(
        f"{what} refuses its settings. Check the options storage.* (given: "
        f"{', '.join(given) or 'none'}), and the variables {PREFIXES[place.cloud][-1].upper()}* of "
        "this process."
        + (" A root az:// needs storage.azure_storage_account_name." if needs_account else ""),
        url=place.url,
    )


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


def _client(cloud: Cloud, options: Mapping[str, str]) -> dict[str, Any]:
    """The HTTP client's settings: options, and variables, which the library drops beside them."""
    variables = {
        row.name: os.environ[name.upper()]
        for name, row in spellings(cloud).items()
        if row.part == "client"
        and name.startswith(PREFIXES[cloud][-1])
        and name.upper() in os.environ
    }
    found: dict[str, Any] = {**variables, **options}
    if "default_headers" in found:
        found["default_headers"] = _headers(found["default_headers"])
    for name in _CERTIFICATES:
        if name in found and not _PEM.match(found[name]):
            found[name] = _text_of(name, found[name])
    return found


def _headers(text: str) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    raise refused("storage.default_headers", 'a JSON object of headers: {"name": "value"}')


def _text_of(name: str, path: str) -> str:
    try:
        text = read_text(absolute_path(f"storage.{name}", path))
    except UnusableFileError as error:
        raise _unusable(name, error) from None
    if not _PEM.match(text):
        raise ConfigError(
            f"The file of storage.{name} has no certificate in PEM form.", option=f"storage.{name}"
        )
    return text


def _check_files(options: Mapping[str, str]) -> None:
    """Raise ConfigError for a FIFO or a device that the library would wait for."""
    for name in options.keys() & _FILES:
        try:
            check_regular(options[name])
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


def _check_http(options: StorageOptions) -> None:
    """Raise ConfigError for an endpoint without TLS that is not allowed; requests would fail."""
    values = options.values
    plain = [name for name in _ENDPOINTS if values.get(name, "").startswith("http:")]
    allowed = values.get("allow_http", "").lower() in ON or any(
        f"{prefix}ALLOW_HTTP" in os.environ for prefix in ("AWS_", "AZURE_", "GOOGLE_")
    )
    if plain and not allowed:
        raise ConfigError(
            f"storage.{plain[0]} is an http:// URL: set storage.allow_http=true to allow requests "
            "without TLS, or use https://.",
            option=f"storage.{plain[0]}",
        )
