"""A schema registry in a topic of the root, behind confluent-kafka's client."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import pytest

from tests.compat.registry import OLDER, USER, named
from txnlog.compat.confluent_kafka import Producer, topic_registry
from txnlog.compat.confluent_kafka.schema_registry import (
    AsyncSchemaRegistryClient,
    Schema,
    SchemaRegistryClient,
    SchemaRegistryError,
)
from txnlog.errors import ConfigError


def put(new_root: str, *records: tuple[object, object]) -> None:
    """Keys and values, as any producer may write them to the registry's topic."""
    with Producer({"bootstrap.servers": new_root}) as producer:
        for key, value in records:
            producer.produce("_schemas", value, key, 0)


# --- The registry ---------------------------------------------------------------------------------


def test_schemas_have_ids_and_versions(registry: SchemaRegistryClient, new_root: str) -> None:
    first = registry.register_schema("a", Schema(USER))
    second = registry.register_schema("a", Schema(OLDER))
    assert first != second
    assert registry.register_schema("a", Schema(f" {USER}")) == first
    assert registry.register_schema("b/c d", Schema(USER)) == first
    with SchemaRegistryClient({"url": new_root}) as other:
        assert other.get_versions("a") == [1, 2]
        assert other.get_latest_version("a").schema_id == second
        assert other.lookup_schema("b/c d", Schema(USER)).version == 1
        assert other.get_schema(second) == Schema(OLDER)
        assert other.get_subjects() == ["a", "b/c d"]
        assert other.get_subjects("b") == other.get_subjects(offset=1, limit=1) == ["b/c d"]
        assert other.get_subjects(deleted_only=True) == []
    for call, code in (
        (lambda: registry.get_schema(999), 40403),
        (lambda: registry.get_schema_by_guid("no"), 40403),
        (lambda: registry.get_versions("none"), 40401),
        (lambda: registry.get_version("a", 3), 40402),
        (lambda: registry.lookup_schema("b", Schema(OLDER)), 40403),
        (lambda: registry.get_latest_with_metadata("a", {"n": "1"}), 40403),
    ):
        with pytest.raises(SchemaRegistryError) as caught:
            call()
        assert (caught.value.http_status_code, caught.value.error_code) == (404, code)


def test_clients_that_register_at_once_agree_on_ids(new_root: str) -> None:
    """Two ids for one schema are harmless, two schemas of one id lose data (D114)."""
    texts = [json.dumps({"type": "fixed", "name": f"f{size}", "size": size}) for size in (1, 2, 3)]

    def register(number: int) -> list[int]:
        with SchemaRegistryClient({"url": new_root}) as client:
            order = texts[number:] + texts[:number]
            ids = {text: client.register_schema("s", Schema(text)) for text in order}
            return [ids[text] for text in texts]

    register(0)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(register, range(3)))
    assert found[0] == found[1] == found[2]
    with SchemaRegistryClient({"url": new_root}) as client:
        assert [client.get_schema(each).schema_str for each in found[0]] == texts
        assert client.get_versions("s") == [1, 2, 3]


def test_records_that_are_no_schema_are_skipped_by_all(
    new_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One of them, of any producer, hung every client for ever, or failed each of its calls."""
    with SchemaRegistryClient({"url": new_root}) as before:
        first = before.register_schema("a", Schema(USER))
        bad: list[tuple[object, object]] = [
            (None, USER), ("a", None), (b"\xff", '{"schema": "x"}'), ("a", "no JSON"),
            ("a", "[" * 100_000), ("a", "5"), ("a", "{}"), ("a", '{"schema": 5}'),
            ("a", '{"schema": "x", "references": 5}'), ("a", '{"schema": "x", "references": [5]}'),
            ("a", '{"schema": "x", "metadata": "y"}'),
        ]  # fmt: skip
        put(new_root, *bad)
        assert before.get_versions("a") == [1]
        assert before.get_versions("a") == [1]
        deep = before.register_schema("deep", Schema("[" * 100_000))
        second = before.register_schema("a", Schema(OLDER))
    assert caplog.text.count("a record that is no schema") == len(bad)
    with SchemaRegistryClient({"url": new_root}) as after:
        assert after.get_subjects() == ["a", "deep"]
        assert after.get_latest_version("a").schema == Schema(OLDER)
        assert [after.register_schema("a", Schema(text)) for text in (USER, OLDER)] == [
            first, second,
        ]  # fmt: skip
        assert after.register_schema("deep", Schema("[" * 100_000)) == deep


def test_offsets_without_records_at_the_end_are_passed(new_root: str) -> None:
    """An aborted transaction leaves them: a client waited for their records for ever."""
    producer = Producer({"bootstrap.servers": new_root, "transactional.id": "x"})
    producer.init_transactions()
    with SchemaRegistryClient({"url": new_root}) as client:
        client.register_schema("a", Schema(USER))
        producer.begin_transaction()
        producer.produce("_schemas", '{"schema": "x"}', "a", 0)
        producer.flush()
        with pytest.raises(SchemaRegistryError, match="open transaction"):
            client.register_schema("b", Schema(OLDER))
        producer.abort_transaction()
        assert client.get_versions("a") == [1]
        assert client.register_schema("b", Schema(OLDER)) == 3
    producer.close()


def test_topic_that_cannot_be_read_ends_a_call(
    registry: SchemaRegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of a record must hear of it."""
    registry.register_schema("a", Schema(USER))
    registry.close()
    monkeypatch.setattr("txnlog.consumer.Consumer.poll", lambda *_: None)
    with pytest.raises(SchemaRegistryError, match="No reply from topic '_schemas'"):
        registry.get_subjects()


def test_reader_of_a_wrong_root_is_told(new_root: str) -> None:
    """It must not create one: the schemas are elsewhere."""
    with pytest.raises(ConfigError, match="There is no folder"):
        SchemaRegistryClient({"url": new_root}).get_schema(1)
    with pytest.raises(ConfigError):
        SchemaRegistryClient({"url": "localhost:8081"})
    with pytest.raises(ValueError, match="no such setting|Unrecognized"):
        SchemaRegistryClient({"url": new_root, "no such setting": 1})


def test_what_only_a_server_does_is_refused_without_the_network(
    registry: SchemaRegistryClient,
) -> None:
    with pytest.raises(SchemaRegistryError, match="needs a registry server"):
        registry.delete_subject("a")


def test_errors_about_untrusted_names_are_printable(registry: SchemaRegistryClient) -> None:
    """A name with an escape sequence or a line break forged what a terminal or a log showed."""
    name = "\x1b]0;owned\x07\r\nFORGED"
    registry.register_schema(name, Schema(USER))
    for call in (
        lambda: registry.get_schema_by_guid(name),
        lambda: registry.get_version(name, 2),
        lambda: registry.lookup_schema(name, Schema(OLDER)),
        lambda: registry.get_versions(f"{name}2"),
        lambda: registry._rest_client.get(f"mode/{name}"),
    ):
        with pytest.raises(SchemaRegistryError) as caught:
            call()
        assert str(caught.value).isprintable()


def test_version_is_a_number_or_the_latest(registry: SchemaRegistryClient) -> None:
    """A word ended in Python's ValueError; -1 is a server's other name for the latest."""
    registry.register_schema("a", Schema(USER))
    assert registry.get_version("a", -1).version == registry.get_version("a", "latest").version == 1
    for call in (lambda: registry.get_version("a", "one"), lambda: registry.get_schema("one")):
        with pytest.raises(SchemaRegistryError, match="needs a registry server"):
            call()


def test_settings_are_those_that_were_given(registry: SchemaRegistryClient, new_root: str) -> None:
    """A rule that encrypts makes a client of its keys from them: a mock would lose the keys."""
    assert registry.config() == {"url": new_root}


def test_server_is_asked_by_confluents_own_client() -> None:
    """With its credentials, retries and redirects: nothing of it is ours."""
    settings = {"url": "http://localhost:8081", "basic.auth.user.info": "user:pass"}
    with SchemaRegistryClient(settings) as client:
        assert client.config() == settings
        assert client._rest_client.auth == ("user", "pass")
        assert "send_request" not in vars(client._rest_client)


# --- What confluent-kafka's serializers call ------------------------------------------------------

MODULES = ("avro", "json_schema", "protobuf", "serde")
CALLS: dict[str, Callable[[Any], Any]] = {
    "_cache": lambda client: client._cache.get_registered_by_subject_id("a", 1),
    "close": lambda client: None,
    "config": lambda client: client.config(),
    "get_associations_by_resource_name": lambda client: client.get_associations_by_resource_name(
        resource_name="t",
        resource_namespace="-",
        resource_type="topic",
        association_types=["value"],
        offset=0,
        limit=-1,
    ),
    "get_latest_version": lambda client: client.get_latest_version("a", None),
    "get_latest_with_metadata": lambda client: client.get_latest_with_metadata(
        "a", {"n": "1"}, deleted=True, fmt=None
    ),
    "get_schema": lambda client: client.get_schema(1, "a", None),
    "get_schema_by_guid": lambda client: client.get_schema_by_guid(GUID, None),
    "get_version": lambda client: client.get_version("a", 1, True, "serialized"),
    "lookup_schema": lambda client: client.lookup_schema(
        "a", named(USER, 1), normalize_schemas=False, deleted=True
    ),
    "register_schema": lambda client: client.register_schema(
        "a", named(USER, 1), normalize_schemas=True
    ),
    "register_schema_full_response": lambda client: client.register_schema_full_response(
        "a", named(USER, 1), normalize_schemas=True
    ),
}
GUID = topic_registry._guid(named(USER, 1).to_dict())


def asked_of_a_registry(package: str) -> set[str]:
    """Every attribute of a registry client that the installed serializers use."""
    found = set()
    for name in MODULES:
        module = import_module(f"confluent_kafka.schema_registry.{package}.{name}")
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in (
                "self._registry", "schema_registry_client", "client", "registry",
            ):  # fmt: skip
                found.add(node.attr)
    return found


def test_serializers_call_nothing_that_a_topic_does_not_answer(
    registry: SchemaRegistryClient, new_root: str
) -> None:
    """A new release of confluent-kafka that calls another method must not be found by users."""
    sync, of_asyncio = asked_of_a_registry("_sync"), asked_of_a_registry("_async")
    assert sync == CALLS.keys()
    assert of_asyncio == (CALLS.keys() - {"close"}) | {"aclose"}
    registry.register_schema("a", named(USER, 1))
    for number, call in enumerate(CALLS.values()):
        with SchemaRegistryClient({"url": new_root}) as fresh:
            reply = call(fresh)
            if getattr(reply, "schema_id", None) is not None:
                assert (number, reply.schema_id, reply.guid) == (number, 1, GUID)
                assert (reply.subject, reply.version) == ("a", 1)

    async def same() -> None:
        for call in CALLS.values():
            async with AsyncSchemaRegistryClient({"url": new_root}) as client:
                reply = call(client)
                if inspect.isawaitable(reply):
                    assert await reply is not None

    asyncio.run(same())


def test_registry_reads_the_topic_once_for_what_never_changes(
    registry: SchemaRegistryClient, new_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that meets many old schemas reads them all with the first."""
    schemas = [Schema(USER.replace("User", f"User{number}")) for number in range(10)]
    ids = [registry.register_schema("users-value", schema) for schema in schemas]
    looks: list[object] = []
    look = topic_registry.TopicRegistry._refresh
    monkeypatch.setattr(
        topic_registry.TopicRegistry,
        "_refresh",
        lambda self, **given: looks.append(self) or look(self, **given),
    )
    with SchemaRegistryClient({"url": new_root}) as other:
        assert [other.get_schema(each, "users-value") for each in ids] == schemas
        assert [other.register_schema("users-value", schema) for schema in schemas] == ids
        assert [other.get_version("users-value", n, True).schema_id for n in range(1, 11)] == ids
        assert [other.lookup_schema("users-value", schema).version for schema in schemas] == [
            *range(1, 11)
        ]
    assert len(looks) == 1
