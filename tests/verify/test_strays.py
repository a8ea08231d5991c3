"""Commits that verify may call strays, and those that may be valid."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.storage.number_log import OFF, TABLE, created
from txnlog.protocol.verification.findings import FindingKind
from txnlog.storage.delta.actions import decode_commit, encode_commit
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import SharedMemory
from txnlog.verifying.log_reading import read_table


def restored(*, has_chain: bool) -> ObjectStore:
    """Versions 0 to 3 and a checkpoint of 3; a restore has dated 0 to 2 after it."""
    shared = SharedMemory()
    store = shared.open()
    created(store, 3)
    path = commit_path(TABLE, 3)
    if not has_chain:
        found = decode_commit(store.get(path), version=3, source=path)
        store.put(path, encode_commit(replace(found.info, previous=""), found.actions))
    assert create_checkpoint(store, TABLE, trust_ms=OFF.trust_ms) == 3
    shared.clock.advance_ms(60_000)
    for version in range(3):
        path = commit_path(TABLE, version)
        store.put(path, store.get(path))
    return store


@pytest.mark.parametrize("has_chain", [True, False])
def test_commits_below_one_that_names_no_other_predecessor_are_no_strays(has_chain: bool) -> None:
    """Commits of another tool have no chain: all were called strays."""
    reading = read_table(restored(has_chain=has_chain), TABLE)
    assert [finding.kind for finding in reading.findings.kept] == []
    assert reading.version == 3


def test_commits_below_a_damaged_one_are_no_strays() -> None:
    """The damage is found; what was below it cannot be told."""
    store = restored(has_chain=True)
    store.put(commit_path(TABLE, 3), b"garbled")
    store.clock.sleep_ms(60_000)
    for version in range(3):
        path = commit_path(TABLE, version)
        store.put(path, store.get(path))
    kinds = {finding.kind for finding in read_table(store, TABLE).findings.kept}
    assert FindingKind.COMMIT_DAMAGED in kinds
    assert FindingKind.COMMIT_STRAY not in kinds
