"""Housekeeping: settle, expire, retain, compact, clean up logs, vacuum.

Many processes may run it; a lease in `__cluster` lets one of them work. Correctness does not depend
on it: every Spark driver, producer and consumer sweeps as well, and any process may make each of
these writes at any time. So a housekeeper that is killed, or works after it has lost the lease,
breaks nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

from txnlog.cluster import Cluster
from txnlog.coordinator.fencing import transition
from txnlog.coordinator.pins import remove_expired
from txnlog.coordinator.sweeper import INTERVAL_MS, Sweeper
from txnlog.errors import StorePermissionError, TxnLogError
from txnlog.housekeeping.age_gate import AgeGate
from txnlog.housekeeping.compaction.local import BACKOFF_MS_DEFAULT, Compactor
from txnlog.housekeeping.dead_members import DeadMembers
from txnlog.housekeeping.lease import LEASE_MS_DEFAULT, LeaseHolder
from txnlog.housekeeping.log_cleanup import LogCleanup
from txnlog.housekeeping.producer_expiry import ProducerExpiry
from txnlog.housekeeping.retention import Retention
from txnlog.housekeeping.vacuum import Vacuum
from txnlog.process.failures import Failures
from txnlog.protocol.duties import DAY_MS, ERROR_CHARS_MAX, DutyRun
from txnlog.protocol.expiry import (
    PRODUCER_ID_EXPIRATION_MS_DEFAULT,
    TRANSACTIONAL_ID_EXPIRATION_MS_DEFAULT,
    TRANSACTIONAL_ID_EXPIRATION_MS_MIN,
    check_producer_id_expiration,
    check_transactional_id_expiration,
    is_old,
    prepare_expire_unchanged,
)
from txnlog.protocol.leases import HOUSEKEEPING
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.txn_memory import VACUUM_AGE_MS_DEFAULT
from txnlog.protocol.vacuum import Deletable
from txnlog.protocol.watching import Watch
from txnlog.settings import arguments
from txnlog.storage.store import clock_watch
from txnlog.storage.store.objects import ObjectMeta

logger = logging.getLogger("txnlog")

PROBE_AGE_MS = 3_600_000
CLOCK_NOTE_AGE_MS = 30 * 86_400_000
PROBES_MS = {
    "__cluster/_clock": PROBE_AGE_MS,
    "__cluster/_probe": PROBE_AGE_MS,
    clock_watch.FOLDER: CLOCK_NOTE_AGE_MS,
}
"""Folders of small objects that stay if their writers die, and the age at which they are deleted.

A note about the clocks is of one boot of a machine. A machine that still runs writes it again, and
trusts no file age for an hour.
"""
DEAD_PROBE = "clock or store probe of a process or machine that is gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class HousekeepingSettings:
    """Kafka's settings and defaults: `abort_interval_ms` is
    transaction.abort.timed.out.transaction.cleanup.interval.ms, `remove_interval_ms` is
    transaction.remove.expired.transaction.cleanup.interval.ms, `retention_check_interval_ms` is
    log.retention.check.interval.ms, `cleaner_backoff_ms` log.cleaner.backoff.ms. Delta's:
    `log_retention_ms` is delta.logRetentionDuration (None: the cluster's), `vacuum_age_ms`
    delta.deletedFileRetentionDuration. Raises ConfigError for an expiration that is too short.
    """

    abort_interval_ms: int = INTERVAL_MS
    remove_interval_ms: int = 3_600_000
    retention_check_interval_ms: int = 300_000
    cleaner_backoff_ms: int = BACKOFF_MS_DEFAULT
    transactional_id_expiration_ms: int = TRANSACTIONAL_ID_EXPIRATION_MS_DEFAULT
    producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS_DEFAULT
    log_retention_ms: int | None = None
    vacuum_age_ms: int = VACUUM_AGE_MS_DEFAULT
    vacuum_interval_ms: int = 6 * 3_600_000
    lease_ms: int = LEASE_MS_DEFAULT

    def __post_init__(self) -> None:
        """Raises TypeError, ConfigError: no process could decode a lease of 1.5 ms."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                number = arguments.integer(field.name, value, least=0)
                object.__setattr__(self, field.name, number)
        check_transactional_id_expiration(self.transactional_id_expiration_ms)
        check_producer_id_expiration(self.producer_id_expiration_ms)


@dataclass(slots=True)
class Duty:
    """Work to do every `interval_ms`; `act` returns how much it did.

    While `is_unfinished` is true, it is due again at once, after the other duties. A process that
    ends after one round calls `act_once`, if it is given, instead. While `is_backing_off`, it has
    left out what failed.
    """

    name: str
    interval_ms: int
    act: Callable[[], int]
    is_unfinished: Callable[[], bool] | None = None
    act_once: Callable[[], int] | None = None
    is_backing_off: Callable[[], bool] | None = None
    due_ms: int = 0


class Housekeeper:
    """One candidate for the work on one cluster. The constructor does no I/O."""

    def __init__(self, cluster: Cluster, settings: HousekeepingSettings | None = None) -> None:
        self._cluster = cluster
        self._clock = cluster.store.clock
        self._settings = settings or HousekeepingSettings()
        self._lease = LeaseHolder(cluster, HOUSEKEEPING, lease_ms=self._settings.lease_ms)
        self._lease_due_ms = 0
        self._was_held: bool | None = None
        sweeper = Sweeper(cluster, interval_ms=self._settings.abort_interval_ms)
        self._idle: dict[str, tuple[TransactionMetadata, int]] = {}
        self._watch: Watch | None = None
        self._dead_members = dead_members = DeadMembers(cluster)
        compactor = Compactor(cluster)
        self._retention = Retention(cluster)
        age_ms, retention_ms = self._settings.vacuum_age_ms, self._settings.log_retention_ms
        self._producer_expiry = ProducerExpiry(
            cluster,
            vacuum_age_ms=age_ms,
            producer_id_expiration_ms=self._settings.producer_id_expiration_ms,
        )
        self._log_cleanup = LogCleanup(cluster, log_retention_ms=retention_ms)
        self._vacuum = Vacuum(cluster, age_ms=age_ms, log_retention_ms=retention_ms)
        gate = AgeGate(cluster.store)
        often, seldom = self._settings.abort_interval_ms, self._settings.remove_interval_ms
        self._duties = (
            Duty(
                "transactions and offsets settled",
                often,
                sweeper.sweep,
                act_once=Sweeper(cluster, interval_ms=0).sweep,  # there may be no second look
                is_backing_off=lambda: sweeper.is_backing_off,
            ),
            Duty(
                "groups of dead members emptied",
                often,
                dead_members.expel,
                act_once=self._expel_once,
            ),
            Duty("transactional ids expired", seldom, self._expire),
            Duty(
                "files past their retention removed",
                self._settings.retention_check_interval_ms,
                self._retention.enforce_all,
            ),
            Duty(
                "files compacted",
                self._settings.cleaner_backoff_ms,
                compactor.step,
                is_unfinished=compactor.is_busy,
            ),
            Duty("producers expired", seldom, self._producer_expiry.run),
            Duty("log files cleaned up", seldom, partial(gate.run, self._log_cleanup.run)),
            Duty(
                "files vacuumed",
                self._settings.vacuum_interval_ms,
                partial(gate.run, self._vacuum.run),
            ),
            Duty("expired snapshots removed", seldom, partial(gate.run, self._remove_snapshots)),
            Duty("clock and store probes removed", seldom, self._remove_probes),
        )

    def run(self, stop: threading.Event) -> None:
        """Work, or wait for the lease, until `stop` is set; then release the lease.

        A signal handler sets `stop` from another thread: in this one it may hold its lock already.
        Raises StorePermissionError if it may not take the lease when it begins; other errors are
        logged, and the work retried.
        """
        try:
            while not stop.is_set():
                stop.wait(self.step(stop) / 1000)
        finally:
            self.close()

    def run_once(self) -> dict[str, int] | None:
        """Do every duty once, due or not; returns its counts. None: another process has the lease.

        Time-outs and expiry of ids need a long-running process: ages count from when this one first
        read a row. Raises StorageError, StorePermissionError; errors of duties after the last one.
        """
        self._lease.take(looks_once=True)
        if not self._lease.is_held:
            return None
        done: dict[str, int] = {}
        failures = Failures("Housekeeping")
        for duty in self._duties:
            with failures.of(duty.name):
                # Nobody knows when the next round is.
                done[duty.name] = self._noted(duty, partial(_exhausted, duty), every_ms=DAY_MS)
        failures.check()
        return done

    def find(self) -> list[Deletable]:
        """What would be removed now, without taking the lease or committing.

        The file of a batch past its retention is deleted later, by vacuum. Not listed: what
        compaction would merge, and transactional ids, whose ages only a long-running process knows.
        """
        probes = [
            Deletable(meta.path, DEAD_PROBE, age_ms, meta.size_bytes)
            for meta, age_ms in [*self._dead_probes(), *self._killed_probes()]
        ]
        return [
            *self._retention.find(),
            *self._log_cleanup.find(),
            *self._producer_expiry.find(),
            *self._vacuum.find(),
            *probes,
        ]

    def step(self, stop: threading.Event | None = None) -> int:
        """Do the duties that are due, until `stop` is set; returns the ms until the next call."""
        now_ms = self._clock.boot_ms()
        if now_ms >= self._lease_due_ms:
            self._lease_due_ms = now_ms + self._take()
        for duty in self._duties:
            if stop is not None and stop.is_set():
                break
            if self._lease.is_held and now_ms >= duty.due_ms:
                duty.due_ms = now_ms + duty.interval_ms
                self._do(duty)
                if duty.is_unfinished is not None and duty.is_unfinished():
                    duty.due_ms = now_ms
        due_ms = [self._lease_due_ms]
        if self._lease.is_held:
            due_ms += [duty.due_ms for duty in self._duties]
        return max(1, min(due_ms) - self._clock.boot_ms())

    def close(self) -> None:
        """Release the lease; without this the next process waits for the lease time.

        It also tells the next process what `run_once` has seen of groups.
        """
        try:
            self._lease.release(self._dead_members.seen)
        except TxnLogError as error:
            logger.warning("The lease of %s could not be released: %s", self._cluster, error)

    def _take(self) -> int:
        try:
            wait_ms = self._lease.take()
        except TxnLogError as error:
            if isinstance(error, StorePermissionError) and self._was_held is None:
                raise
            wait_ms = self._settings.abort_interval_ms
            self._say_retried(HOUSEKEEPING, "taking the lease", error, wait_ms)
            return wait_ms
        except Exception:
            logger.exception("The lease of %s could not be taken", self._cluster)
            return self._settings.abort_interval_ms
        self._cluster.store.retries.worked(HOUSEKEEPING)
        held, other = self._lease.is_held, self._lease.other
        if held != self._was_held:
            self._was_held = held
            who = "this process" if other is None else other.by
            logger.info("The housekeeping of %s is done by %s.", self._cluster.root, who)
        return wait_ms

    def _do(self, duty: Duty) -> None:
        # A table that denies writes is an error too: it delays only its own transactions (R37).
        try:
            count = self._noted(duty, duty.act, every_ms=duty.interval_ms)
        except TxnLogError as error:
            self._say_retried(duty.name, duty.name, error, duty.interval_ms)
            return
        except Exception:
            # A bug in one duty must not end the others.
            logger.exception("Housekeeping, %s, will be tried again", duty.name)
            return
        if duty.is_backing_off is None or not duty.is_backing_off():
            self._cluster.store.retries.worked(duty.name)
        if count:
            logger.info("Housekeeping, %s: %d", duty.name, count)

    def _noted(self, duty: Duty, act: Callable[[], int], *, every_ms: int) -> int:
        """What `act` returns, or raises; it is told with the lease."""
        count, failure = 0, ""
        try:
            count = act()
        except Exception as error:
            text = error.message if isinstance(error, TxnLogError) else repr(error)
            failure = text[:ERROR_CHARS_MAX]
            raise
        finally:
            now_ms = self._clock.boot_ms()
            self._lease.runs[duty.name] = DutyRun(
                at_ms=now_ms, due_ms=now_ms + every_ms, count=count, error=failure
            )
        return count

    def _say_retried(self, place: str, what: str, error: TxnLogError, wait_ms: int) -> None:
        self._cluster.store.retries.failed(
            place, f"Housekeeping, {what},", error, until=f"in {wait_ms / 1000:g} s"
        )

    # -- duties ----------------------------------------------------------------------------------

    def _remove_snapshots(self) -> int:
        return remove_expired(self._cluster)

    def _expel_once(self) -> int:
        return self._dead_members.expel_once(self._lease.seen, self._wait)

    def _wait(self, duration_ms: int) -> bool:
        """Wait, not counting time asleep; whether the lease is still held, or has been renewed."""
        left_ms = duration_ms
        while left_ms > 0:
            pause_ms = min(left_ms, self._settings.lease_ms // 2)
            self._clock.sleep_ms(pause_ms)
            left_ms -= pause_ms
            self._lease.take()
            if not self._lease.is_held:
                return False
        return True

    def _expire(self) -> int:
        """Expire old rows that this process has watched unchanged for long enough.

        A row's time is by its writer's clock. If that is wrong, a producer that is idle for an hour
        gets a new producer id; an active producer is not affected (R34).
        """
        settings = self._settings
        boot_ms = self._clock.boot_ms()
        watch = self._watch or Watch(boot_ms)
        watch = watch.observe(now_ms=boot_ms, interval_ms=settings.remove_interval_ms)
        self._watch, watched_ms = watch, watch.watched_ms
        unchanged_ms = max(settings.remove_interval_ms, TRANSACTIONAL_ID_EXPIRATION_MS_MIN)
        # `updated_ms` is compared with the store's clock, not with a wall clock.
        now_ms = self._cluster.store.now_ms()
        idle: dict[str, tuple[TransactionMetadata, int]] = {}
        expired = 0
        failures = Failures("Expiry of transactional ids", logging.DEBUG)
        for shard in self._cluster.tail_shards(failures):
            for name, row in list(shard.view.rows.items()):
                before, since_ms = self._idle.get(name, (None, watched_ms))
                if before != row:
                    since_ms = watched_ms
                idle[name] = (row, since_ms)
                expiration_ms = settings.transactional_id_expiration_ms
                is_due = watched_ms - since_ms >= unchanged_ms
                if is_due and is_old(row, expiration_ms=expiration_ms, now_ms=now_ms):
                    with failures.of(f"transactional.id {name!r}"):
                        expired += self._expire_row(row)
        # What could not be read is watched on.
        self._idle = {**self._idle, **idle} if failures else idle
        failures.check()
        return expired

    def _expire_row(self, row: TransactionMetadata) -> bool:
        left = transition(
            self._cluster,
            row.transactional_id,
            lambda now: prepare_expire_unchanged(now, row, now_ms=self._clock.now_ms()),
        )
        return left is None

    def _remove_probes(self) -> int:
        """Delete the objects with which dead processes asked the store for its time, and the notes
        of machines that have not been started again.
        """
        old = [meta.path for meta, _ in self._dead_probes()]
        self._cluster.store.delete(old)
        killed = [meta.path for meta, _ in self._killed_probes()]
        self._cluster.store.delete_temporaries(killed)
        return len(old) + len(killed)

    def _dead_probes(self) -> list[tuple[ObjectMeta, int]]:
        """Probes and their ages in ms."""
        return self._old(self._cluster.store.list)

    def _killed_probes(self) -> list[tuple[ObjectMeta, int]]:
        """Temporary files of probes whose writer was killed while it wrote them."""
        return self._old(self._cluster.store.list_temporaries)

    def _old(self, listing: Callable[[str], list[ObjectMeta]]) -> list[tuple[ObjectMeta, int]]:
        now_ms = self._cluster.store.now_ms()
        listed = [
            (meta, now_ms - meta.last_modified_ms, age_ms_min)
            for folder, age_ms_min in PROBES_MS.items()
            for meta in listing(folder)
        ]
        return [(meta, age_ms) for meta, age_ms, age_ms_min in listed if age_ms >= age_ms_min]


def _exhausted(duty: Duty) -> int:
    count = (duty.act_once or duty.act)()
    while duty.is_unfinished is not None and duty.is_unfinished():
        count += duty.act()
    return count
