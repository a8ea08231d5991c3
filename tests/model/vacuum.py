"""Vacuum against who makes a staged file live from outside of tests.model.housekeeping (R72, D40).

An append without a transaction, and the first write to a shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

NO_BARRIER = "vacuum writes no barrier commits"
NO_AGE_CHECK = "a commit does not check the age of the files it makes live"


class State(NamedTuple):
    """Of the topic, and how far each process is."""

    version: int = 0
    live: bool = False
    grown_old: bool = False
    append_at: int = -1
    done: int = 0
    listed: bool = False
    named: bool = False
    deleted: bool = False


class PlainAppend:
    """File G is staged and grows old while D makes it live by a plain append, which checks its age.
    V is one run of vacuum.
    """

    def __init__(self, broken: frozenset[str] = frozenset()) -> None:
        barriers = [] if NO_BARRIER in broken else ["barrier"]
        self.plan = ["list", *barriers, "read", "delete"]
        self.broken = broken

    def initial(self) -> State:
        return State()

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if not state.grown_old:
            yield "G grows old", state._replace(grown_old=True)
        if not state.live:
            yield from self._append(state)
        if state.done < len(self.plan):
            yield self._vacuum(state._replace(done=state.done + 1), self.plan[state.done])

    def _append(self, state: State) -> Iterator[tuple[str, State]]:
        if state.append_at < 0:
            if not state.grown_old or NO_AGE_CHECK in self.broken:
                tailed = state._replace(append_at=state.version)
                yield "D tails, and finds G young enough", tailed
        elif state.append_at == state.version:
            yield "D commits G", state._replace(live=True, version=state.version + 1)
        else:
            yield "D meets a conflict", state._replace(append_at=-1)

    def _vacuum(self, state: State, what: str) -> tuple[str, State]:
        if what == "list":
            return "V lists old files", state._replace(listed=state.grown_old)
        if what == "barrier":
            return "V writes a barrier", state._replace(version=state.version + 1)
        if what == "read":
            return "V reads the topic", state._replace(named=state.live)
        return "V deletes", state._replace(deleted=state.listed and not state.named)

    def unsafe(self, before: State, after: State) -> str | None:
        return "vacuum took G, which a log names" if after.deleted and after.live else None

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
