"""Confluent's schema registry server: the few requests of its REST interface that are needed."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from txnlog.compat.confluent_kafka.schema_registry.schemas import (
    RegisteredSchema,
    Schema,
    SchemaReference,
    SchemaRegistryError,
)

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
TIMEOUT_S = 30.0


class HttpRegistry:
    """A registry server. Any thread may call it."""

    def __init__(self, url: str, user_info: str | None, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = {"Accept": CONTENT_TYPE, "Content-Type": CONTENT_TYPE}
        if user_info is not None:
            token = base64.b64encode(user_info.encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"
        self._known: dict[tuple[str, str], RegisteredSchema] = {}
        self._by_id: dict[int, Schema] = {}

    def register(self, subject: str, schema: Schema) -> RegisteredSchema:
        """See Registry.register."""
        key = (subject, schema.comparable())
        if key not in self._known:
            name = urllib.parse.quote(subject, safe="")
            self._request("POST", f"/subjects/{name}/versions", _body(schema))
            found = self._request("POST", f"/subjects/{name}", _body(schema))
            self._known[key] = RegisteredSchema(found["id"], schema, subject, found["version"])
        return self._known[key]

    def by_id(self, schema_id: int) -> Schema:
        """See Registry.by_id."""
        if schema_id not in self._by_id:
            self._by_id[schema_id] = _schema(self._request("GET", f"/schemas/ids/{schema_id}"))
        return self._by_id[schema_id]

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """See Registry.versions."""
        name = urllib.parse.quote(subject, safe="")
        numbers = self._request("GET", f"/subjects/{name}/versions")
        found = [self._request("GET", f"/subjects/{name}/versions/{n}") for n in numbers]
        return [RegisteredSchema(one["id"], _schema(one), subject, one["version"]) for one in found]

    def subjects(self) -> list[str]:
        """See Registry.subjects."""
        return sorted(self._request("GET", "/subjects"))

    def close(self) -> None:
        """Nothing is open between two requests."""

    def _request(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data=data, headers=self._headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            raise _refusal(error) from error
        except urllib.error.URLError as error:
            raise SchemaRegistryError(
                0, SchemaRegistryError.UNKNOWN, f"No reply from {self._url}: {error.reason}"
            ) from error


def _refusal(error: urllib.error.HTTPError) -> SchemaRegistryError:
    try:
        reply = json.load(error)
        return SchemaRegistryError(error.code, reply["error_code"], reply["message"])
    except (ValueError, KeyError, TypeError):
        return SchemaRegistryError(error.code, SchemaRegistryError.UNKNOWN, str(error.reason))


def _body(schema: Schema) -> dict[str, object]:
    body: dict[str, object] = {"schema": schema.schema_str}
    if schema.schema_type != "AVRO":
        body["schemaType"] = schema.schema_type
    if schema.references:
        body["references"] = [
            {"name": each.name, "subject": each.subject, "version": each.version}
            for each in schema.references
        ]
    return body


def _schema(reply: dict[str, Any]) -> Schema:
    references = tuple(
        SchemaReference(each["name"], each["subject"], each["version"])
        for each in reply.get("references") or ()
    )
    return Schema(reply["schema"], reply.get("schemaType", "AVRO"), references)
