"""The members of tests.model.members as cooperative ones: two partitions, of which one moves.

Each copies records of partition 1 in transactions. A member with both partitions hands it over to
one that joins, and reads on until it has revoked it; partition 0 is never read. So a take-over
meets tickets of a member that is alive, well, and in the same group (R46, R48).

A transaction is open over several polls, with the member id and the generation of the one that
returned its record: meanwhile the member may rebalance, lose its partitions, get them back under
a new id (D126) and read their positions. A transaction that is refused makes it read those again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from tests.model.cooperative import KEEPS_ITS_ID
from tests.model.members import COPIES, Members, Step
from tests.model.recovery import DEAD, Pc
from tests.model.spark_owner import GROUP, INPUT, State
from tests.model.values import Stored
from txnlog.protocol.cooperation import COOPERATIVE, is_member_of, keeps_partitions
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.membership import MembershipStatus, is_fenced, membership_status

KEEPS_AFTER_A_GAP = "a member keeps its position whatever generations it has missed"

RETURNS_AT_ONCE = "a partition comes back to who has just revoked it in the next generation"
EXPELLED_KEEPS = "a member that was expelled rejoins under its id"
EXPELLED_IS_NOBODY = "a commit does not ask for the partitions of a member that was expelled"

NO_TXN: Pc = ("none",)
REFUSED: Pc = ("refused",)
LEFT = "left"
"""(LEFT, generation, member id, what): its last transaction was of these, its COMPLETE is left."""


class CooperativeMembers(Members):
    """As Members; `records` is how many partition 1 has.

    A place is ("member", losses, consumer, transaction): how often the member has lost its
    partitions, and where its consumer and its producer stand. `joins` of the latter is a member id.
    """

    partition = 1
    counts: Mapping[str, int] = MappingProxyType({INPUT: 2})
    member = replace(Members.member, assignors=(COOPERATIVE,))
    static = replace(Members.static, assignors=(COOPERATIVE,))

    def initial(self) -> State:
        state = super().initial()
        count = len(self.members)
        places = [("member", 0, pc, NO_TXN) for pc in state.places[:count]]
        return state._replace(places=(*places, *state.places[count:]))

    def _id(self, number: int, losses: int) -> str:
        is_new = losses > 0 and KEEPS_ITS_ID not in self.broken
        return f"{self.members[number]}{losses}" if is_new else self.members[number]

    def _member(self, stored: Stored, number: int, pc: Pc, name: str = "") -> Iterator[Step]:
        """A step of its consumer, or of its transaction."""
        if pc == DEAD:
            return
        _, losses, reader, txn = pc
        name = self._id(number, losses)
        former = self._id(number, losses - 1) if losses else ""
        for label, wrote, after in self._consume(stored, number, reader, name, former):
            lost = losses
            if after[0] == "lost":
                lost, after = losses + 1, ("join", *after[1:3])
            yield label, wrote, ("member", lost, after, txn)
        if reader[0] == "poll":
            yield from self._between(stored, pc, name)
        if self._revokes(stored, pc, name):
            sent: Pc = ("own", reader[1], *txn[2:])
            yield f"{name} sends offsets in on_revoke", stored, ("member", losses, reader, sent)
        if txn[0] in (NO_TXN[0], REFUSED[0], LEFT):
            return
        # The id that it had when it read the record.
        mine = txn[2] if txn[0] in COPIES else self.members[number]
        for label, wrote, after in super()._member(stored, number, txn, mine):
            then = self._between_two(after) if after[0] == "poll" else after
            yield label, wrote, DEAD if after == DEAD else ("member", losses, reader, then)

    def _revokes(self, stored: Stored, pc: Pc, name: str) -> bool:
        """Whether it is in on_revoke, and has read a record of before: there it asks under which
        generation it may still commit that.
        """
        _, _, reader, txn = pc
        group = self.world.group(stored, GROUP)
        if reader[0] != "rejoin" or group is None or name not in group.members:
            return False
        is_asked = group.generation == reader[1] and group.members[name].revoking
        return bool(is_asked) and txn[:3] == ("own", reader[1] - 1, name)

    def _between_two(self, after: Pc) -> Pc:
        """Where its producer stands; `after` may end with what it has left."""
        _, generation, member_id, _, *left = after
        return (LEFT, generation, member_id, left[0]) if left else NO_TXN

    def _between(self, stored: Stored, pc: Pc, name: str) -> Iterator[Step]:
        """Between two transactions: read on, or seek after one that was refused."""
        _, losses, reader, txn = pc
        _, generation, joins, offset = reader
        if txn == REFUSED:
            seeks = ("fetch", generation, joins, None) if offset >= 0 else reader
            yield f"{name} goes back", stored, ("member", losses, seeks, NO_TXN)
        elif txn[0] in (NO_TXN[0], LEFT) and 0 <= offset < self.batches:
            # It may not have seen a change of the group yet, and goes on reading in any case.
            reads = ("poll", generation, joins, offset + 1)
            begun: Pc = ("own", generation, name, offset)
            if txn[:3] == (LEFT, generation, name):
                begun = self._next(begun[1:], txn[3])
            yield f"{name} reads {offset}", stored, ("member", losses, reads, begun)

    def _met_by(self, group: Group | None, name: str) -> Group | None:
        if RETURNS_AT_ONCE not in self.broken or group is None or name not in group.members:
            return group
        forgot = replace(group.members[name], revoking={})
        return replace(group, members={**group.members, name: forgot})

    def _request(self, stored: Stored, name: str, generation: int, offset: int) -> GroupOffsets:
        request = super()._request(stored, name, generation, offset)
        group = self.world.group(stored, GROUP)
        if EXPELLED_IS_NOBODY in self.broken and group is not None and name in group.members:
            owners = [m for m in group.assignment if self._part(group, m)]
            if owners and not group.members.keys() & set(owners):
                # Nobody that it sees has the partition.
                return replace(request, generation=group.generation, member_id="")
        return request

    def _consume(
        self, stored: Stored, number: int, pc: Pc, name: str, former: str
    ) -> Iterator[Step]:
        """One step of its consumer; after "lost" it is another member."""
        group = self.world.group(stored, GROUP)
        if self._is_fenced(group, pc, name, former):
            yield f"{name} is fenced", stored, DEAD
        elif pc[0] == "join" and pc[2] > 0:
            wrote = self._join(stored, name, pc[1], former if former != name else "")
            yield f"{name} joins", wrote.stored, ("wait", pc[1], pc[2] - 1)
        elif pc[0] == "rejoin":
            _, generation, joins, offset = pc
            if not self._keeps(group, name, generation):
                yield f"{name} has lost its part", stored, ("lost", generation, joins)
            elif joins > 0:
                wrote = self._join(stored, name, generation)
                after: Pc = ("poll", generation, joins - 1, offset)
                yield f"{name} rejoins with {offset}", wrote.stored, after
        elif pc != DEAD and pc[0] != "join":
            yield from super()._member(stored, number, pc, name)

    def _is_fenced(self, group: Group | None, pc: Pc, name: str, former: str) -> bool:
        """Whether a restart of it has replaced it, by either of its ids."""
        if name[0] not in "AR" or "R" not in self.names or pc == DEAD:
            return False
        has_joined = pc[0] != "join" or pc[2] < self.joins
        return has_joined and all(
            is_fenced(group, member_id=one, instance_id=self.static.instance_id)
            for one in (name, former or name)
        )

    def _keeps(self, group: Group | None, name: str, generation: int) -> bool:
        if KEEPS_AFTER_A_GAP in self.broken:
            return True
        if EXPELLED_KEEPS in self.broken and group is not None and name not in group.members:
            return group.generation == generation and name in group.assignment
        return keeps_partitions(group, member_id=name, generation=generation)

    def _part(self, group: Group, name: str) -> bool:
        return self.partition in group.assignment.get(name, {}).get(INPUT, ())

    def _poll(self, stored: Stored, pc: Pc, name: str) -> Iterator[Step]:
        """Rejoin, adopt the next generation, or lose it all."""
        _, generation, joins, offset = pc
        group = self.world.group(stored, GROUP)
        assert group is not None
        lost: Pc = ("lost", generation, joins)
        if not self._keeps(group, name, generation):
            yield f"{name} has lost its part", stored, lost
        elif is_member_of(group, name, after=generation):
            yield self._adopt(stored, group, name, pc)
        elif name not in group.members:
            broken = KEEPS_AFTER_A_GAP in self.broken
            after = ("rejoin", generation, joins, offset) if broken else lost
            yield f"{name} has lost its part", stored, after
        elif group.members[name].joined != group.generation:
            found = membership_status(group, member_id=name, generation=generation)
            if found is MembershipStatus.REBALANCING:
                yield f"{name} sees a rebalance", stored, ("rejoin", generation, joins, offset)

    def _adopt(self, stored: Stored, group: Group, name: str, pc: Pc) -> Step:
        _, _, joins, offset = pc
        generation = group.generation
        if group.members[name].revoking:
            return f"{name} revokes", stored, ("rejoin", generation, joins, -1)
        if self._part(group, name) and offset < 0:
            return f"{name} is given its part", stored, ("fetch", generation, joins, None)
        return f"{name} keeps {offset}", stored, ("poll", generation, joins, offset)

    def _refused(self, stored: Stored, pc: Pc, name: str) -> Pc:
        """It aborts, and goes back to the committed position of what it still has."""
        if pc[0] in COPIES:
            return REFUSED
        _, generation, joins, _ = pc
        group = self.world.group(stored, GROUP)
        is_member = group is not None and name in group.members
        if not is_member or not keeps_partitions(group, member_id=name, generation=generation):
            return ("lost", generation, joins)
        return ("fetch", generation, joins, None)
