"""A schema registry in the topic `_schemas` of a root (D114).

A record is one registration: its key the subject, its value the body of a registry's request. The
topic has one partition and is read whole, so all clients agree: a schema's id is the offset of its
first record plus one, and its version in a subject is the number of different schemas there up to
it. Two clients that register the same schema at once add it twice, and both find the first. A
record that is no registration is one for nobody: each client skips it, with a warning.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import unquote

from txnlog.cluster import Cluster
from txnlog.compat.confluent_kafka.confluent import load
from txnlog.consumer import Consumer
from txnlog.errors import PartitionEndError, UnknownTopicOrPartitionError
from txnlog.messages import OFFSET_BEGINNING, Message, TopicPartition
from txnlog.producer import Producer
from txnlog.settings.arguments import shown
from txnlog.settings.roots import checked_root
from txnlog.settings.storage_options import STORAGE_PREFIX, StoreSettings, checked_settings
from txnlog.text import printable

_theirs = load("schema_registry")
SchemaRegistryError = _theirs.SchemaRegistryError
logger = logging.getLogger("txnlog")

Body = dict[str, Any]
"""A schema, or a registration, as the registry's REST interface has it."""
Query = Mapping[str, Any]

TOPIC = "_schemas"
CONFIG = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
PLACE = ("id", "guid", "subject", "version")
"""What a registration has beside its schema."""
NOWHERE = "http://txnlog.invalid"
"""A name that never resolves: no request reaches a server."""
READ_S = 60
SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND, TIMED_OUT = 40401, 40402, 40403, 50002
"""Error codes of Confluent's registry."""


def topic_registry(conf: Mapping[str, Any]) -> tuple[TopicRegistry | None, dict[str, Any]]:
    """The registry of a root, and the settings that are left; None where `url` is a server's.

    Raises ConfigError for a root that is not absolute, or unknown storage settings.
    """
    left = dict(conf)
    url = left.get("url")
    if not isinstance(url, str) or url.strip().startswith(("http:", "https:", "mock:")):
        return None, left
    storage = StoreSettings()
    for name in [name for name in left if name.startswith(STORAGE_PREFIX)]:
        storage[name[len(STORAGE_PREFIX) :]] = left.pop(name)
    root = checked_root(url)
    return TopicRegistry(root, checked_settings(root, storage)), {**left, "url": NOWHERE}


class TopicRegistry:
    """The registry of one root, in the place of a server. Any thread may call it."""

    def __init__(self, root: str, storage: StoreSettings) -> None:
        self._root, self._storage = root, storage
        self._lock = threading.Lock()
        self._consumer: Consumer | None = None
        self._next = OFFSET_BEGINNING
        self._ids: dict[str, int] = {}
        """Of schemas, by their guids."""
        self._schemas: dict[int, Body] = {}
        self._subjects: dict[str, list[int]] = {}

    def send_request(
        self, url: str, method: str, body: Body | None = None, query: Query | None = None
    ) -> Any:
        """A server's reply to a request of confluent-kafka's client.

        Raises SchemaRegistryError for what is not there, TxnLogError for a fault of the store.
        """
        path, asked = url.partition("?")[0], query or {}
        with self._lock:
            match method, *map(unquote, path.split("/")):
                case "GET", "associations", "resources", _, _:
                    return []
                case "GET", "schemas", "ids", number if number.isdecimal():
                    given = int(number), asked.get("subject", "")
                    return self._known(SCHEMA_NOT_FOUND, path, self._by_id, *given)
                case "GET", "schemas", "guids", guid:
                    return self._known(SCHEMA_NOT_FOUND, path, self._by_guid, guid)
                case "GET", "subjects":
                    self._refresh()
                    prefix = asked.get("subjectPrefix", "")
                    return _page([n for n in sorted(self._subjects) if n.startswith(prefix)], asked)
                case "GET", "subjects", subject, "versions":
                    return _page([each["version"] for each in self._versions(subject)], asked)
                case "GET", "subjects", subject, "versions", "latest" | "-1":
                    return self._versions(subject)[-1]
                case "GET", "subjects", subject, "versions", number if number.isdecimal():
                    return self._known(
                        VERSION_NOT_FOUND, path, self._find, subject, "version", int(number)
                    )
                case "GET", "subjects", subject, "metadata":
                    return self._with_metadata(subject, asked)
                case "POST", "subjects", subject:
                    what = f"{path} with this schema"
                    return self._known(
                        SCHEMA_NOT_FOUND, what, self._find, subject, "guid", _guid(body)
                    )
                case "POST", "subjects", subject, "versions":
                    return self._register(subject, body)
        raise SchemaRegistryError(
            501,
            501,
            f"A registry in a topic has no {method} {printable(path)}: that needs a registry "
            "server",
        )

    def close(self) -> None:
        """Free what is open; a later request opens it again."""
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

    def _registered(self, subject: str) -> list[Body]:
        """The versions of a subject that were read, oldest first."""
        ids = self._subjects.get(subject, [])
        return [
            {**self._schemas[schema_id], "subject": subject, "version": version}
            for version, schema_id in enumerate(ids, start=1)
        ]

    def _find(self, subject: str, name: str, value: object) -> Body | None:
        return next((one for one in self._registered(subject) if one[name] == value), None)

    def _by_id(self, schema_id: int, subject: str) -> Body | None:
        """With its version, if it is in that subject."""
        return self._find(subject, "id", schema_id) or self._schemas.get(schema_id)

    def _by_guid(self, guid: str) -> Body | None:
        return self._schemas.get(self._ids.get(guid, 0))

    def _known(
        self, code: int, what: str, find: Callable[..., Body | None], *wanted: object
    ) -> Body:
        """What never changes: from memory, and only if it is not there from the topic."""
        found = find(*wanted)
        if found is None:
            self._refresh()
            found = find(*wanted)
        if found is None:
            raise SchemaRegistryError(404, code, f"Topic {TOPIC!r} has no {printable(what)}")
        return found

    def _versions(self, subject: str) -> list[Body]:
        """All versions of a subject as of now, oldest first."""
        self._refresh()
        found = self._registered(subject)
        if not found:
            raise SchemaRegistryError(
                404, SUBJECT_NOT_FOUND, f"Topic {TOPIC!r} has no subject {shown(subject)}"
            )
        return found

    def _with_metadata(self, subject: str, asked: Query) -> Body:
        """The newest version that has these properties."""
        names, values = (map(unquote, asked.get(name, ())) for name in ("key", "value"))
        wanted = dict(zip(names, values, strict=True)).items()
        for one in reversed(self._versions(subject)):
            if wanted <= one.get("metadata", {}).get("properties", {}).items():
                return one
        raise SchemaRegistryError(
            404, SCHEMA_NOT_FOUND, f"Subject {shown(subject)} has no schema with this metadata"
        )

    def _register(self, subject: str, body: Body | None) -> Body:
        """Where the schema is in the subject; it is added unless it is there.

        The reply is without the schema: the client keeps the very one that it has sent.
        """
        guid = _guid(body)
        look, append = partial(self._refresh, create=True), partial(self._append, subject, body)
        for step in (None, look, append):
            if step is not None:
                step()
            found = self._find(subject, "guid", guid)
            if found is not None:
                return {name: found[name] for name in PLACE}
        raise SchemaRegistryError(
            500,
            TIMED_OUT,
            f"The schema was written to topic {TOPIC!r}, where an open transaction hides it: it is "
            "registered once that ends",
        )

    # -- the topic ---------------------------------------------------------------------------------

    def _append(self, subject: str, body: Body | None) -> None:
        """Add a registration, and read it."""
        failures: list[Exception] = []

        def report(error: Exception | None, message: Message) -> None:
            if error is not None:
                failures.append(error)

        settings = {f"{STORAGE_PREFIX}{name}": value for name, value in self._storage.items()}
        with Producer({"txnlog.root": self._root, **settings}) as producer:
            producer.produce(TOPIC, json.dumps(body), subject, 0, report)
            producer.flush()
        if failures:
            raise failures[0]
        self._refresh()

    def _refresh(self, *, create: bool = False) -> None:
        """Read the registrations that were added since the last time.

        `create` the cluster and the topic if they do not exist. Raises ConfigError without a
        cluster.
        """
        consumer = self._open(create)
        if consumer is None:
            return
        # Also where nothing was added, seek has the end reported once more.
        consumer.seek(TopicPartition(TOPIC, 0, self._next))
        with suppress(PartitionEndError):
            while (message := consumer.poll(READ_S)) is not None:
                offset = message.offset()
                assert offset is not None
                self._next = offset + 1
                try:
                    self._apply(offset, message.key(), message.value())
                except Exception as error:
                    logger.warning(
                        "Topic %s has a record that is no schema, at offset %d, and is read "
                        "without it: %s: %s", TOPIC, offset, type(error).__name__, error
                    )  # fmt: skip
            raise SchemaRegistryError(
                500, TIMED_OUT, f"No reply from topic {TOPIC!r} in {READ_S} s"
            )

    def _open(self, create: bool) -> Consumer | None:
        """The consumer, None where the topic does not exist."""
        if self._consumer is None:
            cluster = Cluster.open(self._root, self._storage, create=create)
            reading = {"enable.partition.eof": True, "auto.offset.reset": "earliest"}
            consumer = Consumer(reading, cluster=cluster)
            everything = [TopicPartition(TOPIC, 0, OFFSET_BEGINNING)]
            try:
                consumer.assign(everything)
            except UnknownTopicOrPartitionError:
                if not create:
                    consumer.close()
                    return None
                cluster.create_topic(TOPIC, partitions=1, config=CONFIG, exist_ok=True)
                consumer.assign(everything)
            self._consumer = consumer
        return self._consumer

    def _apply(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Note a registration. Raises what else the record is."""
        if key is None or value is None:
            raise ValueError("it has no key, or no value")
        subject, stored = key.decode(), json.loads(value)
        body = {name: field for name, field in stored.items() if name not in PLACE}
        if not isinstance(_theirs.Schema.from_dict(body).schema_str, str):
            raise ValueError("it has no text of a schema")
        guid = _guid(body)
        schema_id = self._ids.setdefault(guid, offset + 1)
        self._schemas.setdefault(schema_id, {**body, "id": schema_id, "guid": guid})
        there = self._subjects.setdefault(subject, [])
        if schema_id not in there:
            there.append(schema_id)


def _guid(body: Body | None) -> str:
    """The same for schemas that differ in the white space of their JSON only."""
    fields = dict(body or {})
    with suppress(ValueError, RecursionError, TypeError):
        fields["schema"] = json.dumps(json.loads(fields["schema"]))
    return str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(fields, sort_keys=True)))


def _page(found: Sequence[Any], asked: Query) -> list[Any]:
    """The part of a listing that is asked for. Nothing is ever deleted."""
    if asked.get("deleted_only"):
        return []
    start, count = asked.get("offset", 0), asked.get("limit", -1)
    return list(found[start:] if count < 0 else found[start : start + count])
