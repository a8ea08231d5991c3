"""Hadoop's settings (fs.s3a.*, fs.azure.*, fs.gs.*) derived from `storage.*`, for Spark's reader.

Names are those of Hadoop 3.5, which Spark 4.2 has. S3's are given per bucket, and Azure's per
account, so that they hold for the root only.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import unquote, urlsplit

from txnlog.errors import ConfigError
from txnlog.settings.roots import AZURE_SUFFIX, Place, place_of
from txnlog.settings.storage_options import StorageOptions, parse_storage_options
from txnlog.settings.storage_values import ON, duration

_S3A: Final = "org.apache.hadoop.fs.s3a"
_ABFS: Final = "org.apache.hadoop.fs.azurebfs.oauth2"
_ENCRYPTION: Final = {"aws:kms": "SSE-KMS", "aws:kms:dsse": "DSSE-KMS", "sse-c": "SSE-C"}
_TIMEOUT: Final = duration(1, 86_400_000)
_SECRET_ENDS: Final = (
    "access.key", "secret.key", "session.token", "encryption.key", "fixed.token", "client.secret",
    "proxy.password",
)  # fmt: skip


def hadoop_url(root: str, options: Mapping[str, str] | None = None) -> str:
    """The root in Hadoop's notation: s3a:// for s3://, abfss:// for az:// with an account."""
    place = place_of(root)
    if place is None:
        return root
    if place.cloud == "s3":
        return "s3a" + place.url.removeprefix("s3")
    account = parse_storage_options(root, options or {}).values.get("azure_storage_account_name")
    if place.cloud == "azure" and not place.account and account:
        tail = f"/{place.prefix}" if place.prefix else ""
        return f"abfss://{place.bucket}@{account}.dfs.{AZURE_SUFFIX}{tail}"
    return place.url


def hadoop_settings(root: str, options: StorageOptions) -> dict[str, str]:
    """Hadoop's settings for a root, without `spark.hadoop.`; secrets among them are secrets still.

    Empty for a root on a disk, and for what Hadoop finds by itself: roles and the environment.
    """
    place = place_of(root)
    if place is None:
        return {}
    values = options.values
    if place.cloud == "s3":
        prefix = f"fs.s3a.bucket.{place.bucket}."
        return {prefix + key: value for key, value in _s3(values, options.provider).items()}
    if place.cloud == "azure":
        return _azure(values, place)
    return _google(values)


def general_name(root: str, name: str) -> str:
    """The setting of all buckets that one of this root's bucket overrides."""
    place = place_of(root)
    bucket = "" if place is None else place.bucket
    return name.replace(f"fs.s3a.bucket.{bucket}.", "fs.s3a.", 1)


def is_secret_setting(name: str) -> bool:
    """Whether the value of one of Hadoop's settings is a secret."""
    return (
        name.endswith(_SECRET_ENDS)
        or ".account.key." in name
        or ".fixed.token." in name
        or (".client.secret." in name)
    )


def _s3(values: Mapping[str, str], provider: str) -> dict[str, str]:
    found = _renamed(
        values,
        {
            "aws_endpoint": "endpoint",
            "aws_access_key_id": "access.key",
            "aws_secret_access_key": "secret.key",
            "aws_session_token": "session.token",
            "max_retries": "attempts.maximum",
        },
    )
    found |= _timeouts(values)
    region = values.get("aws_region") or values.get("aws_default_region")
    if region:
        found["endpoint.region"] = region
    if "aws_endpoint" in values:
        is_virtual = _is_on(values, "aws_virtual_hosted_style_request")
        found["path.style.access"] = "false" if is_virtual else "true"
        found["connection.ssl.enabled"] = str(values["aws_endpoint"].startswith("https:")).lower()
    name = _s3_provider(values, provider)
    if name:
        found["aws.credentials.provider"] = name
    if "aws_profile" in values:
        found["auth.profile.name"] = values["aws_profile"]
    encryption = values.get("aws_server_side_encryption")
    if encryption:
        found["encryption.algorithm"] = _ENCRYPTION.get(encryption, encryption)
        key = values.get("aws_sse_kms_key_id") or values.get("aws_sse_customer_key_base64")
        found.update({"encryption.key": key} if key else {})
    if _is_on(values, "aws_request_payer") or values.get("aws_request_payer") == "requester":
        found["requester.pays.enabled"] = "true"
    return {**found, **_proxy(values)}


def _s3_provider(values: Mapping[str, str], provider: str) -> str | None:
    if _is_on(values, "aws_skip_signature"):
        return f"{_S3A}.AnonymousAWSCredentialsProvider"
    if "aws_access_key_id" in values:
        kind = "Temporary" if "aws_session_token" in values else "Simple"
        return f"{_S3A}.{kind}AWSCredentialsProvider"
    if "aws_profile" in values:
        return f"{_S3A}.auth.ProfileAWSCredentialsProvider"
    if provider == "boto3":
        return "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
    if "aws_web_identity_token_file" in values:
        return "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider"
    return None


def _timeouts(values: Mapping[str, str]) -> dict[str, str]:
    """Without those in a form that Hadoop does not read, such as "2h 37min"."""
    names = {
        "connect_timeout": "connection.establish.timeout",
        "read_timeout": "connection.timeout",
    }
    found = {}
    for ours, theirs in names.items():
        with suppress(ConfigError):
            found.update({theirs: _TIMEOUT(ours, values[ours])} if ours in values else {})
    return found


def _is_on(values: Mapping[str, str], name: str) -> bool:
    return values.get(name, "").lower() in ON


def _proxy(values: Mapping[str, str]) -> dict[str, str]:
    try:
        parts = urlsplit(values.get("proxy_url", ""))
        port = parts.port or 80
    except ValueError:
        return {}
    if not parts.hostname:
        return {}
    found = {"proxy.host": parts.hostname, "proxy.port": str(port)}
    if parts.username:
        found["proxy.username"] = unquote(parts.username)
        found["proxy.password"] = unquote(parts.password or "")
    return found


def _azure(values: Mapping[str, str], place: Place) -> dict[str, str]:
    account = place.account or values.get("azure_storage_account_name", "")
    host = f"{account}.dfs.{place.suffix or AZURE_SUFFIX}"
    auth = f"fs.azure.account.auth.type.{host}"
    if not account:
        return {}
    if "azure_storage_account_key" in values:
        key = values["azure_storage_account_key"]
        return {auth: "SharedKey", f"fs.azure.account.key.{host}": key}
    if "azure_storage_sas_token" in values:
        token = values["azure_storage_sas_token"]
        return {auth: "SAS", f"fs.azure.sas.fixed.token.{host}": token}
    oauth = "fs.azure.account.oauth2"
    found = {auth: "OAuth"}
    renamed = _renamed(
        values,
        {
            "azure_storage_client_id": f"{oauth}.client.id.{host}",
            "azure_storage_client_secret": f"{oauth}.client.secret.{host}",
            "azure_federated_token_file": f"{oauth}.token.file.{host}",
        },
    )
    provider = f"fs.azure.account.oauth.provider.type.{host}"
    tenant = values.get("azure_storage_tenant_id")
    if "azure_storage_client_secret" in values and tenant:
        login = values.get("azure_storage_authority_host", "https://login.microsoftonline.com")
        url = f"{login.rstrip('/')}/{tenant}/oauth2/token"
        found |= {provider: f"{_ABFS}.ClientCredsTokenProvider", **renamed}
        return found | {f"{oauth}.client.endpoint.{host}": url}
    if "azure_federated_token_file" in values and tenant:
        found |= {provider: f"{_ABFS}.WorkloadIdentityTokenProvider", **renamed}
        return found | {f"{oauth}.msi.tenant.{host}": tenant}
    if values.get("azure_credential_type", "").lower() == "managed_identity":
        return found | {provider: f"{_ABFS}.MsiTokenProvider", **renamed}
    return {}


def _google(values: Mapping[str, str]) -> dict[str, str]:
    found = _renamed(values, {"google_base_url": "fs.gs.storage.root.url"})
    file = values.get("google_service_account") or values.get("google_application_credentials")
    if file:
        found["fs.gs.auth.type"] = "SERVICE_ACCOUNT_JSON_KEYFILE"
        found["fs.gs.auth.service.account.json.keyfile"] = file
    elif _is_on(values, "google_skip_signature"):
        found["fs.gs.auth.type"] = "UNAUTHENTICATED"
    elif values.get("credentials.provider") == "google":
        found["fs.gs.auth.type"] = "APPLICATION_DEFAULT"
    return found


def _renamed(values: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {theirs: values[ours] for ours, theirs in names.items() if ours in values}
