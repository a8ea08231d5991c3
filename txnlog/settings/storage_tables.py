"""The tables of `storage.*` options: one for each cloud, and those that all of them have.

Look-up (settings.storage_options), error messages and docs/configuration.md (settings.docs) use
them. A row's name is the store library's own; all its spellings are accepted. The library reads the
values, but for those of rows with a parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from txnlog.settings.storage_values import (
    Parser,
    choice,
    duration,
    path,
    ratio,
    switch,
    unparsed,
    whole,
)

Cloud = Literal["s3", "azure", "gcs"]
Part = Literal["store", "client", "retry", "credentials", "local"]

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class StorageOption:
    """One row; `part` is what of the store it configures. `is_secret`: never shown."""

    name: str
    doc: str
    aliases: tuple[str, ...] = ()
    is_secret: bool = False
    part: Part = "store"
    parse: Parser = unparsed


_store = StorageOption
_secret = partial(StorageOption, is_secret=True)
_client = partial(StorageOption, part="client")
_retry = partial(StorageOption, part="retry")
_credentials = partial(StorageOption, part="credentials")

S3_OPTIONS: Final = (
    _store("aws_region", "Region of the bucket. Default: `us-east-1`."),
    _store("aws_default_region", "Region, if `aws_region` is not set."),
    _store(
        "aws_endpoint",
        "URL of an S3-compatible store, as in `https://minio.example:9000`. With "
        "`aws_virtual_hosted_style_request` it includes the bucket.",
        aliases=("aws_endpoint_url", "aws_endpoint_url_s3"),
    ),
    _store(
        "aws_virtual_hosted_style_request",
        "The bucket is in the host name, not in the path. Default: `false`.",
    ),
    _secret("aws_access_key_id", "Key id, with `aws_secret_access_key`."),
    _secret("aws_secret_access_key", "Secret key."),
    _secret("aws_session_token", "Token of temporary keys.", aliases=("aws_token",)),
    _store(
        "aws_web_identity_token_file",
        "Token file of a web identity (EKS sets it in the environment), with `aws_role_arn`.",
    ),
    _store("aws_role_arn", "Role to assume with the web identity."),
    _store("aws_role_session_name", "Name of that session."),
    _store("aws_endpoint_url_sts", "URL of the token service.", aliases=("aws_sts_endpoint",)),
    _store("aws_container_credentials_relative_uri", "Credentials of an ECS task (set by ECS)."),
    _store("aws_container_credentials_full_uri", "Credentials of an EKS pod (set by EKS)."),
    _store("aws_container_authorization_token_file", "Token file of an EKS pod."),
    _store("aws_metadata_endpoint", "URL of the instance's metadata service."),
    _store("aws_imdsv1_fallback", "Also accept version 1 of the metadata service."),
    _store("aws_skip_signature", "Anonymous requests, for public buckets."),
    _store("aws_s3_express", "The bucket is a directory bucket (S3 Express One Zone)."),
    _store("aws_request_payer", "Requester pays."),
    _store("aws_server_side_encryption", "`AES256`, `aws:kms`, `aws:kms:dsse` or `sse-c`."),
    _store("aws_sse_kms_key_id", "Key of `aws:kms`."),
    _store("aws_sse_bucket_key_enabled", "Use the bucket's key."),
    _secret("aws_sse_customer_key_base64", "Key of `sse-c`, 32 bytes in base64."),
    _store("aws_checksum_algorithm", "Checksum of uploads: `SHA256` or `CRC64NVME`."),
    _store("aws_unsigned_payload", "Leave the body out of the signature."),
    _store("aws_conditional_put", "Only `etag`, the default: commits need conditional puts."),
    _store("aws_disable_tagging", "Send no tags."),
    _store("aws_disable_bulk_delete", "Delete objects one by one."),
)

AZURE_OPTIONS: Final = (
    _store(
        "azure_storage_account_name",
        "The storage account; a root `abfss://container@account.dfs.core.windows.net/...` names "
        "it already.",
    ),
    _store("azure_storage_endpoint", "URL of the blob service."),
    _secret(
        "azure_storage_account_key",
        "Key of the account, in base64.",
        aliases=("azure_storage_access_key", "azure_storage_master_key"),
    ),
    _secret(
        "azure_storage_sas_token", "Shared access signature.", aliases=("azure_storage_sas_key",)
    ),
    _secret(
        "azure_storage_token", "Bearer token; it is not renewed.", aliases=("azure_bearer_token",)
    ),
    _store("azure_storage_client_id", "Application of a service principal or a workload identity."),
    _secret("azure_storage_client_secret", "Its secret."),
    _store("azure_storage_tenant_id", "Its tenant.", aliases=("azure_storage_authority_id",)),
    _store(
        "azure_storage_authority_host",
        "URL of the login service. Default: `https://login.microsoftonline.com`.",
    ),
    _store("azure_federated_token_file", "Token file of a workload identity (set by AKS)."),
    _store(
        "azure_msi_endpoint",
        "URL of the managed identity's token service.",
        aliases=("azure_identity_endpoint",),
    ),
    _store("azure_object_id", "A managed identity, by its object id."),
    _store("azure_msi_resource_id", "A managed identity, by its resource id."),
    _store("azure_use_azure_cli", "Take tokens from the command `az`."),
    _store(
        "azure_credential_type",
        "Which credentials to use, if there are several: `auto` (the default), `access_key`, "
        "`sas_token`, `bearer_token`, `client_secret`, `workload_identity`, `managed_identity` or "
        "`azure_cli`.",
    ),
    _store("azure_skip_signature", "Anonymous requests, for public containers."),
    _store("azure_storage_use_emulator", "Azurite at `http://127.0.0.1:10000`."),
    _store("azure_use_fabric_endpoint", "The account is in Microsoft Fabric."),
    _store("azure_fabric_token_service_url", "Token service of Fabric."),
    _store("azure_fabric_workload_host", "Workload host of Fabric."),
    _secret("azure_fabric_session_token", "Session token of Fabric."),
    _store("azure_fabric_cluster_identifier", "Cluster identifier of Fabric."),
    _secret("azure_storage_encryption_key", "Customer's encryption key, 32 bytes in base64."),
    _store("azure_disable_tagging", "Send no tags."),
)

GCS_OPTIONS: Final = (
    _store(
        "google_service_account",
        "Path of a service account's key file, on each host.",
        aliases=("google_service_account_path",),
    ),
    _store(
        "google_application_credentials",
        "Path of a file with application default credentials, on each host.",
    ),
    _secret("google_service_account_key", "The key file's content, as JSON."),
    _secret("google_bearer_token", "Bearer token; it is not renewed.", aliases=("google_token",)),
    _store("google_base_url", "URL of the service."),
    _store("google_skip_signature", "Anonymous requests, for public buckets."),
)

COMMON_OPTIONS: Final = (
    _credentials(
        "credentials.provider",
        "Who supplies credentials. `default`: the store library, from options, environment and "
        "roles. `boto3` (extra `txnlog[s3]`): as AWS's own tools do, with profiles and SSO. "
        "`azure` (extra `txnlog[azure]`): azure-identity. `google` (extra `txnlog[gcs]`): "
        "google-auth.",
        parse=choice("default", "boto3", "azure", "google"),
    ),
    _credentials(
        "credentials.file",
        "File with storage options, on each host: JSON, or lines `name = value`. It is read again "
        "when it changes, so a running stream gets new credentials.",
        parse=path,
    ),
    _credentials(
        "aws_profile",
        "Profile of `~/.aws` on each host, with SSO and assumed roles; implies "
        "`credentials.provider=boto3`.",
        aliases=("profile", "credentials.profile"),
    ),
    _client("allow_http", "Allow `http://` endpoints, without TLS. Default: `false`."),
    _client(
        "timeout",
        "Time-out of a request, from connecting to the end of its reply. Default: `30s`.",
    ),
    _client("connect_timeout", "Time-out of connecting. Default: `5s`."),
    _client("read_timeout", "Time-out of each read of a reply."),
    _retry("max_retries", "Retries of a failed request. Default: 10.", parse=whole(0, 100)),
    _retry(
        "retry_timeout",
        "A request is not retried after this time. Default: `180s`.",
        parse=duration(0, HOUR_MS),
    ),
    _retry(
        "init_backoff",
        "Pause before the first retry. Default: `100ms`.",
        aliases=("backoff_config.init_backoff",),
        parse=duration(1, HOUR_MS),
    ),
    _retry(
        "max_backoff",
        "Longest pause between retries. Default: `15s`.",
        aliases=("backoff_config.max_backoff",),
        parse=duration(1, HOUR_MS),
    ),
    _retry(
        "backoff_base",
        "Factor by which the pause grows. Default: 2.",
        aliases=("base", "backoff_config.base"),
        parse=ratio(1, 100),
    ),
    _client("proxy_url", "Proxy of all requests, as in `http://proxy:3128`.", is_secret=True),
    _client("proxy_excludes", "Hosts that are reached without the proxy, by commas."),
    _client("proxy_ca_certificate", "Certificate of the proxy: PEM, or a path."),
    _client(
        "root_certificate",
        "Certificates that are trusted, too: PEM, or the path of a file on each host.",
    ),
    _client("allow_invalid_certificates", "Trust any certificate. For tests only."),
    _client("user_agent", "Header `User-Agent`."),
    _client("default_headers", "Headers of every request, as JSON.", is_secret=True),
    _client("default_content_type", "Header `Content-Type` of uploads."),
    _client("pool_idle_timeout", "How long idle connections are kept."),
    _client("pool_max_idle_per_host", "How many idle connections are kept."),
    _client("http1_only", "HTTP/1 only, the default."),
    _client("http2_only", "HTTP/2 only."),
    _client("http2_keep_alive_interval", "Interval of HTTP/2 pings."),
    _client("http2_keep_alive_timeout", "Time-out of HTTP/2 pings."),
    _client("http2_keep_alive_while_idle", "Pings on idle connections, too."),
    _client("randomize_addresses", "Take a host's addresses in random order."),
    StorageOption(
        "fsync",
        "For a new root on a local disk: acknowledged commits survive power loss. The root "
        "records it, and every process follows: see [Power loss](#power-loss). Default: `true`.",
        parse=switch,
        part="local",
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
                        short = name.removeprefix(prefix)
                        found.setdefault(short, row)
                        found.setdefault(PREFIXES[cloud][-1] + short, row)
    for row in COMMON_OPTIONS:
        for name in (row.name, *row.aliases):
            found[name] = row
            for prefix in PREFIXES[cloud] if cloud else ():
                found.setdefault(prefix + name, row)
    return found
