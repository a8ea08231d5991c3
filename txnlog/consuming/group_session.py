"""A consumer's dealings with its group: the generation it reads and commits under.

With a subscription the generation is that of its assignment; `start_alone` begins one of its own,
as whoever reads partitions that it chose itself must (it bumps first, and reads offsets after).
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Collection, Mapping

from txnlog.cluster import Cluster
from txnlog.consuming.membership import (
    NO_GENERATION,
    Background,
    Heart,
    MemberSettings,
    Membership,
    resolve,
)
from txnlog.errors import (
    ClientStateError,
    RebalanceInProgressError,
    TxnLogError,
    UnstableOffsetCommitError,
    unexpected,
)
from txnlog.messages import ConsumerGroupMetadata
from txnlog.protocol.group_metadata import Group, Positions
from txnlog.protocol.membership import Standing
from txnlog.protocol.watching import LOOKS_MAX, Watch

logger = logging.getLogger("txnlog")

SETTLE_PATIENCE_MS = 10_000
"""How long open transactions that hold offsets of a new part are given to end by themselves: the
holder may be about to decide, and to be fenced ends its producer."""

Notes = Mapping[str, Mapping[int, str]]
OnDone = Callable[[TxnLogError | None], None]


class GroupSession:
    """One consumer in one group. Everything but the heartbeat and later commits is the caller's.

    `background=False`: no thread; later commits are done at once, and tests call `heart.beat`.
    """

    def __init__(
        self, cluster: Cluster, settings: MemberSettings, *, background: bool = True
    ) -> None:
        self._cluster = cluster
        self.settings = settings
        self.membership = Membership(cluster, settings)
        # Logs are for one thread at a time: what runs in the background has its own.
        self._second = Cluster.open(cluster.store, settings=cluster.settings)
        self.heart = Heart(self._second, settings)
        self._with_thread = background
        self._background: Background | None = None
        self._alone = NO_GENERATION
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._looked_at: Group | None = None
        self._waits: Watch | None = None

    # -- the part ----------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The generation held, NO_GENERATION when there is none."""
        if self._alone != NO_GENERATION:
            return self._alone
        return self.membership.generation

    @property
    def has_part(self) -> bool:
        """Whether a generation is held."""
        return self.generation != NO_GENERATION

    def join(self, subscription: tuple[str, ...]) -> None:
        """Want a part, or another one; `membership.take` gets it."""
        self._alone = NO_GENERATION
        self._waits = None
        topics = resolve(self._cluster, subscription)
        self._start_thread()
        self.membership.join(topics)
        self.heart.watch(self.membership.member_id, topics, subscription)
        self._looked_at = self.heart.seen

    def start_alone(self) -> None:
        """Begin a generation of this consumer's own: it chose its partitions itself."""
        self._waits = None
        self._alone = self._cluster.groups.start(self.settings.group_id)

    def leave(self) -> None:
        """Give the part up and leave. Raises StorageError, and is left all the same."""
        self._alone = NO_GENERATION
        self.heart.watch("")
        self.membership.leave()

    def close(self) -> None:
        """Stop the thread; commits given to it are done first."""
        if self._background is not None:
            self._background.stop()
            self._background = None

    @property
    def has_news(self) -> bool:
        """Whether the heart has seen something since `standing` was last asked for, or a later
        commit is done."""
        heart = self.heart
        return heart.seen is not self._looked_at or heart.is_stale or not self._done.empty()

    def standing(self) -> Standing:
        """What the consumer should do with its part."""
        self._looked_at = self.heart.seen
        found = self.membership.standing(self._looked_at)
        if found is Standing.STABLE and self.heart.is_stale:
            return Standing.REBALANCING
        return found

    def metadata(self) -> ConsumerGroupMetadata:
        """For Producer.send_offsets_to_transaction. Raises RebalanceInProgressError."""
        self.require_part()
        return ConsumerGroupMetadata(
            self.settings.group_id, self.generation, self.membership.member_id
        )

    def require_part(self) -> None:
        """Raise RebalanceInProgressError or ClientStateError when no generation is held."""
        if self.has_part:
            return
        if self.membership.member_id:
            raise RebalanceInProgressError(
                f"Group {self.settings.group_id!r} is rebalancing and this consumer has no "
                "partitions: poll until it has, then go on from there.",
                group_id=self.settings.group_id,
            )
        raise ClientStateError(
            "This consumer has no place in its group: call subscribe or assign, and poll.",
            group_id=self.settings.group_id,
        )

    # -- offsets -----------------------------------------------------------------------------------

    def fetch(self, partitions: Mapping[str, Collection[int]]) -> Positions | None:
        """Committed positions under the generation held; None: ask again, some are pending (R46).

        What is pending for longer than SETTLE_PATIENCE_MS is settled. Nothing is waited for in
        here, so that a poll keeps to its time. Raises IllegalGenerationError,
        UnstableOffsetCommitError.
        """
        now_ms = self._cluster.store.clock.boot_ms()
        watch = self._waits or Watch(now_ms)
        # A poll after a suspend must not find that the holder had its time.
        self._waits = watch.look(now_ms=now_ms, interval_ms=SETTLE_PATIENCE_MS // LOOKS_MAX)
        is_patient = self._waits.watched_ms < SETTLE_PATIENCE_MS
        try:
            found = self._cluster.groups.fetch(
                self.settings.group_id,
                self.generation,
                partitions=partitions,
                fence=not is_patient,
            )
        except UnstableOffsetCommitError:
            if is_patient:
                return None
            raise
        self._waits = None
        return found

    def committed(
        self, partitions: Mapping[str, Collection[int]], *, stable: bool, timeout_ms: int
    ) -> Positions:
        """Committed positions for anybody to look at: waits for open transactions, ends none.

        Raises UnstableOffsetCommitError.
        """
        group_id = self.settings.group_id
        if not stable:
            group = self._cluster.groups.describe(group_id)
            return {} if group is None else group.positions()
        return self._cluster.groups.fetch(
            group_id, partitions=partitions, patience_ms=timeout_ms, fence=False
        )

    def commit(self, positions: Positions, notes: Notes) -> None:
        """Commit now, after everything that was to be committed later (R48).

        Raises IllegalGenerationError, UnknownMemberIdError, RebalanceInProgressError.
        """
        self.require_part()
        self.drain()
        self._cluster.groups.commit(
            self.settings.group_id,
            self.generation,
            positions,
            member_id=self.membership.member_id,
            metadata=notes,
        )

    def commit_later(self, positions: Positions, notes: Notes, on_done: OnDone) -> None:
        """Commit in the background, in order; `on_done` is called by a later `call_back`."""
        self.require_part()
        member_id, generation = self.membership.member_id, self.generation

        def job() -> None:
            error: TxnLogError | None = None
            try:
                self._second.groups.commit(
                    self.settings.group_id,
                    generation,
                    positions,
                    member_id=member_id,
                    metadata=notes,
                )
            except Exception as refused:
                if not isinstance(refused, TxnLogError):
                    logger.exception("A commit of offsets ended in a bug")
                error = unexpected(refused, "Committing offsets")
            self._done.put(lambda: on_done(error))

        self._start_thread()
        if self._background is None:
            job()
        else:
            self._background.submit(job)

    def drain(self) -> None:
        """Wait until all later commits are done."""
        if self._background is not None:
            self._background.drain()

    def call_back(self) -> None:
        """Call what finished commits want called."""
        while not self._done.empty():
            self._done.get()()

    def _start_thread(self) -> None:
        if self._with_thread and self._background is None:
            name = f"txnlog-consumer-{self.settings.group_id}"
            self._background = Background(name, self.heart, self.settings.heartbeat_interval_ms)
