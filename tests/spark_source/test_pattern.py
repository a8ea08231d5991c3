"""Option subscribePattern: which topics match, and which are created or deleted later."""

from __future__ import annotations

import logging

import pytest

from spark_source.batch import batch_reader
from spark_source.schema import spark_schema
from tests.spark_source.stream_steps import next_end, positions, reader_of, values
from txnlog.cluster import Cluster
from txnlog.errors import ConfigError, CorruptLogError, DataLossError
from txnlog.settings import config as config_module
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.store.objects import ObjectStore


def pattern_of(topics, pattern: str = r"orders\..*", **options: str):
    return reader_of(topics, subscribePattern=pattern, startingOffsets="earliest", **options)


def test_pattern_matches_whole_names_and_no_internal_topic(topics) -> None:
    """A part of a name is no match, as in Kafka; `.*` does not read our own tables."""
    for topic in ("orders.eu", "orders.us", "old-orders.eu", "orders.eu2"):
        topics.create(topic)
        topics.append(topic, 0, [topic.encode()])
    reader = pattern_of(topics, r"orders\.(eu|us)")
    end = next_end(reader, {})
    assert positions(end) == {"orders.eu": {"0": 1}, "orders.us": {"0": 1}}
    assert values(reader, {}, end) == [b"orders.eu", b"orders.us"]
    everything = positions(next_end(pattern_of(topics, ".*"), {}))
    assert sorted(everything) == ["old-orders.eu", "orders.eu", "orders.eu2", "orders.us"]


def test_pattern_topic_that_appears_joins_at_earliest(topics) -> None:
    """As in Kafka's connector, wherever the query itself started: none of it was read."""
    topics.create("orders.eu")
    topics.append("orders.eu", 0, [b"old"])
    reader = reader_of(topics, subscribePattern=r"orders\..*")
    end = next_end(reader, {})
    topics.create("orders.us", 2)
    topics.append("orders.us", 1, [b"new"])
    second = next_end(reader, end)
    assert second["@"]["start"] == {"orders.us": {"0": 0, "1": 0}}
    assert positions(second) == {"orders.eu": {"0": 1}, "orders.us": {"0": 0, "1": 1}}
    assert values(reader, end, second) == [b"new"]
    assert next_end(reader, second) == second


def test_deleted_topic_of_a_pattern_is_data_loss(topics, caplog) -> None:
    """failOnDataLoss decides, as for a topic that is named (R60)."""
    topics.create("orders.eu")
    topics.create("orders.us")
    end = next_end(pattern_of(topics), {})
    topics.cluster.delete_topic("orders.us")
    with pytest.raises(DataLossError, match="topic orders.us was deleted; its partition 0"):
        next_end(pattern_of(topics), end)
    lenient = pattern_of(topics, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, logger="txnlog"):
        second = next_end(lenient, end)
    assert "topic orders.us was deleted" in caplog.text
    assert positions(second) == {"orders.eu": {"0": 0}}


def test_pattern_changed_on_a_checkpoint_is_data_loss_naming_the_option(topics) -> None:
    """Another pattern excludes topics that the query has read (R60)."""
    topics.create("orders.eu")
    end = next_end(pattern_of(topics), {})
    with pytest.raises(DataLossError, match=r"^The checkpoint is of a query.*subscribePattern"):
        next_end(pattern_of(topics, "invoices"), end)


def test_pattern_without_a_topic_yet_waits_and_warns_with_the_existing_ones(topics, caplog) -> None:
    """Kafka's source waits, too; a misspelt pattern must be visible somewhere (R60).

    The others are listed, not read: a damaged one must not end the query.
    """
    for topic in ("broken", "invoices", "orders.old"):
        topics.create(topic)
    topics.cluster.delete_topic("orders.old")
    topics.cluster.store.put(commit_path("broken", 1), b'{"add": {"pa')
    config_module._warned.clear()
    reader = pattern_of(topics)
    with caplog.at_level(logging.WARNING, logger="txnlog"):
        end = next_end(reader, {})
        assert next_end(reader, end) == end
    assert caplog.text.count("matches no topic") == 1
    assert "there are: broken, invoices." in caplog.text
    assert positions(end) == {}
    topics.create("orders.eu")
    topics.append("orders.eu", 0, [b"first"])
    assert values(reader, end, next_end(reader, end)) == [b"first"]


def test_pattern_available_now_leaves_new_topics_for_the_next_run(topics) -> None:
    """A run that topics keep joining would never end (R61)."""
    topics.create("orders.eu")
    reader = pattern_of(topics)
    reader.prepareForTriggerAvailableNow()
    topics.create("orders.us")
    topics.append("orders.us", 0, [b"late"])
    end = next_end(reader, {})
    assert positions(end) == {"orders.eu": {"0": 0}, "orders.us": {"0": 0}}
    assert next_end(reader, end) == end
    again = pattern_of(topics)
    again.prepareForTriggerAvailableNow()
    assert values(again, end, next_end(again, end)) == [b"late"]


def test_pattern_costs_one_listing_a_batch_and_reads_matching_topics_only(
    topics, monkeypatch
) -> None:
    """A root of a thousand topics must not be tailed at every trigger for one of them."""
    for topic in ("orders.eu", "other"):
        topics.create(topic)
    topics.append("orders.eu", 0, [b"a"])
    reader = pattern_of(topics)
    listed: list[str] = []
    list_folders = ObjectStore.list_folders
    monkeypatch.setattr(
        ObjectStore,
        "list_folders",
        lambda store: listed.append("") or list_folders(store),
    )
    end = next_end(reader, {})
    assert values(reader, {}, end) == [b"a"]
    assert listed == [""]
    assert "other" not in reader._topics.cluster._topics
    named = reader_of(topics, subscribe="orders.eu")
    next_end(named, {})
    assert listed == [""]


def test_pattern_with_offsets_names_exactly_what_matches(topics) -> None:
    """(R60)"""
    topics.create("orders.eu")
    topics.create("orders.us")
    reader = reader_of(
        topics, subscribePattern=r"orders\..*", startingOffsets='{"orders.eu":{"0":0}}'
    )
    with pytest.raises(ConfigError, match="startingOffsets does not name partition 0 of topic ord"):
        next_end(reader, {})


def test_pattern_of_a_batch_reads_what_matches_or_nothing(topics) -> None:
    """An empty DataFrame, as Kafka's connector gives."""
    topics.create("orders.eu")
    topics.append("orders.eu", 0, [b"a"])
    for pattern, count in (("orders.*", 1), ("invoices", 0)):
        reader = batch_reader(
            {"path": topics.root, "subscribePattern": pattern}, spark_schema(include_headers=False)
        )
        assert len(reader.partitions()) == count


def damaged(topics, name: str) -> None:
    topics.create(name)
    topics.append(name, 0, [b"lost"])
    topics.cluster.store.put(commit_path(name, 1), b'{"add": {"pa')


def forget(reader) -> None:
    """As in a new process: a process that has read the log does not read it again."""
    Cluster.cached(reader._settings.options.root, {})._topics.clear()


def test_pattern_continues_beside_a_damaged_topic_that_it_has_not_read(topics, caplog) -> None:
    """One damaged topic among a thousand kept the query from starting (R37)."""
    topics.create("orders.eu")
    topics.append("orders.eu", 0, [b"a"])
    damaged(topics, "orders.us")
    config_module._warned.clear()
    reader = pattern_of(topics)
    forget(reader)
    with caplog.at_level(logging.WARNING, logger="txnlog"):
        end = next_end(reader, {})
        assert values(reader, {}, end) == [b"a"]
        assert next_end(reader, end) == end
    assert positions(end) == {"orders.eu": {"0": 1}}
    assert caplog.text.count("orders.us matches subscribePattern, but cannot be read") == 1


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_damaged_topic_that_was_read_is_not_taken_for_deleted(topics, lenient: str) -> None:
    """Its position would be lost, and all of it read again once it is restored (R60)."""
    topics.create("orders.eu")
    topics.create("orders.us")
    reader = pattern_of(topics, failOnDataLoss=lenient)
    end = next_end(reader, {})
    topics.cluster.store.put(commit_path("orders.us", 1), b'{"add": {"pa')
    with pytest.raises(CorruptLogError, match=r"orders\.us/_delta_log"):
        next_end(pattern_of(topics, failOnDataLoss=lenient), end)


def test_batch_of_a_pattern_lacks_no_topic_silently(topics) -> None:
    """A table without the rows of one topic would not be noticed (R60)."""
    topics.create("orders.eu")
    topics.append("orders.eu", 0, [b"a"])
    damaged(topics, "orders.us")

    def read(**options: str) -> list[bytes | None]:
        settings = {"path": topics.root, "subscribePattern": r"orders\..*", **options}
        reader = batch_reader(settings, spark_schema(include_headers=False))
        forget(reader)
        found = [batch for p in reader.partitions() for batch in reader.read(p)]
        return [value for batch in found for value in batch.column("value").to_pylist()]

    with pytest.raises(CorruptLogError, match=r"orders\.us"):
        read()
    assert read(failOnDataLoss="false") == [b"a"]
