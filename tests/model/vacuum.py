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


CHECK_BEFORE_SHARD = "a batch write checks ages before its shard exists"
SHARDS_FIRST = "vacuum looks for shards before it writes the topics' barriers"


class ShardState(NamedTuple):
    """`write`: how far the batch write is; `seen`: the shard's version that it decides on."""

    grown_old: bool = False
    exists: bool = False
    shard_version: int = 0
    topic_barrier: bool = False
    write: int = 0
    seen: int = -1
    refused: bool = False
    manifest: bool = False
    done: int = 0
    is_listed: bool = False
    is_named: bool = False
    deleted: bool = False


class NewShard:
    """Vacuum against the first write to a shard, which names a staged file (R72).

    The writer's clocks may be paused: only the barrier in the topic tells it that its file is old.
    Vacuum writes no barrier into a shard that does not exist.
    """

    def __init__(self, broken: frozenset[str] = frozenset()) -> None:
        self.writer = ["create", "check", "prepare"]
        if CHECK_BEFORE_SHARD in broken:
            self.writer = ["check", "create", "prepare"]
        self.plan = ["list", "topic barrier", "shard barrier", "manifests", "delete"]
        if SHARDS_FIRST in broken:
            self.plan = ["list", "shard barrier", "topic barrier", "manifests", "delete"]

    def initial(self) -> ShardState:
        return ShardState()

    def steps(self, state: ShardState) -> Iterator[tuple[str, ShardState]]:
        if not state.grown_old:
            yield "the staged file grows old", state._replace(grown_old=True)
        if state.write < len(self.writer) and not state.refused:
            yield self._write(state, self.writer[state.write])
        if state.done < len(self.plan):
            yield self._vacuum(state._replace(done=state.done + 1), self.plan[state.done])

    def _write(self, state: ShardState, what: str) -> tuple[str, ShardState]:
        after = state._replace(write=state.write + 1)
        if what == "create":
            return "W creates the shard", after._replace(exists=True)
        if what == "check":
            refused = state.topic_barrier
            return "W reads its topic", after._replace(seen=state.shard_version, refused=refused)
        if state.seen != state.shard_version:
            # It decides again, on what it reads now.
            return "W meets a barrier", state._replace(write=self.writer.index("check"))
        return "W prepares", after._replace(manifest=True, shard_version=state.shard_version + 1)

    def _vacuum(self, state: ShardState, what: str) -> tuple[str, ShardState]:
        if what == "list":
            return "V lists old files", state._replace(is_listed=state.grown_old)
        if what == "topic barrier":
            return "V writes a barrier into the topic", state._replace(topic_barrier=True)
        if what == "shard barrier":
            version = state.shard_version + int(state.exists)
            return "V writes barriers into the shards", state._replace(shard_version=version)
        if what == "manifests":
            return "V reads the manifests", state._replace(is_named=state.manifest)
        return "V deletes", state._replace(deleted=state.is_listed and not state.is_named)

    def unsafe(self, before: ShardState, after: ShardState) -> str | None:
        if after.deleted and after.manifest:
            return "vacuum took a file that a manifest names"
        return None

    def stuck(self, state: ShardState) -> str | None:
        return None
