"""Taking a snapshot of a root, keeping it under a name, and opening a topic as it shows it.

txnlog.protocol.snapshots decides, and says in which order what is read.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from txnlog.coordinator.finishing import publish
from txnlog.coordinator.root import Root
from txnlog.errors import (
    ConcurrentTransactionsError,
    ConfigError,
    ForeignTableError,
    LogGapError,
    OperationTimedOutError,
    SnapshotNotFoundError,
    TxnLogError,
    UnknownTopicOrPartitionError,
)
from txnlog.process.failpoint import reach
from txnlog.process.failures import Failures, caught
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.metadata import ProducerIdAndEpoch, TransactionMetadata
from txnlog.protocol.snapshots import (
    SNAPSHOT,
    Offsets,
    Pin,
    Snapshot,
    TopicRead,
    check_snapshot_name,
    decided,
    is_past,
    offsets_of,
    read_json,
    unpublished,
    version_of,
)
from txnlog.protocol.topics import may_be_topic
from txnlog.storage.delta.as_of import StoreAtVersions
from txnlog.storage.delta.log_settings import LogSettings
from txnlog.storage.tables.cluster_log import PATH, SNAPSHOTS
from txnlog.storage.tables.row_log import TransactionLog, UnreadableRow
from txnlog.storage.tables.topic_log import TopicLog

logger = logging.getLogger("txnlog")

TRIES_MAX = 20
LOOKS = 3
"""So often a topic without the marker of a decided transaction is read, before it is published:
most likely its own process is about to."""
_PLAIN = LogSettings(checkpoint_mode="off")


def take_snapshot(root: Root) -> Snapshot:
    """The topics and the offsets of all groups at one boundary between transactions.

    Publishes what other processes have decided, if they do not. Topics that cannot be read are
    logged and left out, groups too. Raises what publishing raises, ConcurrentTransactionsError, and
    CorruptLogError for a row of the transaction log that cannot be read.
    """
    for attempt in range(TRIES_MAX):
        with _Decisions.of(root) as decisions:
            found = _try(root, decisions)
        if found is not None:
            return found
        root.store.back_off(attempt)
    raise ConcurrentTransactionsError(
        f"{root}: {TRIES_MAX} times in a row compaction or retention has removed files from a "
        "topic, or a group went on, while the snapshot was taken; try again."
    )


def _try(root: Root, decisions: _Decisions) -> Snapshot | None:
    """None: begin again."""
    at_ms = root.store.now_ms()
    before = {name: log.log.version for name, log in root.opened_topics().items()}
    decisions.read()
    unmoved = decisions.pending()
    shards = root.known_offsets_shards()
    groups = [(dict(shard.view.rows), dict(shard.view.markers)) for shard in shards]
    if shards:
        decisions.read()
    pending = decisions.pending()
    unmoved |= decisions.take()
    topics = _published(root, pending.values())
    decisions.read()
    later = [row for name, row in decisions.take().items() if name not in pending]
    carried = {ticket.group_id for row in unmoved.values() for ticket in row.moves}
    numbers = {shard.number for shard in shards}
    if not decisions.is_whole or any(root.offsets_shard_of(one) not in numbers for one in carried):
        return None
    offsets: Offsets = {}
    for shard, (rows, markers) in zip(shards, groups, strict=True):
        new = [one for one in carried - rows.keys() if root.offsets_shard_of(one) == shard.number]
        rows |= {group_id: Group(group_id=group_id) for group_id in new}
        for group_id in shard.view.rows.unreadable:
            logger.warning("Group %r cannot be read: it is in no snapshot", group_id)
            rows.pop(group_id, None)
        offsets |= offsets_of(rows, markers, unmoved.values())
    versions = {}
    for name, topic in topics.items():
        log = topic.log
        read = TopicRead(topic.view, log.version, log.removed_at, before.get(name, -1))
        one = version_of(name, read, later)
        if one is None or is_past(offsets, name, topic.view, one):
            return None
        versions[name] = one
    return Snapshot(at_ms=at_ms, topics=versions, offsets=offsets)


class _Decisions:
    """What the transaction log decides from the first `read` on.

    `is_whole`: no commit of it was missed.
    """

    def __init__(self, root: Root) -> None:
        self.is_whole = True
        self._root = root
        self._shards: list[TransactionLog] | None = None
        self._next: dict[str, int] = {}
        self._rows: list[TransactionMetadata] = []

    @classmethod
    @contextmanager
    def of(cls, root: Root) -> Iterator[_Decisions]:
        """They are noted while the block runs."""
        decisions = cls(root)
        try:
            yield decisions
        finally:
            for shard in decisions._shards or ():
                shard.view.watch = None

    def read(self) -> None:
        """Tail all shards."""
        is_first = self._shards is None
        self._shards = self._root.tail_shards()
        for shard in self._shards:
            if shard.path not in self._next:
                # One that was created since has decided something already.
                self.is_whole &= is_first
                self._next[shard.path] = shard.log.version + 1
                shard.view.watch = partial(self._note, shard.path)

    def _note(
        self, path: str, version: int, rows: Sequence[TransactionMetadata | UnreadableRow]
    ) -> None:
        self.is_whole &= version == self._next[path]
        self._next[path] = version + 1
        for row in rows:
            if isinstance(row, UnreadableRow):
                self.is_whole = False
            else:
                self._rows.append(row)

    def take(self) -> dict[ProducerIdAndEpoch, TransactionMetadata]:
        """What was decided since the last call."""
        rows, self._rows = self._rows, []
        return decided(rows)

    def pending(self) -> dict[ProducerIdAndEpoch, TransactionMetadata]:
        """What is decided and not completed now. Raises CorruptLogError."""
        for shard in self._shards or ():
            for unreadable in shard.view.rows.unreadable.values():
                raise unreadable.error.replace()
        return decided(row for shard in self._shards or () for row in shard.view.rows.values())


def _published(root: Root, rows: Collection[TransactionMetadata]) -> dict[str, TopicLog]:
    """The topics, tailed to their heads, each with the markers of these decided rows.

    What waits for a table of others only is in the topics.
    """
    failed: TxnLogError | None = None
    for attempt in range(TRIES_MAX):
        topics = _tail_topics(root)
        left = unpublished(rows, {name: log.view for name, log in topics.items()})
        if not left:
            return topics
        if failed is not None:
            raise failed
        if attempt < LOOKS:
            root.store.back_off(attempt)
            continue
        for row in left:
            outcome = caught(partial(publish, root, row), f"Publishing {row.transactional_id!r}")
            failed = outcome if isinstance(outcome, TxnLogError) else failed
    raise ConcurrentTransactionsError(
        f"{root}: {left[0].transactional_id!r} is decided, and could not be published; try again.",
        transactional_id=left[0].transactional_id,
    )


def _tail_topics(root: Root) -> dict[str, TopicLog]:
    """All topics, tailed; new ones are looked for beside. Raises StorageError."""
    known = root.opened_topics()
    names: list[str] = []

    def look() -> TxnLogError | None:
        names.extend(name for name in root.store.list_folders() if may_be_topic(name))
        return None

    calls: list[Callable[[], TxnLogError | None]] = [look]
    failures = root.store.together(calls + [partial(_tailed, log) for log in known.values()])[1:]
    new = [root.topic_log(name) for name in sorted(names) if name not in known]
    failures += root.store.together([partial(_tailed, log) for log in new])
    found: dict[str, TopicLog] = {}
    retried = Failures("Reading topics", logging.DEBUG)
    for log, failure in zip((*known.values(), *new), failures, strict=True):
        if failure is None:
            found |= {log.name: log} if log.exists else {}
        elif failure.retriable:
            retried.add(log.name, failure)
        elif not isinstance(failure, ForeignTableError):
            logger.warning("Topic %r cannot be read: it is in no snapshot. %s", log.name, failure)
    retried.check()
    return found


def _tailed(log: TopicLog) -> TxnLogError | None:
    return caught(log.refresh, f"Reading topic {log.name!r}")


# -- named snapshots -------------------------------------------------------------------------------


def keep_snapshot(root: Root, name: str, *, ttl_ms: int) -> Snapshot:
    """Take a snapshot, and keep it under a name until it expires.

    All that it has is kept for an hour or more without that: a quarter of this may pass until it is
    saved. Raises ConfigError for a name that is in use, OperationTimedOutError, and as
    `take_snapshot`.
    """
    check_snapshot_name(name)
    clock = root.store.clock
    until_ms = clock.boot_ms() + root.settings.trust_ms // 2
    snapshot = take_snapshot(root)
    path = f"{SNAPSHOTS}{uuid.uuid4()}.json"
    pin = Pin(at_ms=snapshot.at_ms, expires_ms=snapshot.at_ms + ttl_ms, file=path)

    def decide(pins: Mapping[str, Pin]) -> dict[str, Pin | None]:
        known = pins.get(name)
        if clock.boot_ms() > until_ms:
            return {name: None} if known == pin else {}
        if known is not None and known != pin and known.expires_ms > root.store.now_ms():
            raise ConfigError(
                f"There is a snapshot {name!r} already. Drop it first, or choose another name.",
                snapshot=name,
            )
        return {} if known == pin else {name: pin}

    data = SNAPSHOT.encode(snapshot).encode()
    begin: list[Callable[[], None]] = [partial(root.store.put_new, path, data), root.get_pins_ready]
    root.store.together(begin)
    reach("snapshot.staged")
    try:
        root.change_pins(decide)
    except ConfigError:
        root.store.delete([path])
        raise
    reach("snapshot.saved")
    if clock.boot_ms() > until_ms:
        root.change_pins(decide)
        raise OperationTimedOutError(
            f"Snapshot {name!r} took longer than {root.settings.trust_ms // 2000} s: files of it "
            "may be deleted by now, and it is not kept. Try again.",
            snapshot=name,
        )
    return snapshot


def drop_snapshot(root: Root, name: str) -> None:
    """Keep it no longer. Raises SnapshotNotFoundError."""
    pins = root.pins()
    if name not in pins:
        raise _not_found(root, name, pins)
    pin = pins[name]
    root.change_pins(lambda now: {name: None} if now.get(name) == pin else {})
    reach("snapshot.dropped")
    root.store.delete([pin.file])


def remove_expired(root: Root) -> int:
    """Remove expired snapshots, and files of those that were dropped or never saved."""
    now_ms = root.store.now_ms()
    files = [one for one in root.store.list_files(PATH) if one.path.startswith(SNAPSHOTS)]
    removed: set[str] = set()

    def decide(pins: Mapping[str, Pin]) -> dict[str, Pin | None]:
        expired = [name for name, pin in pins.items() if pin.expires_ms <= now_ms]
        removed.update(expired)
        return dict.fromkeys(expired)

    root.change_pins(decide)
    named = {pin.file for pin in root.pins().values()}
    old_ms = now_ms - 2 * root.settings.trust_ms
    root.store.delete(
        [one.path for one in files if one.path not in named and one.last_modified_ms <= old_ms]
    )
    return len(removed)


def find_snapshot(root: Root, name: str) -> Snapshot:
    """A named snapshot. Raises SnapshotNotFoundError, also once it has expired."""
    pins = root.pins()
    pin = pins.get(name)
    if pin is None or pin.expires_ms <= root.store.now_ms():
        raise _not_found(root, name, pins)
    return _load(root, pin)


def kept_snapshots(root: Root) -> list[Snapshot]:
    """All named snapshots that have not expired."""
    now_ms = root.store.now_ms()
    pins = [pin for pin in root.pins().values() if pin.expires_ms > now_ms]
    return root.store.together([partial(_load, root, pin) for pin in pins])


def _load(root: Root, pin: Pin) -> Snapshot:
    text = root.store.get(pin.file).decode(errors="replace")
    return read_json(SNAPSHOT, text, source=f"{root.store.url}/{pin.file}")


def _not_found(root: Root, name: str, pins: Mapping[str, Pin]) -> SnapshotNotFoundError:
    there = ", ".join(sorted(pins)) or "none"
    return SnapshotNotFoundError(
        f"There is no snapshot {name!r} at {root.root}, or it has expired; there are: {there}.",
        snapshot=name,
    )


# -- reading ---------------------------------------------------------------------------------------


def topic_at(root: Root, name: str, snapshot: Snapshot) -> TopicLog:
    """The topic as a snapshot shows it: what it hides is not in the view.

    Raises UnknownTopicOrPartitionError, SnapshotNotFoundError if the log no longer shows it.
    """
    one = snapshot.topics.get(name)
    if one is None:
        raise UnknownTopicOrPartitionError(
            f"There is no topic {name!r} in the snapshot of {root.root}; there are: "
            f"{', '.join(sorted(snapshot.topics)) or 'none'}.",
            topic=name,
        )
    store = StoreAtVersions(root.store, {name: one.version})
    log = TopicLog(store, name, settings=_PLAIN, cluster_id=root.cluster_id)
    try:
        log.refresh()
    except LogGapError as error:
        raise _gone(log, one.version) from error
    if log.log.version != one.version:
        raise _gone(log, one.version)
    log.view.remove([path for path, batch in log.view.by_path.items() if one.hides(batch)])
    return log


def _gone(log: TopicLog, version: int) -> SnapshotNotFoundError:
    return SnapshotNotFoundError(
        f"The log of topic {log.name!r} at {log.store.url} no longer has version {version}, which "
        "the snapshot shows: only named snapshots are kept. Take a new one.",
        topic=log.name,
    )
