"""The configuration of a root, which is that of all brokers in Kafka: storage.fsync (D26)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from txnlog.admin.descriptions import ConfigEntry
from txnlog.admin.topics import changes_of
from txnlog.cluster import Cluster
from txnlog.errors import ConfigError
from txnlog.settings.storage_values import switch
from txnlog.storage.store.objects import LOOK_MS
from txnlog.storage.tables.cluster_log import FSYNC, OFF, ON, SYNCING

OnStep = Callable[[str, int, int], None]
"""What is done, the number of parts done, and the number of all parts."""
FOLLOWED_MS = 2 * LOOK_MS
"""Until then a process that was running has looked at the root, and has ended its write."""
_DOC = (
    "On a local disk: every process syncs what it writes, so acknowledged commits survive power "
    "loss. `syncing`: a change to `true` is not finished. No value: each process follows its own "
    "option."
)


def describe_root(cluster: Cluster) -> dict[str, ConfigEntry]:
    """What is recorded now; nothing in an object store, where it has no meaning."""
    if not cluster.store.is_local:
        return {}
    value = cluster.read_fsync()
    return {FSYNC: ConfigEntry(FSYNC, value, is_default=value is None, doc=_DOC)}


def alter_root(cluster: Cluster, entries: Sequence[ConfigEntry], on_step: OnStep) -> None:
    """Change storage.fsync; to what is recorded already, it is a no-op.

    To ON in three steps, of which any may be the last: SYNCING is recorded, so that every process
    syncs what it writes; what was written before is synced; ON is recorded (D132). A process that
    is suspended between its look and its write, for all that time, is not covered. Raises
    ConfigError, NotSyncedError.
    """
    for value in [_wanted(name, value) for name, value in changes_of(entries).items()]:
        _check_local(cluster)
        if value == OFF:
            cluster.change_fsync(lambda found: None if found == OFF else OFF)
        elif cluster.read_fsync() != ON:
            cluster.change_fsync(lambda found: None if found in (ON, SYNCING) else SYNCING)
            on_step("wait until running processes sync what they write", 0, 1)
            cluster.store.clock.sleep_ms(FOLLOWED_MS)
            cluster.store.sync_all(
                lambda done, count: on_step("sync what was written before", done, count)
            )
            cluster.change_fsync(_finished)


def _finished(found: str | None) -> str | None:
    if found not in (ON, SYNCING):
        raise ConfigError(
            f"{FSYNC} was changed to {found} meanwhile. Nothing else was changed.", option=FSYNC
        )
    return None if found == ON else ON


def _wanted(name: str, value: str | None) -> str:
    if name != FSYNC:
        raise ConfigError(
            f"A root has no configuration {name!r}, only {FSYNC}. Those of a topic need its "
            "name (--topic).",
            option=name,
        )
    if value is None:
        raise ConfigError(f"{FSYNC} cannot be deleted: set it to {ON} or {OFF}.", option=FSYNC)
    return switch(FSYNC, value.strip())


def _check_local(cluster: Cluster) -> None:
    if not cluster.store.is_local:
        raise ConfigError(
            f"{FSYNC} has a meaning on a local disk only: an object store keeps what it has "
            "acknowledged. Nothing is to change.",
            option=FSYNC,
        )
