"""`__cluster`: format version, numbers of shards, those that exist, producer ids, leases, fsync."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from txnlog.errors import (
    RESTORE_ALL,
    ConfigError,
    LogGapError,
    ObjectNotFoundError,
    UnsupportedProtocolError,
)
from txnlog.protocol.copies import COPY, Copy, check_whole
from txnlog.protocol.decoding import FORMAT, unreadable
from txnlog.protocol.enlisted.registry import (
    ENLISTED_TABLE,
    EnlistedTable,
    check_table_name,
    find_enlisted,
    prepare_enlist,
)
from txnlog.protocol.leases import Lease, decode_lease, encode_lease
from txnlog.protocol.snapshots import PIN, Pin, kept_from_ms, read_json
from txnlog.settings.names import OFFSETS_SHARDS_DEFAULT, SHARDS_DEFAULT
from txnlog.storage.delta.actions import Commit, Metadata, Txn
from txnlog.storage.delta.delta_log import DeltaLog, LogSettings, Outcome
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.delta.transact import transact
from txnlog.storage.store.clock import check_conditional_puts
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.schemas import CONFIG_PREFIX, config_of, create_actions

R = TypeVar("R")

PATH = "__cluster"
PRODUCER_ID_BLOCK = 1_000
PRODUCER_IDS = "txnlog/producer-ids"
CREATED_PREFIX = "txnlog/created/"
"""With a table's name: the shard is about to be created (ANNOUNCED), or was (CREATED)."""
ANNOUNCED, CREATED = 1, 2
STATE_SHARDS = "transaction.state.log.num.partitions"
OFFSETS_SHARDS = "offsets.topic.num.partitions"
CHANGE_LEASE = "CHANGE LEASE"
SNAPSHOTS = f"{PATH}/snapshot-"
"""What the files of named snapshots begin with; a property for each says which is its."""
SNAPSHOT_PREFIX = "snapshot."
TABLE_PREFIX = "table."
"""With a name: a Delta table of others that transactions may write to."""
COPY_OF = "copy"
"""Only in a copy of another root: which one's, and whether it is whole."""
FSYNC = "storage.fsync"
ON, OFF, SYNCING = "true", "false", "syncing"
"""Values of FSYNC. SYNCING: processes sync what they write, and what was written before is being
synced. No value: each process follows its own option."""


class LeaseReading(NamedTuple):
    """A lease, and when one was last changed; what its holder `told` of its duties, and when.

    Times are the store's; where the log does not show a change any more, that of a later commit.
    """

    lease: Lease | None
    changed_ms: int
    told: Mapping[str, str]
    told_ms: int


class ClusterView:
    """The cluster's settings, producer ids and shards, as the log of `__cluster` has them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.cluster_id = ""
        self.config: dict[str, str] = {}
        self.producer_ids_end = 0
        self.created: dict[str, int] = {}
        self.lease_version = -1
        """That of the newest change of a lease, or of the oldest commit that was read."""
        self.told: tuple[int, Mapping[str, str]] = (-1, {})
        """What the newest change of a lease that told something told, and its version."""

    def parse(self, commit: Commit) -> Commit:
        return commit

    def apply(self, commit: Commit) -> None:
        if commit.info.operation == CHANGE_LEASE or self.lease_version < 0:
            self.lease_version = commit.version
        if commit.info.operation == CHANGE_LEASE and commit.info.operation_parameters:
            self.told = commit.version, commit.info.operation_parameters
        for action in commit.actions:
            if isinstance(action, Metadata):
                self.cluster_id = action.id
                self.config = config_of(action)
            elif isinstance(action, Txn) and action.app_id == PRODUCER_IDS:
                self.producer_ids_end = action.version
            elif isinstance(action, Txn) and action.app_id.startswith(CREATED_PREFIX):
                self.created[action.app_id[len(CREATED_PREFIX) :]] = action.version


class ClusterLog:
    """Handle of `__cluster`. The constructor does no I/O."""

    def __init__(self, store: ObjectStore, *, settings: LogSettings | None = None) -> None:
        self._store = store
        self._view = ClusterView()
        self._log = DeltaLog(store, PATH, self._view, settings=settings)
        self._block: tuple[int, int, int] = (-1, 0, 0)

    def open(
        self,
        *,
        create: bool,
        shards: int = SHARDS_DEFAULT,
        offsets_shards: int = OFFSETS_SHARDS_DEFAULT,
        fsync: bool = True,
    ) -> bool:
        """Read the cluster's settings; `create` creates it if needed. True if it was created.

        `fsync` is recorded for a new cluster on a local disk, unless the store has an option; the
        store follows what is recorded.

        Raises ConfigError if it does not exist, or is a copy that is not whole,
        UnsupportedStoreError if the store cannot hold one, UnsupportedProtocolError if it has
        another format than this txnlog reads.
        """
        self._log.refresh()
        is_new = not self._log.exists
        if is_new:
            if not create:
                raise ConfigError(
                    f"There is no txnlog cluster at {self._store.url}. Check the path, or create "
                    "a topic there first (writing to a topic creates the cluster).",
                    root=self._store.url,
                )
            given = self._store.fsync
            is_on = fsync if given is None else given
            self._create(shards, offsets_shards, ON if is_on else OFF, {})
        self._follow()
        check_format(self.format, self._store.url)
        check_whole(self.copy, self._store.url)
        return is_new

    def refresh(self) -> None:
        """Read the cluster's settings, whatever its format; the store follows them."""
        self._log.refresh()
        self._follow()

    @property
    def fsync(self) -> str | None:
        """ON, OFF or SYNCING; None: nothing is recorded."""
        return self._view.config.get(FSYNC)

    def change_fsync(self, prepare: Callable[[str | None], str | None]) -> None:
        """Record what `prepare` returns for what is recorded; None: nothing is to change."""

        def commit(value: str | None) -> Outcome | None:
            return (
                None
                if value is None
                else self._log.commit([self._with_config({FSYNC: value})], operation="ALTER CONFIG")
            )

        transact(self._log, lambda: prepare(self.fsync), commit)
        self._follow()

    def _follow(self) -> None:
        """The store does as recorded."""
        fsync = self.fsync
        is_on = bool(self._store.fsync) if fsync is None else fsync != OFF
        if self._store.set_fsync(is_on, by_all=fsync == ON):
            # It did not when this was read.
            self._store.rely_on([commit_path(PATH, self.version)])

    @property
    def format(self) -> str:
        """The root's format; "" if there is no cluster."""
        return self._view.config.get("format", "")

    @property
    def version(self) -> int:
        """The newest version of the table that was read; -1 if there is none."""
        return self._log.version

    def enlisted(self) -> dict[str, EnlistedTable]:
        """The enlisted tables by name, as of the last refresh. Raises CorruptLogError."""
        return {
            key.removeprefix(TABLE_PREFIX): _enlisted(key, text)
            for key, text in sorted(self._view.config.items())
            if key.startswith(TABLE_PREFIX)
        }

    def enlist(self, name: str, table: EnlistedTable) -> None:
        """Record an enlisted table; raises as `prepare_enlist`."""

        def commit(decided: EnlistedTable | None) -> Outcome | None:
            text = None if decided is None else ENLISTED_TABLE.encode(decided)
            return None if text is None else self._change_table("ENLIST TABLE", name, text)

        transact(self._log, lambda: prepare_enlist(self.enlisted(), name, table), commit)

    def delist(self, name: str) -> None:
        """Forget an enlisted table. Raises UnknownTableError."""

        def commit(_: EnlistedTable) -> Outcome:
            return self._change_table("DELIST TABLE", name, None)

        transact(self._log, lambda: find_enlisted(self.enlisted(), name), commit)

    def _change_table(self, operation: str, name: str, text: str | None) -> Outcome:
        action = self._with_config({TABLE_PREFIX + name: text})
        return self._log.commit([action], operation=operation, parameters={"table": name})

    def _with_config(self, config: Mapping[str, str | None]) -> Metadata:
        """The table's metadata with other values of properties; None: without the property."""
        metadata = self._log.metadata
        assert metadata is not None
        changes = {CONFIG_PREFIX + name: value for name, value in config.items()}
        merged = {**metadata.configuration, **changes}
        kept = {name: value for name, value in merged.items() if value is not None}
        return replace(metadata, configuration=kept)

    @property
    def copy(self) -> Copy | None:
        """What it says of itself as a copy, as of the last refresh; None: it is none."""
        return copy_of(self._view.config)

    def _create(self, shards: int, offsets: int, fsync: str, more: Mapping[str, str]) -> None:
        # From the first file on.
        self._store.set_fsync(fsync == ON, by_all=True)
        check_conditional_puts(self._store, PATH)
        actions = create_actions(
            table_id=str(uuid.uuid4()),
            data_columns={"created_at": "timestamp"},
            partition_columns={},
            config={
                "format": str(FORMAT),
                STATE_SHARDS: str(shards),
                OFFSETS_SHARDS: str(offsets),
                **({FSYNC: fsync} if self._store.is_local else {}),
                **more,
            },
            created_ms=self._store.clock.now_ms(),
        )
        transact(
            self._log,
            lambda: self._log.exists,
            lambda there: None if there else self._log.commit(actions, operation="CREATE CLUSTER"),
        )

    @property
    def cluster_id(self) -> str:
        return self._view.cluster_id

    @property
    def shards(self) -> int:
        """Number of `__transaction_state-<n>` tables; written once, at creation."""
        return int(self._view.config[STATE_SHARDS])

    @property
    def offsets_shards(self) -> int:
        """Number of `__consumer_offsets-<n>` tables; written once, at creation."""
        return int(self._view.config[OFFSETS_SHARDS])

    def created(self) -> frozenset[str]:
        """Names of the shards that exist, or are about to be created, now."""
        self._log.refresh()
        return frozenset(self._view.created)

    def create_shard(
        self, table: str, create: Callable[[], None], exists: Callable[[], bool]
    ) -> None:
        """Announce a shard, call `create` to write its first version, and record that it exists.

        So a process that reads `created` misses a shard only if that has no version yet (D95), and
        need not ask for shards that were never used, as a listing of the root would. If this
        process dies in between, the next process that uses the shard creates it. Raises
        LogGapError for a shard that was created before and no longer `exists`: an empty one would
        hide that its transactions, or its groups' offsets, are lost.
        """
        if self._record(table, ANNOUNCED) < CREATED:
            create()
            self._record(table, CREATED)
        elif not exists():
            raise LogGapError(
                f"{self._store.url}/{table}: this table was created, and has no commits any more. "
                "The transactional ids or consumer groups in it are lost. Stop all clients. "
                f"{RESTORE_ALL}",
                file=table,
            )

    def was_created(self, table: str) -> bool:
        """Whether a shard had its first version, as of the last refresh."""
        return self._view.created.get(table) == CREATED

    def confirm_shard(self, table: str) -> None:
        """Record that a shard exists, if that is not known."""
        if not self.was_created(table):
            self._record(table, CREATED)

    def _record(self, table: str, state: int) -> int:
        """Record that a shard has come to `state`, or further; returns the state before."""

        def commit(found: int) -> Outcome | None:
            if found >= state:
                return None
            action = Txn(CREATED_PREFIX + table, state, self._store.clock.now_ms())
            return self._log.commit([action], operation="CREATE SHARD")

        return transact(self._log, lambda: self._view.created.get(table, 0), commit)

    def next_producer_id(self, *, above: int = -1) -> int:
        """A cluster-wide unique id (R10), above those that were given out before a restore.

        One commit reserves a block of them for this process.
        """
        pid, number, end = self._block
        if pid != os.getpid() or number >= end or number <= above:
            number, end = self._reserve(above)
        self._block = (os.getpid(), number + 1, end)
        return number

    def _reserve(self, above: int) -> tuple[int, int]:
        # A block whose commit was Unknown is lost, never allocated twice.
        def commit(start: int) -> Outcome:
            action = Txn(PRODUCER_IDS, start + PRODUCER_ID_BLOCK, self._store.clock.now_ms())
            return self._log.commit([action], operation="ALLOCATE PRODUCER IDS")

        start = transact(self._log, lambda: max(self._view.producer_ids_end, above + 1), commit)
        return start, start + PRODUCER_ID_BLOCK

    def change_lease(
        self,
        name: str,
        decide: Callable[[Lease | None], Lease | R],
        told: Callable[[], dict[str, str]] = dict,
    ) -> Lease | R:
        """Write the lease that `decide` returns, as a table property; return anything else.

        `told` is called when the commit is made, and gives its parameters.
        Raises StorageError, CommitStateUnknownError.
        """
        key = f"lease.{name}"

        def decide_lease() -> Lease | R:
            return decide(self._lease(key))

        def commit(decision: Lease | R) -> Outcome | None:
            metadata = self._log.metadata
            if not isinstance(decision, Lease) or metadata is None:
                return None
            action = self._with_config({key: encode_lease(decision)})
            return self._log.commit([action], operation=CHANGE_LEASE, parameters=told())

        return transact(self._log, decide_lease, commit)

    def _lease(self, key: str) -> Lease | None:
        known = self._view.config.get(key)
        return None if known is None else decode_lease(known, source=PATH)

    @property
    def pins(self) -> dict[str, Pin]:
        """The named snapshots, as of the last refresh, with those that have expired."""
        return {
            name[len(SNAPSHOT_PREFIX) :]: read_json(PIN, value, source=PATH)
            for name, value in self._view.config.items()
            if name.startswith(SNAPSHOT_PREFIX)
        }

    def change_pins(self, decide: Callable[[dict[str, Pin]], Mapping[str, Pin | None]]) -> None:
        """Write the pins that `decide` returns, and remove those for which it returns None."""

        def commit(changed: Mapping[str, Pin | None]) -> Outcome | None:
            texts = {
                SNAPSHOT_PREFIX + name: None if pin is None else PIN.encode(pin)
                for name, pin in changed.items()
            }
            action = self._with_config(texts)
            return self._log.commit([action], operation="CHANGE SNAPSHOTS") if texts else None

        transact(self._log, lambda: decide(self.pins), commit)

    def kept_from_ms(self) -> int:
        """See LogSettings.kept_from_ms; makes no request. Any thread may call it.

        Without recent news of the pins nothing is deleted: a long-lived process has some, as it
        sweeps, and housekeeping reads them.
        """
        if not self._log.is_recent:
            return 0
        return kept_from_ms(self.pins.values(), now_ms=self._store.now_ms())

    def get_ready(self) -> None:
        """See DeltaLog.get_ready."""
        self._log.get_ready()

    def read_lease(self, name: str) -> LeaseReading:
        """A lease, and what its holder has told since the newest checkpoint."""
        self._log.refresh()
        version, (told_version, told) = self._view.lease_version, self._view.told
        changed_ms = self.leases_changed_ms()
        told_ms = changed_ms if told_version in (version, -1) else self._shown_ms(told_version)
        return LeaseReading(self._lease(f"lease.{name}"), changed_ms, told, told_ms)

    def leases_changed_ms(self) -> int:
        """When the newest change of a lease was written, or later: other commits are many."""
        return self._shown_ms(self._view.lease_version)

    def _shown_ms(self, version: int) -> int:
        try:
            return self._written_ms(version)
        except ObjectNotFoundError:
            return self._written_ms(self._log.version)

    def _written_ms(self, version: int) -> int:
        return self._store.head(commit_path(PATH, version)).last_modified_ms


def _enlisted(key: str, text: str) -> EnlistedTable:
    try:
        check_table_name(key.removeprefix(TABLE_PREFIX))
        return ENLISTED_TABLE.decode(text)
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        raise unreadable(f"the property {CONFIG_PREFIX}{key}", error, source=PATH) from error


def copy_of(config: Mapping[str, str]) -> Copy | None:
    """What properties of `__cluster` say of a copy; None: it is none. Raises CorruptLogError."""
    text = config.get(COPY_OF)
    return None if text is None else read_json(COPY, text, source=PATH)


def follow_root(store: ObjectStore) -> None:
    """From now on a store on a local disk does what the root records of fsync.

    By a handle of its own: a write of another handle, in the middle of a commit, may look.
    """
    store.watch_fsync(ClusterLog(store).refresh)


def check_format(found: str, url: str) -> None:
    """Raise UnsupportedProtocolError unless a root has the format of this txnlog."""
    if found == str(FORMAT):
        return
    is_older = found.isdigit() and int(found) < FORMAT
    advice = "only the txnlog that made it reads it" if is_older else "upgrade txnlog"
    raise UnsupportedProtocolError(
        f"The cluster at {url} has format {found!r}, and this txnlog reads {FORMAT}: {advice}.",
        root=url,
    )
