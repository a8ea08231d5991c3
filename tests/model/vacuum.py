"""Vacuum against those who may yet name a staged file (R72): a model of D40.

Files of one topic: F is staged, old, and named by the manifest of a decided row that H finishes.
G is staged and grows old while D makes it live by a plain append, which checks its age. X is live
until compaction removes it; readers of older snapshots still hold it. V is vacuum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

NO_BARRIER = "vacuum writes no barrier commits"
TOPIC_FIRST = "vacuum reads the topic before the manifests"
FORGET_REMOVED = "vacuum ignores what was removed a moment ago"
NO_AGE_CHECK = "a commit does not check the age of the files it makes live"


class State(NamedTuple):
    """The topic, the shard, and how far each process is."""

    live: frozenset[str] = frozenset({"X"})
    manifest: frozenset[str] = frozenset({"F"})
    removed: frozenset[str] = frozenset()
    topic_version: int = 0
    shard_version: int = 0
    grown_old: bool = False
    helper: int = 0
    append_at: int = -1
    appended: bool = False
    done: int = 0
    listed: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()


class Vacuum:
    """The model: one run of vacuum, its steps in the order of D40 unless `broken`."""

    def __init__(self, broken: frozenset[str] = frozenset()) -> None:
        reads = ["manifests", "topic"]
        if TOPIC_FIRST in broken:
            reads.reverse()
        barriers = [] if NO_BARRIER in broken else ["topic barrier", "shard barrier"]
        self.plan = ["list", *barriers, *reads, "delete"]
        self.broken = broken

    def initial(self) -> State:
        return State()

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.helper == 0:
            yield (
                "H writes the marker: F is live",
                state._replace(
                    helper=1, live=state.live | {"F"}, topic_version=state.topic_version + 1
                ),
            )
        elif state.helper == 1:
            yield (
                "H completes: the manifest is cleared",
                state._replace(
                    helper=2, manifest=frozenset(), shard_version=state.shard_version + 1
                ),
            )
        if not state.grown_old:
            yield "G grows old", state._replace(grown_old=True)
        if "X" in state.live:
            yield (
                "compaction removes X",
                state._replace(
                    live=state.live - {"X"},
                    removed=state.removed | {"X"},
                    topic_version=state.topic_version + 1,
                ),
            )
        yield from self._append(state)
        if state.done < len(self.plan):
            yield self._vacuum(state, self.plan[state.done])

    def _append(self, state: State) -> Iterator[tuple[str, State]]:
        if state.appended:
            return
        if state.append_at < 0:
            if not state.grown_old or NO_AGE_CHECK in self.broken:
                tailed = state._replace(append_at=state.topic_version)
                yield "D tails, and finds G young enough", tailed
        elif state.append_at == state.topic_version:
            yield (
                "D commits G",
                state._replace(
                    live=state.live | {"G"}, appended=True, topic_version=state.topic_version + 1
                ),
            )
        else:
            yield "D meets a conflict", state._replace(append_at=-1)

    def _vacuum(self, state: State, what: str) -> tuple[str, State]:
        state = state._replace(done=state.done + 1)
        if what == "list":
            old = {"F", "X"} | ({"G"} if state.grown_old else set())
            return "V lists old files", state._replace(listed=frozenset(old))
        if what == "topic barrier":
            return "V writes a barrier", state._replace(topic_version=state.topic_version + 1)
        if what == "shard barrier":
            return "V writes a barrier", state._replace(shard_version=state.shard_version + 1)
        if what == "manifests":
            return "V reads the manifests", state._replace(named=state.named | state.manifest)
        if what == "topic":
            kept = frozenset() if FORGET_REMOVED in self.broken else state.removed
            return "V reads the topic", state._replace(named=state.named | state.live | kept)
        return "V deletes", state._replace(deleted=state.listed - state.named)

    def unsafe(self, before: State, after: State) -> str | None:
        lost = after.deleted & (after.live | after.manifest)
        if lost:
            return f"vacuum took {sorted(lost)}, which a log or a manifest names"
        if after.deleted & after.removed:
            return "vacuum took a file that a reader of an older version may still open"
        return None

    def stuck(self, state: State) -> str | None:
        return None
