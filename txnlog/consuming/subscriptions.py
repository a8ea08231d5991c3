"""What a subscription means now: the topics that match it, and their partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache

from txnlog.cluster import Cluster
from txnlog.errors import TxnLogError, UnknownTopicOrPartitionError
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.membership import assigned_count
from txnlog.protocol.topics import check_topic_name
from txnlog.settings.patterns import compiled
from txnlog.storage.tables.topic_log import TopicLog

logger = logging.getLogger("txnlog")

PATTERN_PREFIX = "^"


def resolve(
    cluster: Cluster, subscription: Iterable[str], known: Collection[str] = ()
) -> tuple[tuple[str, ...], TxnLogError | None]:
    """The topics of names and "^regex" patterns, sorted; a named topic need not exist yet.

    Of the topics that match and cannot be read now, only those in `known` are kept; then the second
    value is an error of one, and the patterns should be resolved again soon. Damaged topics are
    left out.
    """
    names = set()
    patterns = []
    for entry in subscription:
        if entry.startswith(PATTERN_PREFIX):
            patterns.append(compiled("topics", entry, whole=False))
        else:
            names.add(entry)
    failed = None
    if patterns:
        surveyed = cluster.survey_topics(lambda name: any(p.matches(name) for p in patterns))
        for name, found in surveyed.items():
            if isinstance(found, TopicLog):
                names.add(name)
                continue
            logger.warning("Topic %r cannot be read and is left out: %s", name, found)
            if found.retriable:
                failed = found
                names.update({name}.intersection(known))
    return tuple(sorted(names)), failed


def selected_alike(subscription: Iterable[str], topic: str) -> Callable[[str], bool]:
    """Says of other topics whether a pattern that selects this one selects them, too."""
    given = [entry for entry in subscription if entry.startswith(PATTERN_PREFIX)]
    entries = [compiled("topics", entry, whole=False) for entry in given]
    patterns = [entry for entry in entries if entry.matches(topic)]
    return lambda name: any(pattern.matches(name) for pattern in patterns)


def missing_topics(
    cluster: Cluster, topics: Iterable[str]
) -> dict[str, UnknownTopicOrPartitionError]:
    """Of these topics those that do not exist, with the error that says so."""
    return {
        topic: error
        for topic, error in cluster.look_up(topics).items()
        if isinstance(error, UnknownTopicOrPartitionError)
    }


def check_subscription(topics: Iterable[str]) -> None:
    """Raise InvalidTopicError, or ConfigError for an invalid pattern."""
    for topic in topics:
        if not topic.startswith(PATTERN_PREFIX):
            check_topic_name(topic)
            continue
        compiled("topics", topic, whole=False)


class PartitionCounts:
    """Numbers of partitions of topics, looked up once per write, and only if it needs them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._counts: dict[str, int] = {}

    def of(self, group: Group | None, topics: Iterable[str]) -> Mapping[str, int]:
        """For all topics of the members' subscriptions, and `topics`; 0 for missing topics.

        A topic that cannot be read has as many as the group has assigned.
        Nothing is read before the mapping is first used.
        """
        members = () if group is None else group.members.values()
        wanted = {topic for member in members for topic in member.topics}.union(topics)
        return _Lazy(lambda: self._look_up(group, wanted))

    def _look_up(self, group: Group | None, wanted: set[str]) -> Mapping[str, int]:
        missing = sorted(wanted - set(self._counts))
        for topic, found in self._cluster.look_up(missing).items():
            if isinstance(found, TopicLog):
                self._counts[topic] = found.partitions
            elif isinstance(found, UnknownTopicOrPartitionError):
                self._counts[topic] = 0
            else:
                # One topic keeps no group from its others. All members know the assigned ones.
                logger.warning("Topic %r cannot be read: %s", topic, found)
                self._counts[topic] = assigned_count(group, topic)
        return self._counts


class _Lazy(Mapping[str, int]):
    """A mapping that is read at its first use."""

    def __init__(self, read: Callable[[], Mapping[str, int]]) -> None:
        self._found = cache(read)

    def __getitem__(self, key: str) -> int:
        return self._found()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())
