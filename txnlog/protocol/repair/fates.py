"""What became of transactions: where they are published again, lost or kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from txnlog.protocol.batches import ABORTED, COMMITTED
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.repair.facts import Decision, SalvagedTopic
from txnlog.protocol.repair.losses import LostTransaction
from txnlog.protocol.repair.topics import TopicRepair
from txnlog.protocol.states import TransactionResult, TransactionState


@dataclass(slots=True)
class Fate:
    """Topics of a transaction, by what became of its records there. With a `first_epoch` it stands
    for all from there on, of which the row knows nothing.
    """

    first_epoch: int | None = None
    published: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)


class Fates:
    """Collects them by producer id and epoch. `broken` are staged files that are not whole."""

    def __init__(
        self, topics: Mapping[str, SalvagedTopic], broken: Collection[tuple[str, str]]
    ) -> None:
        self._topics = topics
        self._broken = broken
        self._found: dict[tuple[int, int], Fate] = {}

    def described(self, names: Mapping[int, str]) -> list[LostTransaction]:
        """All of them; `names` are the transactional.ids of producer ids, where known."""
        return [
            LostTransaction(
                transactional_id=names.get(producer_id, ""),
                producer_id=producer_id,
                first_epoch=epoch if fate.first_epoch is None else fate.first_epoch,
                epoch=epoch,
                published=tuple(sorted(fate.published - fate.lost)),
                lost=tuple(sorted(fate.lost)),
                kept=tuple(sorted(fate.kept - fate.lost)),
            )
            for (producer_id, epoch), fate in sorted(self._found.items())
        ]

    def _fate(self, producer_id: int, epoch: int) -> Fate:
        return self._found.setdefault((producer_id, epoch), Fate())

    def broken_topics(self, row: TransactionMetadata) -> set[str]:
        """Topics with staged files of this row that are not whole."""
        batches = row.pending.batches
        return {one.topic for one in batches if (one.topic, one.path) in self._broken}

    def lost_topics(self, decision: Decision) -> set[str]:
        """Topics that lack the marker of a commit and records of it: staged, or appended before."""
        row = decision.row
        if TransactionResult.of(row.state) is TransactionResult.ABORT:
            return set()
        eager = set(decision.topics) - {one.topic for one in row.pending.batches}
        return self._may_lack(eager, row) | (self.broken_topics(row) & set(decision.topics))

    def note_decision(self, decision: Decision) -> None:
        """A commit that some topics lack: they get it now, but for what is not whole."""
        row, lost = decision.row, self.lost_topics(decision)
        lacking = {name for name in decision.topics if name in lost or not self._has_all(name, row)}
        if lacking and TransactionResult.of(row.state) is TransactionResult.COMMIT:
            fate = self._fate(*row.transaction)
            fate.lost |= lost
            fate.published |= lacking - fate.lost
            fate.kept |= set(row.topics) - lacking

    def _has_all(self, name: str, row: TransactionMetadata) -> bool:
        """Whether segments have all that it publishes there."""
        topic = self._topics[name]
        files = topic.files_of(row)
        return bool(files) and files <= set(topic.removed)

    def note_lost(
        self,
        topic: SalvagedTopic,
        planned: TopicRepair,
        decided: Collection[tuple[int, int]],
    ) -> None:
        """Batches of transactions that are not whole, or whose decision is lost."""
        for header in planned.empties:
            if header.path and header.status == COMMITTED:
                self._fate(header.producer_id, header.producer_epoch).lost.add(topic.name)
        for header in planned.adds:
            key = header.producer_id, header.producer_epoch
            if header.status == ABORTED and key not in decided:
                self._fate(*key).lost.add(topic.name)

    def note_newer(self, row: TransactionMetadata, top: int) -> None:
        """Topics show transactions up to `top`, newer than the row: others may lack them."""
        fate = self._fate(row.producer_id, top)
        fate.kept |= {
            name
            for name, one in self._topics.items()
            if one.markers.newest.get(row.producer_id) == top
        }
        if row.state is TransactionState.ONGOING and top == row.txn_epoch:
            fate.lost |= self._may_lack(set(row.topics) - fate.kept, row)
        else:
            fate.first_epoch = row.txn_epoch + 1

    def _may_lack(self, names: Iterable[str], row: TransactionMetadata) -> set[str]:
        """Topics in which batches of this open transaction are, or may be, lost."""
        return {
            name
            for name in names
            if name not in self._topics or self._topics[name].has_lost or not self.waits(name, row)
        }

    def waits(self, name: str, row: TransactionMetadata) -> bool:
        """Whether batches in the topic wait for the marker of this transaction."""
        found = self._topics.get(name)
        undecided = () if found is None else found.undecided
        return row.transaction in {(one.producer_id, one.producer_epoch) for one in undecided}
