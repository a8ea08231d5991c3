"""The cost of a commit's guards: chain, read-back, and the look at the newest versions."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from benchmarks.figures import Figure, at_most, reported
from benchmarks.scale import Scale
from benchmarks.transactions import TURNS, Writer
from txnlog.storage.delta import actions, delta_log
from txnlog.storage.delta.actions import Action, Commit, CommitInfo, encode_commit
from txnlog.storage.delta.checkpointer import wait_for_background
from txnlog.storage.delta.delta_log import DeltaLog

WINDOW_MAX = 100


def measure(scale: Scale) -> list[Figure]:
    """p50 of a transaction with and without the guards, measured in turns."""
    guarded, bare = Writer.begin(), Writer.begin()
    window = min(WINDOW_MAX, scale.transactions // TURNS)
    times_ms: tuple[list[float], list[float]] = ([], [])
    for turn in range(-1, 2 * TURNS):
        with_ms = guarded.write(window)
        wait_for_background()
        with _without_guards():
            without_ms = bare.write(window)
            wait_for_background()
        if turn >= 0:
            times_ms[0].extend(with_ms)
            times_ms[1].extend(without_ms)
    with_ms, without_ms = map(statistics.median, times_ms)
    name = "transaction of 4 small batches, p50"
    return [
        reported(f"{name}, with all guards of a commit", with_ms, "ms"),
        reported(f"{name}, without them", without_ms, "ms"),
        at_most("the same, with / without", with_ms / without_ms, "x", 1.1, "no guards"),
    ]


@contextmanager
def _without_guards() -> Iterator[None]:
    """Commits hold no digest, are not decoded, and nobody looks at the newest versions."""

    def encode(
        log: DeltaLog, info: CommitInfo, found: Sequence[Action], path: str
    ) -> tuple[bytes, Commit, Any]:
        commit = Commit(log.version + 1, info, tuple(found))
        return encode_commit(info, found), commit, log._parse(commit)

    with ExitStack() as stack:
        for name, instead in (
            ("_encode", encode),
            ("_must_look", lambda log: False),
        ):
            stack.enter_context(patch.object(DeltaLog, name, instead))
        stack.enter_context(patch.object(actions, "digest_of", lambda data: ""))
        stack.enter_context(patch.object(delta_log, "check_chain", lambda *arguments: None))
        yield
