"""Keeping a snapshot under a name, with all that it shows, until it expires or is dropped."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from txnlog.coordinator.root import Root
from txnlog.coordinator.snapshots import take_snapshot
from txnlog.coordinator.versions import topic_at_version
from txnlog.errors import (
    ConfigError,
    CorruptLogError,
    ObjectNotFoundError,
    OperationTimedOutError,
    SnapshotNotFoundError,
)
from txnlog.process.failpoint import reach
from txnlog.protocol.copies import check_same
from txnlog.protocol.enlisted.features import (
    DAY_MS,
    FILE_RETENTION,
    LOG_RETENTION,
    retention_ms,
)
from txnlog.protocol.snapshots import (
    SNAPSHOT,
    Pin,
    Snapshot,
    check_snapshot_name,
    read_json,
)
from txnlog.storage.tables.cluster_log import PATH, SNAPSHOTS

logger = logging.getLogger("txnlog")


def keep_snapshot(root: Root, name: str, *, ttl_ms: int, with_tables: bool = True) -> Snapshot:
    """Take a snapshot, and keep it under a name until it expires.

    All that it has is kept for an hour or more without that: a quarter of this may pass until it is
    saved. Raises ConfigError for a name that is in use, OperationTimedOutError, and as
    `take_snapshot`.
    """
    check_snapshot_name(name)
    clock = root.store.clock
    until_ms = clock.boot_ms() + root.settings.trust_ms // 2
    snapshot = take_snapshot(root, with_tables=with_tables)
    copy = root.read_copy(refresh=False)
    _warn_of_tables(root, snapshot, ttl_ms)
    path = f"{SNAPSHOTS}{uuid.uuid4()}.json"
    pin = Pin(at_ms=snapshot.at_ms, expires_ms=snapshot.at_ms + ttl_ms, file=path)

    def decide(pins: Mapping[str, Pin]) -> dict[str, Pin | None]:
        known = pins.get(name)
        if known != pin:
            # A run that brings a copy to another snapshot keeps what it finds kept as it ends.
            check_same(root.read_copy(refresh=False), expected=copy, url=root.root)
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


def _warn_of_tables(root: Root, snapshot: Snapshot, ttl_ms: int) -> None:
    """Their other writers clean them up, by these properties."""
    for name, one in snapshot.tables.items():
        definition = root.table_log(one.url).state.definition
        for key in (LOG_RETENTION, FILE_RETENTION):
            with suppress(ValueError):
                kept_ms = retention_ms(definition, key)
                if kept_ms is not None and kept_ms < ttl_ms:
                    logger.warning(
                        "Table %r may lose what the snapshot shows after %.1f days: %s is shorter "
                        "than the time for which the snapshot is kept. Set it, or keep it shorter.",
                        name,
                        kept_ms / DAY_MS,
                        key,
                    )


def renew_snapshot(root: Root, name: str, *, ttl_ms: int) -> None:
    """Keep it for longer. Raises SnapshotNotFoundError, also if it has expired."""

    def decide(pins: Mapping[str, Pin]) -> dict[str, Pin | None]:
        pin, now_ms = pins.get(name), root.store.now_ms()
        if pin is None or pin.expires_ms <= now_ms:
            raise _not_found(root, name, pins)
        return {name: replace(pin, expires_ms=max(pin.expires_ms, now_ms + ttl_ms))}

    root.change_pins(decide)


def drop_snapshot(root: Root, name: str) -> None:
    """Keep it no longer. Raises SnapshotNotFoundError."""
    pins = root.pins()
    if name not in pins:
        raise _not_found(root, name, pins)
    file = pins[name].file

    def decide(pins: Mapping[str, Pin]) -> dict[str, Pin | None]:
        # It may have been renewed since.
        return {name: None} if name in pins and pins[name].file == file else {}

    root.change_pins(decide)
    reach("snapshot.dropped")
    root.store.delete([file])


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
    pin = _unexpired(root, pins).get(name)
    if pin is None:
        raise _not_found(root, name, pins)
    try:
        return _load(root, pin)
    except ObjectNotFoundError as error:
        pins = root.pins()
        if name in pins and pins[name].file == pin.file:
            raise
        # It was dropped meanwhile.
        raise _not_found(root, name, pins) from error


def kept_snapshots(root: Root, loaded: dict[str, Snapshot]) -> dict[str, Snapshot]:
    """All named snapshots that have not expired, by name.

    `loaded` are those of earlier calls, by their files, which never change; it gets the others.
    """
    pins = _unexpired(root, root.pins())
    new = {pin.file: pin for pin in pins.values() if pin.file not in loaded}
    try:
        found = root.store.together([partial(_load, root, pin) for pin in new.values()])
    except ObjectNotFoundError:
        if {pin.file for pin in root.pins().values()}.issuperset(new):
            raise
        # One was dropped meanwhile.
        return kept_snapshots(root, loaded)
    loaded.update(zip(new, found, strict=True))
    return {name: loaded[pin.file] for name, pin in pins.items()}


def kept_files(root: Root, topics: Collection[str], loaded: dict[str, Snapshot]) -> set[str]:
    """Paths of the topics' files that named snapshots show, or hide: a copy has those, too.

    Ask last: a snapshot that is not saved yet can only be saved if it was read a short time ago,
    and all that it has is young. `loaded` as in `kept_snapshots`. Raises CorruptLogError,
    SnapshotNotFoundError for a topic that no longer shows it.
    """
    found: set[str] = set()
    for name, snapshot in kept_snapshots(root, loaded).items():
        for topic in snapshot.topics.keys() & set(topics):
            try:
                log = topic_at_version(root, topic, snapshot.topics[topic].version)
            except (CorruptLogError, SnapshotNotFoundError) as error:
                raise error.replace(
                    f"{error.message} So no file of topic {topic!r} is deleted until the snapshot "
                    f"{name!r}, which shows it, is dropped."
                ) from error
            found.update(f"{topic}/{path}" for path in log.view.by_path)
    return found


def _unexpired(root: Root, pins: Mapping[str, Pin]) -> dict[str, Pin]:
    now_ms = root.store.now_ms()
    return {name: pin for name, pin in pins.items() if pin.expires_ms > now_ms}


def _load(root: Root, pin: Pin) -> Snapshot:
    text = root.store.get(pin.file).decode(errors="replace")
    return read_json(SNAPSHOT, text, source=f"{root.store.url}/{pin.file}")


def _not_found(root: Root, name: str, pins: Mapping[str, Pin]) -> SnapshotNotFoundError:
    there = ", ".join(sorted(_unexpired(root, pins))) or "none"
    return SnapshotNotFoundError(
        f"There is no snapshot {name!r} at {root.root}, or it has expired; there are: {there}.",
        snapshot=name,
    )
