"""A schema registry in a topic of the root, or a server; Avro and JSON in its wire format."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from txnlog.compat.confluent_kafka.schema_registry import (
    AsyncSchemaRegistryClient,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
    record_subject_name_strategy,
)
from txnlog.compat.confluent_kafka.schema_registry.avro import (
    AsyncAvroDeserializer,
    AsyncAvroSerializer,
    AvroDeserializer,
    AvroSerializer,
)
from txnlog.compat.confluent_kafka.schema_registry.json_schema import (
    AsyncJSONDeserializer,
    AsyncJSONSerializer,
    JSONDeserializer,
    JSONSerializer,
)
from txnlog.compat.confluent_kafka.serialization import (
    MessageField,
    SerializationContext,
    SerializationError,
)

USER = json.dumps(
    {
        "type": "record",
        "name": "User",
        "namespace": "shop",
        "fields": [{"name": "name", "type": "string"}],
    }
)
OLDER = USER.replace('"fields": [', '"fields": [{"name": "age", "type": "int", "default": 1}, ')
CONTEXT = SerializationContext("users", MessageField.VALUE)


class Server(BaseHTTPRequestHandler):
    """The requests of Confluent's registry that a client makes, over a dict."""

    ids: ClassVar[dict[str, int]] = {}
    subjects: ClassVar[dict[str, list[str]]] = {}

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        parts = self.path.strip("/").split("/")
        if parts[:2] == ["schemas", "ids"]:
            found = [text for text, number in self.ids.items() if str(number) == parts[2]]
            if found:
                self._reply(200, json.loads(found[0]))
            else:
                self._reply(404, {"error_code": 40403, "message": "Schema not found"})
        elif len(parts) == 1:
            self._reply(200, list(self.subjects))
        elif parts[1] not in self.subjects:
            self._reply(404, {"error_code": 40401, "message": "Subject not found"})
        elif len(parts) == 3:
            self._reply(200, list(range(1, len(self.subjects[parts[1]]) + 1)))
        else:
            self._reply(200, self._registered(parts[1], self.subjects[parts[1]][int(parts[3]) - 1]))

    def do_POST(self) -> None:
        assert self.headers["Authorization"] == "Basic dXNlcjpwYXNz"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = json.dumps(body)
        parts = self.path.strip("/").split("/")
        if len(parts) == 3:
            self.ids.setdefault(text, len(self.ids) + 41)
            there = self.subjects.setdefault(parts[1], [])
            if text not in there:
                there.append(text)
        self._reply(200, self._registered(parts[1], text))

    def _registered(self, subject: str, text: str) -> dict[str, Any]:
        version = self.subjects[subject].index(text) + 1
        return {"subject": subject, "version": version, "id": self.ids[text], **json.loads(text)}

    def _reply(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(params=["topic", "server"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SchemaRegistryClient]:
    """A client of each kind of registry."""
    if request.param == "topic":
        with SchemaRegistryClient({"url": str(tmp_path / "root")}) as client:
            yield client
        return
    Server.ids.clear()
    Server.subjects.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield SchemaRegistryClient({"url": url, "basic.auth.user.info": "user:pass"})
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_schemas_have_ids_and_versions(registry: SchemaRegistryClient) -> None:
    first = registry.register_schema("a", Schema(USER))
    second = registry.register_schema("a", Schema(OLDER))
    assert first != second
    assert registry.register_schema("a", Schema(USER)) == first
    assert registry.register_schema("b", Schema(USER)) == first
    assert registry.get_versions("a") == [1, 2]
    assert registry.get_latest_version("a").schema_id == second
    assert registry.lookup_schema("b", Schema(USER)).version == 1
    assert registry.get_schema(second) == Schema(OLDER)
    assert registry.get_subjects() == ["a", "b"]
    for call in (
        lambda: registry.get_schema(999),
        lambda: registry.get_versions("none"),
        lambda: registry.get_version("a", 3),
        lambda: registry.lookup_schema("b", Schema(OLDER)),
    ):
        with pytest.raises(SchemaRegistryError) as caught:
            call()
        assert caught.value.http_status_code == 404


def test_avro_is_read_as_it_was_written(registry: SchemaRegistryClient) -> None:
    """Also by a reader with another schema, which has a field more."""
    write = AvroSerializer(registry, USER, lambda user, _: {"name": user})
    data = write("Ann", CONTEXT)
    assert data is not None
    schema_id = registry.lookup_schema("users-value", Schema(USER)).schema_id
    assert data == b"\0" + schema_id.to_bytes(4, "big") + b"\x06Ann"
    assert AvroDeserializer(registry)(data, CONTEXT) == {"name": "Ann"}
    assert AvroDeserializer(registry, OLDER)(data) == {"name": "Ann", "age": 1}
    read = AvroDeserializer(registry, USER, lambda found, _: found["name"])
    assert (read(data), read(None), write(None)) == ("Ann", None, None)
    with pytest.raises(SerializationError, match="does not fit"):
        write(5, CONTEXT)
    plain = (b"{}: plain", "first byte")
    for wrong, text in ((b"\0\0", "too few"), plain, (data[:-1], "not Avro")):
        with pytest.raises(SerializationError, match=text):
            read(wrong)


def test_avro_schema_may_use_another_one(registry: SchemaRegistryClient) -> None:
    registry.register_schema("user", Schema(USER))
    order = Schema(
        json.dumps(
            {
                "type": "record",
                "name": "Order",
                "fields": [{"name": "by", "type": "shop.User"}],
            }
        ),
        references=(SchemaReference("shop.User", "user", 1),),
    )
    data = AvroSerializer(registry, order)({"by": {"name": "Ann"}}, CONTEXT)
    assert AvroDeserializer(registry)(data) == {"by": {"name": "Ann"}}


def test_settings_choose_subject_and_schema(registry: SchemaRegistryClient) -> None:
    named = {"subject.name.strategy": record_subject_name_strategy}
    AvroSerializer(registry, USER, conf=named)({"name": "Ann"}, CONTEXT)
    assert registry.get_subjects() == ["shop.User"]
    strict = AvroSerializer(registry, OLDER, conf={"auto.register.schemas": False})
    with pytest.raises(SchemaRegistryError):
        strict({"name": "Ann", "age": 5}, CONTEXT)
    registry.register_schema("users-value", Schema(USER))
    latest = {"auto.register.schemas": False, "use.latest.version": True}
    newest = AvroSerializer(registry, conf=latest)({"name": "Ann"}, CONTEXT)
    assert AvroDeserializer(registry)(newest) == {"name": "Ann"}
    with pytest.raises(ValueError, match=r"there are auto\.register\.schemas"):
        AvroSerializer(registry, USER, conf={"auto.register": True})


def test_json_is_validated(registry: SchemaRegistryClient) -> None:
    schema = json.dumps(
        {
            "title": "User",
            "type": "object",
            "properties": {"age": {"type": "number", "minimum": 0}},
            "required": ["age"],
        }
    )
    write = JSONSerializer(schema, registry)
    data = write({"age": 5}, CONTEXT)
    assert data is not None
    assert data[5:] == b'{"age": 5}'
    assert JSONDeserializer(schema)(data) == {"age": 5}
    assert JSONDeserializer(None, schema_registry_client=registry)(data) == {"age": 5}
    with pytest.raises(SerializationError, match="age: -1 is less than"):
        write({"age": -1}, CONTEXT)
    free = JSONSerializer(schema, registry, conf={"validate": False})
    with pytest.raises(SerializationError, match="'age' is a required"):
        JSONDeserializer(schema)(free({}, CONTEXT))


def test_serializers_for_asyncio_do_the_same_in_threads(tmp_path: Path) -> None:
    """They are awaited when they are made, too, as in confluent-kafka."""
    schema = json.dumps({"title": "User", "type": "object", "required": ["name"]})
    user = {"name": "Ann"}

    async def found() -> None:
        async with AsyncSchemaRegistryClient({"url": str(tmp_path / "root")}) as client:
            write = await AsyncAvroSerializer(client, schema_str=USER)
            read = await AsyncAvroDeserializer(schema_registry_client=client)
            written = await asyncio.gather(*(write(user, CONTEXT) for _ in range(5)))
            assert len({*written}) == 1
            assert await read(written[0], CONTEXT) == user
            assert await client.get_subjects() == ["users-value"]
            assert (await client.get_latest_version("users-value")).schema == Schema(USER)
            write_json = await AsyncJSONSerializer(schema, client)
            data = await write_json(user, SerializationContext("people", MessageField.VALUE))
            assert await (await AsyncJSONDeserializer(schema))(data) == user
            with pytest.raises(SerializationError, match="does not fit"):
                await write({}, CONTEXT)

    asyncio.run(found())


def test_clients_that_register_at_once_agree_on_ids(tmp_path: Path) -> None:
    """Two ids for one schema are harmless, two schemas of one id lose data (D114)."""
    root = str(tmp_path / "root")
    texts = [json.dumps({"type": "fixed", "name": f"f{size}", "size": size}) for size in (1, 2, 3)]

    def register(number: int) -> list[int]:
        with SchemaRegistryClient({"url": root}) as client:
            order = texts[number:] + texts[:number]
            ids = {text: client.register_schema("s", Schema(text)) for text in order}
            return [ids[text] for text in texts]

    register(0)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(register, range(3)))
    assert found[0] == found[1] == found[2]
    with SchemaRegistryClient({"url": root}) as client:
        assert [client.get_schema(each).schema_str for each in found[0]] == texts
        assert client.get_versions("s") == [1, 2, 3]


def test_deeply_nested_schema_of_another_client_fails_no_other(tmp_path: Path) -> None:
    """All clients read all schemas: one text that is no JSON to Python would end each of them."""
    registry = SchemaRegistryClient({"url": str(tmp_path)})
    registry.register_schema("deep", Schema("[" * 100_000))
    registry.register_schema("users", Schema(USER))
    assert sorted(SchemaRegistryClient({"url": str(tmp_path)}).get_subjects()) == ["deep", "users"]
