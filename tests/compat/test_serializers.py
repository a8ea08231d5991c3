"""confluent-kafka's serializers with a schema registry in a topic, and in our clients."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from tests.compat.registry import CONTEXT, LATEST, OLDER, USER, named
from txnlog.compat.confluent_kafka import KafkaException, SerializingProducer
from txnlog.compat.confluent_kafka.error import ValueSerializationError
from txnlog.compat.confluent_kafka.schema_registry import (
    AsyncSchemaRegistryClient,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
    dual_schema_id_deserializer,
    header_schema_id_serializer,
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
from txnlog.compat.confluent_kafka.schema_registry.protobuf import (
    ProtobufDeserializer,
    ProtobufSerializer,
)
from txnlog.compat.confluent_kafka.serialization import (
    MessageField,
    SerializationContext,
    SerializationError,
)


@pytest.mark.parametrize("conf", [{}, LATEST], ids=["registers", "latest"])
def test_registry_is_asked_for_the_first_record_only(
    registry: SchemaRegistryClient,
    conf: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request per record would be dearer than the records."""
    registry.register_schema("users-value", Schema(USER))
    write, read = AvroSerializer(registry, USER, conf=conf), AvroDeserializer(registry)
    assert read(write({"name": "Ann"}, CONTEXT), CONTEXT) == {"name": "Ann"}
    monkeypatch.setattr(registry, "_rest_client", None)
    for name in ("Bob", "Eve"):
        assert read(write({"name": name}, CONTEXT), CONTEXT) == {"name": name}


def test_avro_is_read_as_it_was_written(registry: SchemaRegistryClient) -> None:
    """Also by a reader with another schema, which has a field more."""
    write = AvroSerializer(registry, USER, lambda user, _: {"name": user})
    data = write("Ann", CONTEXT)
    assert data is not None
    schema_id = registry.lookup_schema("users-value", Schema(USER)).schema_id
    assert data == b"\0" + schema_id.to_bytes(4, "big") + b"\x06Ann"
    assert AvroDeserializer(registry)(data, CONTEXT) == {"name": "Ann"}
    assert AvroDeserializer(registry, OLDER)(data, CONTEXT) == {"name": "Ann", "age": 1}


def test_avro_unions_and_records_use_other_schemas(registry: SchemaRegistryClient) -> None:
    """A union of references failed, as its text is a list."""
    order = USER.replace("User", "Order").replace('"name": "name"', '"name": "of"')
    registry.register_schema("user", Schema(USER))
    registry.register_schema("order", Schema(order))
    used = [SchemaReference("shop.User", "user", 1), SchemaReference("shop.Order", "order", 1)]
    either = Schema(json.dumps(["shop.User", "shop.Order"]), references=used)
    write, read = AvroSerializer(registry, either), AvroDeserializer(registry)
    for value in ({"name": "Ann"}, {"of": "apples"}):
        assert read(write(value, CONTEXT), CONTEXT) == value
    cart = {"type": "record", "name": "Cart", "fields": [{"name": "by", "type": "shop.User"}]}
    within = Schema(json.dumps(cart), references=used[:1])
    data = AvroSerializer(registry, within)({"by": {"name": "Ann"}}, CONTEXT)
    assert read(data, CONTEXT) == {"by": {"name": "Ann"}}


def test_settings_choose_subject_and_schema(registry: SchemaRegistryClient) -> None:
    strategy = {"subject.name.strategy": record_subject_name_strategy}
    AvroSerializer(registry, USER, conf=strategy)({"name": "Ann"}, CONTEXT)
    assert registry.get_subjects() == ["shop.User"]
    strict = AvroSerializer(registry, OLDER, conf={"auto.register.schemas": False})
    with pytest.raises(SchemaRegistryError):
        strict({"name": "Ann", "age": 5}, CONTEXT)
    first = registry.register_schema("users-value", named(USER, 1))
    registry.register_schema("users-value", named(OLDER, 2))
    for chosen in ({"use.schema.id": first}, {"use.latest.with.metadata": {"n": "1"}}):
        conf = {"auto.register.schemas": False, **chosen}
        assert AvroSerializer(registry, conf=conf)({"name": "Ann"}, CONTEXT) == (
            b"\0" + first.to_bytes(4, "big") + b"\x06Ann"
        )


def test_schema_id_may_be_a_header(registry: SchemaRegistryClient) -> None:
    """Then it is the guid, by which another client finds the schema."""
    headers: list[tuple[str, bytes]] = []
    ctx = SerializationContext("users", MessageField.VALUE, headers)
    in_header = {"schema.id.serializer": header_schema_id_serializer}
    data = AvroSerializer(registry, USER, conf=in_header)({"name": "Ann Lee"}, ctx)
    assert data == b"\x0eAnn Lee"
    registry.clear_caches()
    both = {"schema.id.deserializer": dual_schema_id_deserializer}
    assert AvroDeserializer(registry, conf=both)(data, ctx) == {"name": "Ann Lee"}


def test_json_is_validated(registry: SchemaRegistryClient) -> None:
    """Also against a schema that it refers to."""
    age = json.dumps({"type": "number", "minimum": 0})
    registry.register_schema("age", Schema(age, "JSON"))
    user = {"title": "User", "type": "object", "properties": {"age": {"$ref": "age.json"}}}
    schema = Schema(json.dumps(user), "JSON", [SchemaReference("age.json", "age", 1)])
    write = JSONSerializer(schema, registry)
    data = write({"age": 5}, CONTEXT)
    assert data is not None
    assert json.loads(data[5:]) == {"age": 5}
    read = JSONDeserializer(None, schema_registry_client=registry)
    assert read(data, CONTEXT) == {"age": 5}
    with pytest.raises(SerializationError, match="-1 is less than"):
        write({"age": -1}, CONTEXT)


def test_remote_ref_is_fetched_by_confluent_from_public_addresses_only(
    registry: SchemaRegistryClient,
) -> None:
    """What docs/confluent-kafka.md says: an address within a network is refused."""
    remote = {"title": "User", "properties": {"age": {"$ref": "http://127.0.0.1:9/age.json"}}}
    write = JSONSerializer(json.dumps(remote), registry)
    with pytest.raises(Exception, match="127.0.0.1:9/age.json") as caught:
        write({"age": 5}, CONTEXT)
    causes = []
    error: BaseException | None = caught.value
    while error is not None:
        causes.append(str(error))
        error = error.__cause__ or error.__context__
    assert any("non-public address" in text for text in causes), causes


def test_protobuf_messages_are_read_as_they_were_written(registry: SchemaRegistryClient) -> None:
    """Its schema uses others, which its serializer registers first."""
    pool = DescriptorPool()
    user = FileDescriptorProto(name="user.proto", package="shop", syntax="proto3")
    user.message_type.add(name="User").field.add(name="name", number=1, type=9, label=1)
    order = FileDescriptorProto(name="order.proto", dependency=["user.proto"], syntax="proto3")
    order.message_type.add(name="Order").field.add(
        name="by", number=1, type=11, label=1, type_name=".shop.User"
    )
    for file in (user, order):
        pool.Add(file)
    kind = GetMessageClass(pool.FindMessageTypeByName("Order"))
    conf = {"use.deprecated.format": False}
    message = kind(by={"name": "Ann"})
    data = ProtobufSerializer(kind, registry, conf)(message, CONTEXT)
    assert ProtobufDeserializer(kind, conf, registry)(data, CONTEXT) == message
    assert registry.get_subjects() == ["user.proto", "users-value"]


def test_serializers_for_asyncio_do_the_same(root: str) -> None:
    """They are awaited when they are made, too."""
    schema = json.dumps({"title": "User", "type": "object", "required": ["name"]})
    user = {"name": "Ann"}

    async def found() -> None:
        async with AsyncSchemaRegistryClient({"url": root}) as client:
            write = await AsyncAvroSerializer(client, schema_str=USER)
            read = await AsyncAvroDeserializer(schema_registry_client=client)
            written = await asyncio.gather(*(write(user, CONTEXT) for _ in range(5)))
            assert len({*written}) == 1
            assert await read(written[0], CONTEXT) == user
            assert await client.get_subjects() == ["users-value"]
            people = SerializationContext("people", MessageField.VALUE)
            write_json = await AsyncJSONSerializer(schema, client)
            read_json = await AsyncJSONDeserializer(schema, schema_registry_client=client)
            assert await read_json(await write_json(user, people), people) == user
            with pytest.raises(SerializationError):
                await write_json({}, people)

    asyncio.run(found())


def test_failing_serializer_of_a_producer_is_a_kafka_exception_and_confluents(root: str) -> None:
    """A program catches either; one that calls a serializer itself gets confluent-kafka's."""
    registry = SchemaRegistryClient({"url": root})
    write = JSONSerializer(json.dumps({"title": "U", "required": ["name"]}), registry)
    producer = SerializingProducer({"bootstrap.servers": root, "value.serializer": write})
    with pytest.raises(ValueSerializationError) as caught:
        producer.produce("users", value={})
    assert isinstance(caught.value, KafkaException)
    assert isinstance(caught.value, SerializationError)
    assert isinstance(caught.value.exception, SerializationError)
    assert caught.value.args[0].name() == "_VALUE_SERIALIZATION"
    with pytest.raises(SerializationError) as alone:
        write({}, CONTEXT)
    assert not isinstance(alone.value, KafkaException)
    producer.close()
