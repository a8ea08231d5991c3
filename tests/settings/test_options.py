"""Options of the Spark source and sink: accepted, rejected, and never shown."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest

from txnlog.errors import ConfigError
from txnlog.settings import config as config_module
from txnlog.settings.config import find, parse_config
from txnlog.settings.docs import with_tables
from txnlog.settings.roots import redacted_url
from txnlog.settings.table import READS, SETTINGS, SPARK, Scope

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"
ROOT = {"path": "/data/root"}


def test_names_any_case_are_the_same_option() -> None:
    """Spark passes options in lower case; users write them as in Kafka's docs."""
    parsed = parse_config({**ROOT, "STARTINGoffsets": "earliest"}, "readStream")
    assert parsed.get("startingOffsets") == "earliest"
    assert parsed.is_set("startingOffsets")


def test_defaults_absent_options_have_the_tables_default() -> None:
    """A default that differs from Kafka's connector would change a job moved from it."""
    parsed = parse_config(ROOT, "readStream")
    assert parsed.get("failOnDataLoss") is True
    assert parsed.get("includeHeaders") is False
    assert parsed.get("isolation.level") == "read_committed"
    assert parsed.get("maxOffsetsPerTrigger") is None
    assert not parsed.is_set("failOnDataLoss")
    assert parse_config(ROOT, "write").get("transaction.timeout.ms") == 60_000


@pytest.mark.parametrize("name", ["kafka.isolation.level", "Kafka.Isolation.Level"])
def test_kafka_prefix_of_an_option_with_a_meaning_is_taken_as_without(name: str) -> None:
    """A job that set kafka.isolation.level would silently read another isolation level."""
    parsed = parse_config({**ROOT, name: "read_uncommitted"}, "readStream")
    assert parsed.get("isolation.level") == "read_uncommitted"
    assert parse_config({**ROOT, "kafka.num.partitions": "7"}, "write").get("num.partitions") == 7


def test_kafka_prefix_given_twice_with_different_values_is_refused() -> None:
    """Which of the two applies would depend on the order of a dictionary (R60)."""
    raw = {**ROOT, "group.id": "a", "kafka.group.id": "b"}
    with pytest.raises(ConfigError, match=r"group\.id is given two values"):
        parse_config(raw, "readStream")
    assert parse_config({**raw, "kafka.group.id": "a"}, "readStream").get("group.id") == "a"


def test_broker_options_are_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A job works unchanged, but its author learns what has no effect; values are not shown."""
    raw = {
        **ROOT,
        "kafka.bootstrap.servers": "broker:9092",
        "kafka.sasl.jaas.config": "password=hunter2",
        "kafka.ssl.truststore.location": "/t",
        "fetchOffset.numRetries": "3",
        "kafkaConsumer.pollTimeoutMs": "1",
        "acks": "all",
        "kafka.transaction.timeout.ms": "1000",
    }
    config_module._warned.clear()
    with caplog.at_level(logging.WARNING, logger="txnlog"):
        parse_config(raw, "readStream")
        parse_config(raw, "readStream")
    names = ", ".join(sorted(set(raw) - set(ROOT)))
    assert [record.getMessage() for record in caplog.records] == [
        f"Options without effect here, where there are no brokers: {names}."
    ]


# Kafka client settings that a job may have; most of them have no counterpart here.
KAFKA_SETTINGS = """
bootstrap.servers client.id client.rack connections.max.idle.ms default.api.timeout.ms
delivery.timeout.ms fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.instance.id
heartbeat.interval.ms linger.ms batch.size buffer.memory max.block.ms max.request.size
max.partition.fetch.bytes max.poll.interval.ms max.poll.records metadata.max.age.ms
request.timeout.ms retries retry.backoff.ms sasl.jaas.config sasl.mechanism security.protocol
session.timeout.ms ssl.keystore.password ssl.truststore.location acks enable.idempotence
compression.type partitioner.class transactional.id transaction.timeout.ms check.crcs
allow.auto.create.topics group.id
"""


@pytest.mark.parametrize("operation", sorted(SPARK))
def test_kafkas_client_settings_are_all_taken(operation: str) -> None:
    """A job must not fail because a broker setting looks like one of ours."""
    raw = {f"kafka.{name}": "1" for name in KAFKA_SETTINGS.split()}
    raw["kafka.compression.type"] = "lz4"
    if operation == "writeStream":
        del raw["kafka.transactional.id"]  # it is refused
    parse_config({**ROOT, **raw}, operation)  # type: ignore[arg-type]
    assert find("kafka.bootstrap.servers", operation) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["value.deserializer", "enable.auto.commit", "key.serializer"])
def test_what_kafkas_connector_refuses_is_refused(name: str) -> None:
    """Bytes are not decoded: ignoring a deserializer would change what a job reads (R60)."""
    with pytest.raises(ConfigError, match=rf"kafka\.{name} is not supported.*Leave it out"):
        parse_config({**ROOT, f"kafka.{name}": "x"}, "readStream")


def test_group_id_prefix_is_taken_without_effect() -> None:
    """As in Kafka's connector when group.id is set: no group id is generated."""
    for operation in READS:
        assert find("groupIdPrefix", operation) is None
    with pytest.raises(
        ConfigError, match="groupIdPrefix is for read and readStream, not for write"
    ):
        parse_config({**ROOT, "groupIdPrefix": "team"}, "write")


@pytest.mark.parametrize(
    ("value", "delay_ms"),
    [
        ("15m", 900_000),
        ("10s", 10_000),
        ("1min", 60_000),
        ("250", 250),
        ("250ms", 250),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("1500us", 1),
        (" 3S ", 3_000),
        ("0", 0),
    ],
)
def test_duration_is_read_as_spark_reads_it(value: str, delay_ms: int) -> None:
    """10 for 10 s taken as 10 ms would switch minOffsetsPerTrigger off; Spark takes ms, too."""
    parsed = parse_config({**ROOT, "maxTriggerDelay": value}, "readStream")
    assert parsed.get("maxTriggerDelay") == delay_ms


def test_duration_is_15_minutes_by_default() -> None:
    """Kafka's default."""
    assert parse_config(ROOT, "readStream").get("maxTriggerDelay") == 15 * 60_000


@pytest.mark.parametrize(
    ("name", "operation", "nearest"),
    [
        ("subscibe", "readStream", "subscribe"),
        ("startingOffset", "read", "startingOffsets"),
        ("transactionalid", "write", "transactional.id"),
        ("txnlog.rot", "read", "txnlog.root"),
        ("kafka.isolation.leve", "readStream", "isolation.level"),
        ("kafka.subscribe", "readStream", "subscribe"),
    ],
)
def test_unknown_option_names_the_nearest(name: str, operation: str, nearest: str) -> None:
    """A misspelt option without effect is worse than an error (R60)."""
    with pytest.raises(ConfigError, match=f"{name}.*Did you mean {nearest}"):
        parse_config({**ROOT, name: "hunter2"}, operation)  # type: ignore[arg-type]


def test_unknown_option_without_a_near_name_lists_the_options() -> None:
    """The value may be a secret under a wrong name, so it is not shown (R60, R67)."""
    with pytest.raises(ConfigError, match=r"zzz.*subscribe") as caught:
        parse_config({**ROOT, "zzz": "hunter2"}, "read")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_ending_of_a_stream_is_refused(name: str) -> None:
    """It would seem that the stream stops there (R60)."""
    with pytest.raises(ConfigError, match=f"{name} is for read, not for readStream"):
        parse_config({**ROOT, name: "1"}, "readStream")


def test_option_of_another_operation_is_refused_naming_the_operation() -> None:
    """A topic option on a read would look like a subscription (R60)."""
    with pytest.raises(ConfigError, match="topic is for write and writeStream"):
        parse_config({**ROOT, "topic": "t"}, "read")


@pytest.mark.parametrize("name", ["transactional.id", "kafka.transactional.id"])
def test_transactional_id_of_a_stream_is_refused_with_what_fences_by_name(name: str) -> None:
    """Ignored, it would fence nobody: two queries of that name would both write (R58, R60)."""
    with pytest.raises(ConfigError, match=r"query's transactional\.id is its query id.*group\.id"):
        parse_config({**ROOT, name: "copier"}, "writeStream")
    assert parse_config({**ROOT, name: "copier"}, "write").get("transactional.id") == "copier"
    assert find("kafka.transactional.id", "readStream") is None


def test_trigger_options_of_a_batch_are_ignored_as_in_kafka() -> None:
    """Spark's Kafka connector warns and continues; a shared dictionary of options must not fail."""
    names = ("maxOffsetsPerTrigger", "maxTriggerDelay", "minOffsetsPerTrigger")
    assert [find(name, "read") for name in names] == [None] * 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "many"),
        ("failOnDataLoss", "maybe"),
        ("isolation.level", "serializable"),
        ("group.id", "  "),
        ("auto.offset.reset", "yesterday"),
        ("maxTriggerDelay", "soon"),
        ("maxTriggerDelay", "1.5m"),
        ("maxTriggerDelay", "-1s"),
        ("maxTriggerDelay", "5 parsecs"),
        ("minOffsetsPerTrigger", "0"),
        ("minPartitions", "-4"),
        ("minPartitions", "1.5"),
        ("maxRecordsPerPartition", "0"),
        ("startingTimestamp", "2024-01-01"),
        ("startingTimestamp", "-1"),
        ("subscribePattern", "orders("),
        ("subscribePattern", ""),
        ("startingOffsetsByTimestamp", " "),
        ("startingOffsetsByTimestampStrategy", "earliest"),
    ],
)
def test_malformed_value_names_the_option(name: str, value: str) -> None:
    """The message must name the wrong one of twenty options (R60)."""
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")) as caught:
        parse_config({**ROOT, name: value}, "readStream")
    assert caught.value.option == name


def test_eager_publication_of_a_sink_is_refused() -> None:
    """The data of repeated task attempts would be committed, too (R56)."""
    with pytest.raises(ConfigError, match="transaction.publish=eager is not for the Spark sink"):
        parse_config({**ROOT, "transaction.publish": "eager"}, "writeStream")


def test_root_absent_or_different_or_relative_is_refused() -> None:
    """Reading one root and writing another, or a folder of the worker's, would look empty (R60)."""
    with pytest.raises(ConfigError, match="root is missing"):
        parse_config({}, "read")
    with pytest.raises(ConfigError, match="Two roots: path /a and txnlog.root /b"):
        parse_config({"path": "/a", "txnlog.root": "/b"}, "read")
    with pytest.raises(ConfigError, match="relative"):
        parse_config({"path": "data"}, "read")
    with pytest.raises(ConfigError, match="one root"):
        parse_config({"paths": '["/a","/b"]'}, "read")


def test_root_the_same_written_differently_is_taken() -> None:
    """file:///a/ and /a are one folder."""
    assert parse_config({"path": "file:///a/", "txnlog.root": "/a"}, "read").root == "file:///a/"
    assert parse_config({"txnlog.root": "s3://b/p"}, "read").root == "s3://b/p"


def test_storage_settings_are_collected_and_never_shown() -> None:
    """A key in a repr ends up in a log (R67)."""
    raw = {
        "path": "s3://user:hunter2@bucket/x?sig=hunter2",
        "storage.aws_secret_access_key": "hunter2",
        "checkpoint.storage.Token": "hunter2",
    }
    parsed = parse_config(raw, "writeStream")
    assert parsed.storage["aws_secret_access_key"] == "hunter2"
    assert parsed.checkpoint_storage["token"] == "hunter2"
    assert "hunter2" not in f"{parsed} {parsed!r} {parsed.storage} {parsed.checkpoint_storage!r}"
    assert "aws_secret_access_key" in repr(parsed.storage)
    with pytest.raises(ConfigError) as caught:
        parse_config({**raw, "txnlog.root": "s3://user:hunter2@other/x"}, "writeStream")
    assert "hunter2" not in str(caught.value)
    assert redacted_url("s3://u:p@b/k?x=1#y") == "s3://...@b/k"
    assert redacted_url("/plain/path?x") == "/plain/path?x"


def test_options_pickled_come_back_equal() -> None:
    """Readers and writers travel to tasks by pickle (D8)."""
    parsed = parse_config({**ROOT, "storage.user_agent": "v", "subscribe": "a"}, "read")
    copy = pickle.loads(pickle.dumps(parsed))
    assert copy == parsed
    assert "v'" not in repr(copy.storage)


def test_table_rows_are_whole() -> None:
    """A row for no scope, or a name twice, would never be found; users may spell a default out."""
    found: set[tuple[str, str]] = set()
    for row in SETTINGS:
        taken = row.applies_to | row.ignored_in
        assert taken
        assert not row.applies_to & row.ignored_in
        assert row.doc.endswith((".", ".)"))
        text = ",".join(row.default) if isinstance(row.default, tuple) else str(row.default)
        assert row.default is None or row.parse(row.name, text) == row.default
        names = {(scope, name.lower()) for scope in taken for name in row.names}
        assert not names & found
        found |= names


def test_options_page_is_as_the_table_is() -> None:
    """Outdated docs lead users into errors."""
    page = PAGE.read_text()
    assert page == with_tables(page), "python -m txnlog.settings.docs docs/options.md"
    missing = [
        row.name for row in SETTINGS if row.applies_to & SPARK if f"| `{row.name}`" not in page
    ]
    assert not missing
    stale = page.replace("| `subscribe` |", "| `subscrib` |")
    assert stale != page
    assert with_tables(stale) == page


def test_clients_page_is_as_the_table_of_settings_is() -> None:
    """The same for producers and consumers."""
    page = PAGE.with_name("clients.md").read_text()
    assert page == with_tables(page), "python -m txnlog.settings.docs docs/clients.md"
    for name in ("linger.ms", "session.timeout.ms"):
        assert f"| `{name}`" in page


@pytest.mark.parametrize("operation", ["read", "readStream", "write"])
def test_options_of_a_catalog_table_name_the_view_instead(operation: Scope) -> None:
    """Spark would create the table, and could not read it."""
    given = {**ROOT, "subscribe": "t", "provider": "txnlog", "owner": "me", "location": "/x"}
    with pytest.raises(ConfigError, match="CREATE TEMPORARY VIEW"):
        parse_config(given, operation)
