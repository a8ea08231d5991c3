"""The members of tests.model.members as cooperative ones: two partitions, of which one moves.

Each copies records of partition 1 in transactions. A member with both partitions hands it over to
one that joins, and reads on until it has revoked it; partition 0 is never read. So a take-over
meets tickets of a member that is alive, well, and in the same group (R46, R48).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from tests.model.members import Members
from tests.model.recovery import Pc
from tests.model.spark_owner import GROUP, INPUT
from tests.model.values import Stored
from txnlog.protocol.cooperation import COOPERATIVE, is_member_of, keeps_partitions
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.membership import MembershipStatus, membership_status

KEEPS_AFTER_A_GAP = "a member keeps its position whatever generations it has missed"


class CooperativeMembers(Members):
    """As Members; `records` is how many partition 1 has."""

    partition = 1
    counts: Mapping[str, int] = MappingProxyType({INPUT: 2})
    member = replace(Members.member, assignors=(COOPERATIVE,))
    static = replace(Members.static, assignors=(COOPERATIVE,))

    def _member(self, stored: Stored, number: int, pc: Pc) -> Iterator[tuple[str, Stored, Pc]]:
        name = self.members[number]
        if pc[0] == "rejoin":
            _, generation, joins, offset = pc
            group = self.world.group(stored, GROUP)
            if not self._keeps(group, name, generation):
                yield f"{name} has lost its part", stored, ("join", generation, joins)
            elif joins > 0:
                wrote = self._join(stored, name, generation)
                after: Pc = ("poll", generation, joins - 1, offset)
                yield f"{name} rejoins with {offset}", wrote.stored, after
            return
        yield from super()._member(stored, number, pc)

    def _keeps(self, group: Group | None, name: str, generation: int) -> bool:
        if KEEPS_AFTER_A_GAP in self.broken:
            return True
        return keeps_partitions(group, member_id=name, generation=generation)

    def _part(self, group: Group, name: str) -> bool:
        return self.partition in group.assignment.get(name, {}).get(INPUT, ())

    def _poll(self, stored: Stored, number: int, pc: Pc) -> Iterator[tuple[str, Stored, Pc]]:
        """Between two transactions: read on, rejoin, adopt the next generation, or lose it all."""
        _, generation, joins, offset = pc
        name = self.members[number]
        group = self.world.group(stored, GROUP)
        assert group is not None
        lost: Pc = ("join", generation, joins)
        if not self._keeps(group, name, generation):
            yield f"{name} has lost its part", stored, ("join", generation, joins)
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
        if 0 <= offset < self.batches:
            # It may not have seen the change yet, and goes on reading in any case.
            yield f"{name} reads {offset}", stored, ("own", generation, joins, offset)

    def _adopt(self, stored: Stored, group: Group, name: str, pc: Pc) -> tuple[str, Stored, Pc]:
        _, _, joins, offset = pc
        generation = group.generation
        if group.members[name].revoking:
            return f"{name} revokes", stored, ("rejoin", generation, joins, -1)
        if self._part(group, name) and offset < 0:
            return f"{name} is given its part", stored, ("fetch", generation, joins, None)
        return f"{name} keeps {offset}", stored, ("poll", generation, joins, offset)

    def _refused(self, stored: Stored, number: int, pc: Pc) -> Pc:
        """It aborts, and goes back to the committed position of what it still has."""
        _, generation, joins, _ = pc[:4]
        group = self.world.group(stored, GROUP)
        name = self.members[number]
        if group is None or name not in group.members:
            return ("join", generation, joins)
        if not keeps_partitions(group, member_id=name, generation=generation):
            return ("join", generation, joins)
        return ("fetch", generation, joins, None)
