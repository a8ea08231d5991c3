"""The tables of `storage.*` options: one for each cloud, and those that all of them have.

Parsing (settings.storage_options), error messages and docs/configuration.md (settings.docs) use
them. A row's name is the store library's own; all its spellings are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from txnlog.settings.storage_values import (
    Parser,
    base64_key,
    certificates,
    choice,
    duration,
    endpoint,
    flag,
    header,
    headers,
    json_object,
    path,
    ratio,
    sas_token,
    switch,
    url,
    whole,
)

Cloud = Literal["s3", "azure", "gcs"]
Part = Literal["store", "client", "retry", "credentials", "local"]

DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOption:
    """One row; `part` is what of the store it configures. `is_secret`: never shown."""

    name: str
    parse: Parser
    doc: str
    part: Part = "store"
    aliases: tuple[str, ...] = ()
    is_secret: bool = False


def _secret(name: str, parse: Parser, doc: str, *aliases: str) -> StorageOption:
    return StorageOption(name=name, parse=parse, doc=doc, aliases=aliases, is_secret=True)


def _store(name: str, parse: Parser, doc: str, *aliases: str) -> StorageOption:
    return StorageOption(name=name, parse=parse, doc=doc, aliases=aliases)


S3_OPTIONS: Final = (
    _store("aws_region", header, "Region of the bucket. Default: `us-east-1`."),
    _store("aws_default_region", header, "Region, if `aws_region` is not set."),
    _store(
        "aws_endpoint",
        endpoint,
        "URL of an S3-compatible store, as in `https://minio.example:9000`. With "
        "`aws_virtual_hosted_style_request` it includes the bucket.",
        "aws_endpoint_url",
        "aws_endpoint_url_s3",
    ),
    _store(
        "aws_virtual_hosted_style_request",
        flag,
        "The bucket is in the host name, not in the path. Default: `false`.",
    ),
    _secret("aws_access_key_id", header, "Key id, with `aws_secret_access_key`."),
    _secret("aws_secret_access_key", header, "Secret key."),
    _secret("aws_session_token", header, "Token of temporary keys.", "aws_token"),
    _store(
        "aws_web_identity_token_file",
        path,
        "Token file of a web identity (EKS sets it in the environment), with `aws_role_arn`.",
    ),
    _store("aws_role_arn", header, "Role to assume with the web identity."),
    _store("aws_role_session_name", header, "Name of that session."),
    _store("aws_endpoint_url_sts", endpoint, "URL of the token service.", "aws_sts_endpoint"),
    _store(
        "aws_container_credentials_relative_uri", header, "Credentials of an ECS task (set by ECS)."
    ),
    _store("aws_container_credentials_full_uri", url, "Credentials of an EKS pod (set by EKS)."),
    _store("aws_container_authorization_token_file", path, "Token file of an EKS pod."),
    _store("aws_metadata_endpoint", endpoint, "URL of the instance's metadata service."),
    _store("aws_imdsv1_fallback", flag, "Also accept version 1 of the metadata service."),
    _store("aws_skip_signature", flag, "Anonymous requests, for public buckets."),
    _store("aws_s3_express", flag, "The bucket is a directory bucket (S3 Express One Zone)."),
    _store("aws_request_payer", choice("true", "false", "requester"), "Requester pays."),
    _store(
        "aws_server_side_encryption",
        choice("AES256", "aws:kms", "aws:kms:dsse", "sse-c"),
        "`AES256`, `aws:kms`, `aws:kms:dsse` or `sse-c`.",
    ),
    _store("aws_sse_kms_key_id", header, "Key of `aws:kms`."),
    _store("aws_sse_bucket_key_enabled", flag, "Use the bucket's key."),
    _secret("aws_sse_customer_key_base64", base64_key, "Key of `sse-c`, in base64."),
    _store("aws_checksum_algorithm", choice("SHA256", "CRC64NVME"), "Checksum of uploads."),
    _store("aws_unsigned_payload", flag, "Leave the body out of the signature."),
    _store(
        "aws_conditional_put",
        choice("etag"),
        "Only `etag`, the default: commits need conditional puts.",
    ),
    _store("aws_disable_tagging", flag, "Send no tags."),
    _store("aws_disable_bulk_delete", flag, "Delete objects one by one."),
)

AZURE_OPTIONS: Final = (
    _store(
        "azure_storage_account_name",
        header,
        "The storage account; a root `abfss://container@account.dfs.core.windows.net/...` names "
        "it already.",
        "azure_account_name",
    ),
    _store("azure_storage_endpoint", endpoint, "URL of the blob service.", "azure_endpoint"),
    _secret(
        "azure_storage_account_key",
        base64_key,
        "Key of the account.",
        "azure_account_key",
        "azure_storage_access_key",
        "azure_access_key",
        "azure_storage_master_key",
        "azure_master_key",
    ),
    _secret(
        "azure_storage_sas_token",
        sas_token,
        "Shared access signature.",
        "azure_sas_token",
        "azure_storage_sas_key",
        "azure_sas_key",
    ),
    _secret(
        "azure_storage_token",
        header,
        "Bearer token; it is not renewed.",
        "azure_token",
        "azure_bearer_token",
    ),
    _store(
        "azure_storage_client_id",
        header,
        "Application of a service principal or a workload identity.",
        "azure_client_id",
    ),
    _secret("azure_storage_client_secret", header, "Its secret.", "azure_client_secret"),
    _store(
        "azure_storage_tenant_id",
        header,
        "Its tenant.",
        "azure_tenant_id",
        "azure_storage_authority_id",
        "azure_authority_id",
    ),
    _store(
        "azure_storage_authority_host",
        endpoint,
        "URL of the login service. Default: `https://login.microsoftonline.com`.",
        "azure_authority_host",
    ),
    _store("azure_federated_token_file", path, "Token file of a workload identity (set by AKS)."),
    _store(
        "azure_msi_endpoint",
        url,
        "URL of the managed identity's token service.",
        "azure_identity_endpoint",
    ),
    _store("azure_object_id", header, "A managed identity, by its object id."),
    _store("azure_msi_resource_id", header, "A managed identity, by its resource id."),
    _store("azure_use_azure_cli", flag, "Take tokens from the command `az`."),
    _store(
        "azure_credential_type",
        choice(
            "auto",
            "bearer_token",
            "access_key",
            "client_secret",
            "workload_identity",
            "sas_token",
            "azure_cli",
            "managed_identity",
        ),
        "Which credentials to use, if there are several. Default: `auto`.",
    ),
    _store("azure_skip_signature", flag, "Anonymous requests, for public containers."),
    _store(
        "azure_storage_use_emulator",
        flag,
        "Azurite at `http://127.0.0.1:10000`.",
        "azure_use_emulator",
    ),
    _store("azure_use_fabric_endpoint", flag, "The account is in Microsoft Fabric."),
    _store("azure_fabric_token_service_url", url, "Token service of Fabric."),
    _store("azure_fabric_workload_host", header, "Workload host of Fabric."),
    _secret("azure_fabric_session_token", header, "Session token of Fabric."),
    _store("azure_fabric_cluster_identifier", header, "Cluster identifier of Fabric."),
    _secret(
        "azure_storage_encryption_key",
        base64_key,
        "Customer's encryption key, 32 bytes in base64.",
        "azure_encryption_key",
    ),
    _store("azure_disable_tagging", flag, "Send no tags."),
)

GCS_OPTIONS: Final = (
    _store(
        "google_service_account",
        path,
        "Path of a service account's key file, on each host.",
        "google_service_account_path",
    ),
    _store(
        "google_application_credentials",
        path,
        "Path of a file with application default credentials, on each host.",
    ),
    _secret("google_service_account_key", json_object, "The key file's content, as JSON."),
    _secret("google_bearer_token", header, "Bearer token; it is not renewed.", "google_token"),
    _store("google_base_url", endpoint, "URL of the service."),
    _store("google_skip_signature", flag, "Anonymous requests, for public buckets."),
)


def _client(name: str, parse: Parser, doc: str, *, is_secret: bool = False) -> StorageOption:
    return StorageOption(name=name, parse=parse, doc=doc, part="client", is_secret=is_secret)


def _retry(name: str, parse: Parser, doc: str, *aliases: str) -> StorageOption:
    return StorageOption(name=name, parse=parse, doc=doc, part="retry", aliases=aliases)


def _credentials(name: str, parse: Parser, doc: str, *aliases: str) -> StorageOption:
    return StorageOption(name=name, parse=parse, doc=doc, part="credentials", aliases=aliases)


COMMON_OPTIONS: Final = (
    _credentials(
        "credentials.provider",
        choice("default", "boto3", "azure", "google"),
        "Who supplies credentials. `default`: the store library, from options, environment and "
        "roles. `boto3` (extra `txnlog[s3]`): as AWS's own tools do, with profiles and SSO. "
        "`azure` (extra `txnlog[azure]`): azure-identity. `google` (extra `txnlog[gcs]`): "
        "google-auth.",
    ),
    _credentials(
        "credentials.file",
        path,
        "File with storage options, on each host: JSON, or lines `name = value`. It is read again "
        "when it changes, so a running stream gets new credentials.",
    ),
    _credentials(
        "aws_profile",
        header,
        "Profile of `~/.aws` on each host, with SSO and assumed roles; implies "
        "`credentials.provider=boto3`.",
        "profile",
        "credentials.profile",
    ),
    _client("allow_http", flag, "Allow `http://` endpoints, without TLS. Default: `false`."),
    _client(
        "timeout",
        duration(1, DAY_MS),
        "Time-out of a request, from connecting to the end of its reply. Default: `30s`.",
    ),
    _client("connect_timeout", duration(1, DAY_MS), "Time-out of connecting. Default: `5s`."),
    _client("read_timeout", duration(1, DAY_MS), "Time-out of each read of a reply."),
    _retry("max_retries", whole(0, 100), "Retries of a failed request. Default: 10."),
    _retry(
        "retry_timeout",
        duration(0, 3_600_000),
        "A request is not retried after this time. Default: `180s`.",
    ),
    _retry(
        "init_backoff",
        duration(1, 3_600_000),
        "Pause before the first retry. Default: `100ms`.",
        "backoff_config.init_backoff",
    ),
    _retry(
        "max_backoff",
        duration(1, 3_600_000),
        "Longest pause between retries. Default: `15s`.",
        "backoff_config.max_backoff",
    ),
    _retry(
        "backoff_base",
        ratio(1, 100),
        "Factor by which the pause grows. Default: 2.",
        "base",
        "backoff_config.base",
    ),
    _client("proxy_url", url, "Proxy of all requests.", is_secret=True),
    _client("proxy_excludes", header, "Hosts that are reached without the proxy, by commas."),
    _client("proxy_ca_certificate", certificates, "Certificate of the proxy: PEM, or a path."),
    _client(
        "root_certificate",
        certificates,
        "Certificates that are trusted, too: PEM, or the path of a file on each host.",
    ),
    _client("allow_invalid_certificates", flag, "Trust any certificate. For tests only."),
    _client("user_agent", header, "Header `User-Agent`."),
    _client("default_headers", headers, "Headers of every request, as JSON.", is_secret=True),
    _client("default_content_type", header, "Header `Content-Type` of uploads."),
    _client("pool_idle_timeout", duration(1, DAY_MS), "How long idle connections are kept."),
    _client("pool_max_idle_per_host", whole(0, 100_000), "How many idle connections are kept."),
    _client("http1_only", flag, "HTTP/1 only, the default."),
    _client("http2_only", flag, "HTTP/2 only."),
    _client("http2_keep_alive_interval", duration(1, DAY_MS), "Interval of HTTP/2 pings."),
    _client("http2_keep_alive_timeout", duration(1, DAY_MS), "Time-out of HTTP/2 pings."),
    _client("http2_keep_alive_while_idle", flag, "Pings on idle connections, too."),
    _client("randomize_addresses", flag, "Take a host's addresses in random order."),
    StorageOption(
        name="fsync",
        parse=switch,
        part="local",
        doc="For a new root on a local disk: acknowledged commits survive power loss. The root "
        "records it, and every process follows: see [Power loss](#power-loss). Default: `true`.",
    ),
)

TABLES: Final[Mapping[Cloud, tuple[StorageOption, ...]]] = {
    "s3": S3_OPTIONS,
    "azure": AZURE_OPTIONS,
    "gcs": GCS_OPTIONS,
}
PREFIXES: Final[Mapping[Cloud, tuple[str, ...]]] = {
    "s3": ("aws_",),
    "azure": ("azure_storage_", "azure_"),
    "gcs": ("google_",),
}
CLOUD_NAMES: Final[Mapping[Cloud, str]] = {"s3": "S3", "azure": "Azure", "gcs": "Google"}
CREDENTIALS: Final[Mapping[Cloud, frozenset[str]]] = {
    "s3": frozenset({"aws_access_key_id", "aws_secret_access_key", "aws_session_token"}),
    "azure": frozenset(
        {"azure_storage_account_key", "azure_storage_sas_token", "azure_storage_token"}
    ),
    "gcs": frozenset({"google_bearer_token"}),
}
"""Options that a file of credentials can renew while the store is open."""


def spellings(cloud: Cloud | None) -> dict[str, StorageOption]:
    """Every accepted name of a cloud's options, or of those that all have, and its row."""
    found = {}
    if cloud is not None:
        for row in TABLES[cloud]:
            for name in (row.name, *row.aliases):
                found[name] = row
                for prefix in PREFIXES[cloud]:
                    if name.startswith(prefix):
                        found.setdefault(name.removeprefix(prefix), row)
    for row in COMMON_OPTIONS:
        for name in (row.name, *row.aliases):
            found[name] = row
            for prefix in PREFIXES[cloud] if cloud else ():
                found.setdefault(prefix + name, row)
    return found
