"""Group offsets: generations, tickets of transactions with offsets, and fencing their holders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from txnlog.coordinator.fencing import fence_holders, log_line
from txnlog.coordinator.finishing import publish
from txnlog.coordinator.root import Root
from txnlog.coordinator.state_rows import check_run, describe, unmoved
from txnlog.errors import IllegalGenerationError, NothingWrittenError, OffsetConflictError
from txnlog.process.clock import OPERATION_ATTEMPTS_MAX
from txnlog.protocol.fencing_lines import group_lines
from txnlog.protocol.group_metadata import Positions, TicketHolder
from txnlog.protocol.groups import (
    Group,
    GroupOffsets,
    OffsetsCommit,
    Partitions,
    check_member,
    prepare_fetch,
    prepare_generation,
    prepare_offset_commit,
    prepare_reset,
    unstable,
    with_starts,
)
from txnlog.protocol.metadata import GroupTicket, TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.protocol.tickets import (
    MustFence,
    Registered,
    check_start,
    find_ticket,
    held_by_others,
    holders_met,
    overlap,
    own_holders,
    prepare_registration,
    with_known,
    with_unmoved,
)
from txnlog.storage.tables.row_log import RowView

_WAITS_FROM = 5
"""The first wait for a transaction to end takes a millisecond, not no time."""


class Begun(NamedTuple):
    """A generation that this process began; `done` are the tickets that it has fenced."""

    generation: int
    done: frozenset[int]


class GroupCoordinator:
    """The group coordinator, in any process, for any group; each change is one compare-and-swap."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def start(self, group_id: str) -> int:
        """Bump the generation, which fences all former users of the group; returns the new one.

        Whoever may commit its offsets in transactions is fenced, and what they have decided is
        finished. Raises UnstableOffsetCommitError for a transaction that its client has prepared.
        """
        return self._begin(group_id, f"a reader of group {group_id!r}").generation

    def _begin(self, group_id: str, by: str) -> Begun:
        self._refuse_held(group_id)
        written = self.change_members(
            group_id,
            lambda group: prepare_generation(group, group_id=group_id, now_ms=self._now_ms()),
            by=by,
        )
        assert written is not None
        [group] = written.groups
        # Only those present in that commit: later ones already use the new generation.
        fence_holders(self._root, group_id, group.tickets.holders, by=by)
        done = frozenset(holder.ticket for holder in group.tickets.holders)
        return Begun(group.generation, done)

    def change_members(
        self,
        group_id: str,
        decide: Callable[[Group | None], OffsetsCommit | None],
        *,
        by: str,
    ) -> OffsetsCommit | None:
        """Write what `decide` says about the group's members or generation, and log that."""
        before: Group | None = None

        def noted(view: RowView[Group], version: int) -> OffsetsCommit | None:
            nonlocal before
            before = view.rows.get(group_id)
            return decide(before)

        written = self._root.offsets_log(group_id).change(noted)
        if written is not None:
            for line in group_lines(before, written.groups[0], by=by):
                log_line(line)
        return written

    def _refuse_held(self, group_id: str) -> None:
        """Raise for a transaction that its client has prepared, before anyone is fenced."""
        group = self.describe(group_id)
        for holder, row in self._rows(() if group is None else group.tickets.holders):
            carries = any(one.group_id == group_id for one in row.pending.tickets)
            if carries and row.pending.prepared_by_client and not row.state.is_prepared:
                raise unstable(group_id, [holder])

    def fetch(
        self,
        group_id: str,
        generation: int | None = None,
        *,
        member_id: str = "",
        partitions: Mapping[str, Collection[int]] | None = None,
        patience_ms: int = 0,
        fence: bool = True,
    ) -> dict[str, dict[int, int]]:
        """Committed positions (topic -> partition -> next offset) that no transaction is moving.

        What holders of tickets on `partitions` (None: all) have decided is finished first (R46), or
        counts as it is if this process may only read. With a generation it must be able to write:
        holders that registered under another one, or as another member, are fenced; with
        `fence=False` not while they have an open transaction with offsets there.
        Waits for open transactions for `patience_ms`.
        Raises IllegalGenerationError for an old generation, UnknownMemberIdError for a member that
        was replaced, UnstableOffsetCommitError while an open transaction has offsets there.
        """
        check = partial(
            prepare_fetch, group_id=group_id, generation=generation, member_id=member_id
        )
        clock = self._root.store.clock
        patient_until_ms = clock.boot_ms() + patience_ms
        attempt = rounds = 0
        while True:
            group = self.describe(group_id)
            positions = check(group)
            met = holders_met(group, partitions)
            if not met:
                return positions
            is_patient = clock.boot_ms() < patient_until_ms
            others = held_by_others(group, met, generation=generation, member_id=member_id)
            skipped = others if fence and not is_patient else ()
            refused: list[TicketHolder] | None = [] if generation is None else None
            open_ones = self._look_at(group_id, met, partitions, but=skipped, refused=refused)
            if not open_ones:
                who = f"member {member_id}" if member_id else "a reader"
                by = f"{who} of group {group_id!r}, generation {generation}"
                fence_holders(self._root, group_id, others, partitions=partitions, by=by)
                # What was decided before the rows of the holders were read is in the group by now.
                group = self.committed(group_id) if refused else self.describe(group_id)
                positions = check(group)
                tickets = {one.ticket for one in met}
                if all(one.ticket in tickets for one in holders_met(group, partitions)):
                    return positions
            elif not is_patient:
                rounds += 1
                if rounds > (OPERATION_ATTEMPTS_MAX if fence else 1):
                    raise unstable(group_id, open_ones)
            self._root.store.back_off(max(_WAITS_FROM, attempt) if is_patient else attempt)
            attempt += 1

    def _look_at(
        self,
        group_id: str,
        holders: Sequence[TicketHolder],
        partitions: Partitions | None,
        *,
        but: Collection[TicketHolder] = (),
        refused: list[TicketHolder] | None = None,
    ) -> list[TicketHolder]:
        """Publish what these holders have decided; those with an open transaction that has offsets
        of these partitions (None: of any). Offsets that the group has are those of a transaction
        that is published: a topic of it that cannot be read does not stop the group's readers.

        Call it after the read of the group's row that named them. `but` are not looked at; to
        `refused` are added those whose decisions this process cannot publish, as its store takes
        no writes of it.
        """
        open_ones = []
        markers = self._root.offsets_log(group_id).view.markers
        for holder, row in self._rows([one for one in holders if one not in but]):
            carried = [one for one in row.pending.tickets if one.group_id == group_id]
            if row.is_ending and carried:
                if markers.get(row.producer_id, -1) >= row.txn_epoch:
                    continue
                try:
                    publish(self._root, row)
                except NothingWrittenError:
                    if refused is None:
                        raise
                    refused.append(holder)
            elif row.state is TransactionState.ONGOING and any(
                partitions is None or overlap(one.offsets, partitions) for one in carried
            ):
                open_ones.append(holder)
        return open_ones

    def _rows(
        self, holders: Sequence[TicketHolder]
    ) -> Iterator[tuple[TicketHolder, TransactionMetadata]]:
        """The holders whose ids have a row of their producer id, each with it; all are read before
        the first one, their shards together.
        """
        names = {self._root.shard_of(name): name for name in (h.transactional_id for h in holders)}
        self._root.store.together([partial(describe, self._root, name) for name in names.values()])
        for holder in holders:
            shard = self._root.find_shard_for(holder.transactional_id)
            row = None if shard is None else shard.view.rows.get(holder.transactional_id)
            if row is not None and row.producer_id == holder.producer_id:
                yield holder, row

    def committed(self, group_id: str) -> Group | None:
        """The newest row of a group, and what `state_rows.unmoved` finds; no write.

        So these offsets count as soon as they are decided, also where a process died before it
        moved them.
        """
        group = self.describe(group_id)
        if group is None or not group.tickets.holders:
            return group
        rows = unmoved(self._root, group.tickets.holders)
        # What is not there any more was moved after the first read.
        group = self.describe(group_id)
        log = self._root.offsets_log(group_id)
        return None if group is None else with_unmoved(group, rows, log.view.markers)

    def describe(self, group_id: str) -> Group | None:
        """The newest row of a group."""
        log = self._root.find_offsets_log(group_id)
        if log is None:
            return None
        log.refresh()
        return log.view.rows.get(group_id)

    def commit(
        self,
        group_id: str,
        generation: int,
        positions: Positions,
        *,
        member_id: str = "",
        metadata: Mapping[str, Mapping[int, str]] | None = None,
        starts: Positions | None = None,
    ) -> None:
        """OffsetCommit of a consumer, outside of transactions (R48); `starts` as in `with_starts`.

        Transactions that were decided before have moved their offsets by then; what is decided
        later counts as later: the order that callers can observe (D30). Raises
        IllegalGenerationError, UnknownMemberIdError.
        """
        looked: set[int] = set()

        def decide(view: RowView[Group], version: int) -> OffsetsCommit | MustFence | None:
            group = view.rows.get(group_id)
            row = check_member(
                group,
                group_id=group_id,
                generation=generation,
                member_id=member_id,
                partitions=positions,
            )
            wanted = with_starts(row, member_id=member_id, offsets=positions, starts=starts or {})
            left = [one for one in holders_met(row, wanted) if one.ticket not in looked]
            if left:
                return MustFence(tuple(left))
            return prepare_offset_commit(
                row,
                group_id=group_id,
                generation=generation,
                member_id=member_id,
                offsets=wanted,
                metadata=metadata or {},
                version=version,
                now_ms=self._now_ms(),
            )

        log = self._root.offsets_log(group_id)
        while isinstance(found := log.change(decide), MustFence):
            self._look_at(group_id, found.holders, positions)
            looked.update(one.ticket for one in found.holders)

    # -- transactions ----------------------------------------------------------------------------

    def tickets(
        self, row: TransactionMetadata, requests: Sequence[GroupOffsets]
    ) -> tuple[GroupTicket, ...]:
        """The offsets with the tickets of the row's owner, which registers where it has none.

        Raises IllegalGenerationError, UnknownMemberIdError, OffsetConflictError,
        UnstableOffsetCommitError.
        """
        return tuple(
            GroupTicket(
                group_id=request.group_id,
                producer_id=row.producer_id,
                ticket=self._ticket(row, request),
                generation=request.generation,
                offsets={topic: dict(ends) for topic, ends in request.end.items()},
            )
            for request in requests
        )

    def _ticket(self, row: TransactionMetadata, request: GroupOffsets) -> int:
        log = self._root.offsets_log(request.group_id)
        group = log.view.rows.get(request.group_id)
        known = self._find(group, row, request)
        if known is None:
            return self._register(row, request)
        # Without the group's newest row this proves nothing, but costs nothing either.
        try:
            check_start(group, request.start)
        except OffsetConflictError:
            check_start(self.describe(request.group_id), request.start)
        return known

    def _find(
        self, group: Group | None, row: TransactionMetadata, request: GroupOffsets
    ) -> int | None:
        return find_ticket(
            group,
            row.holder,
            floor=self._floor(row, request.group_id),
            generation=request.generation,
            member_id=request.member_id,
            partitions=request.end,
        )

    def _floor(self, row: TransactionMetadata, group_id: str) -> int:
        # After a refusal the shard's view has the floor, and the caller's row may not.
        shard = self._root.shard_for(row.transactional_id)
        newest = dict.get(shard.view.rows, row.transactional_id) or row
        return max(one.owner.floors.get(group_id, 0) for one in (row, newest))

    def _register(self, row: TransactionMetadata, request: GroupOffsets) -> int:
        """Register; first fence registrations that overlap these partitions."""
        group_id, fenced = request.group_id, set[int]()
        # A run that has lost its id must not fence its successor.
        check_run(self._root, row)
        under_way = {one.ticket for one in row.pending.tickets}

        def decide(view: RowView[Group], version: int) -> OffsetsCommit | MustFence | int:
            group = view.rows.get(group_id)
            known = self._find(group, row, request)
            if known is not None:
                return known
            own = [] if group is None else own_holders(group, row.holder)
            rested = {one.ticket for one in own} - under_way
            found = prepare_registration(
                group,
                group_id=group_id,
                generation=request.generation,
                member_id=request.member_id,
                holder=row.holder,
                partitions=with_known(own, request),
                start=request.start,
                done=fenced | rested,
                floor=self._floor(row, group_id),
                now_ms=self._now_ms(),
            )
            return found.commit if isinstance(found, Registered) else found

        log = self._root.offsets_log(group_id)
        for attempt in range(OPERATION_ATTEMPTS_MAX):
            found: OffsetsCommit | MustFence | int = log.change(decide)
            if isinstance(found, int):
                return found
            if isinstance(found, OffsetsCommit):
                return found.groups[0].tickets.newest
            by = f"{row.transactional_id!r}"
            fence_holders(self._root, group_id, found.holders, partitions=request.end, by=by)
            fenced.update(holder.ticket for holder in found.holders)
            self._root.store.back_off(attempt)
        raise unstable(group_id, ())

    # -- operators -------------------------------------------------------------------------------

    def reset(self, group_id: str, positions: Positions) -> int:
        """Reset offsets as an operator: new positions under a new generation, which is returned."""

        def decide(begun: Begun, group: Group | None, version: int) -> OffsetsCommit:
            return prepare_reset(
                group,
                group_id=group_id,
                generation=begun.generation,
                done=begun.done,
                positions=positions,
                version=version,
                now_ms=self._now_ms(),
            )

        return self.change_alone(group_id, decide, by="an offset reset")

    def change_alone(
        self,
        group_id: str,
        decide: Callable[[Begun, Group | None, int], OffsetsCommit],
        *,
        by: str,
    ) -> int:
        """Write what `decide` says under a generation of this process, with all others fenced.

        First the generation begins, then all are fenced and finished, then it writes. A process
        that comes between begins another generation, and this starts again. Returns the
        generation.
        """
        log = self._root.offsets_log(group_id)
        for attempt in range(OPERATION_ATTEMPTS_MAX):
            begun = self._begin(group_id, by)
            try:
                log.change(
                    lambda view, version: decide(begun, view.rows.get(group_id), version)  # noqa: B023
                )
                return begun.generation
            except IllegalGenerationError:
                self._root.store.back_off(attempt)
        raise unstable(group_id, ())

    def _now_ms(self) -> int:
        return self._root.store.now_ms()
