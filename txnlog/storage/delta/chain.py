"""Commits form a chain: each holds the digest of the one before.

A checksum proves that a file is intact, the chain that it belongs at its version: it detects a
commit that was lost and written again, an older file that was restored, and one of another log.
"""

from __future__ import annotations

from collections.abc import Sequence

from txnlog.errors import RESTORE_ALL, CorruptLogError, LogGapError, ObjectNotFoundError
from txnlog.storage.delta.actions import Commit, digest_of
from txnlog.storage.delta.log_files import checkpoint_path, commit_path
from txnlog.storage.store.objects import ObjectStore


def check_chain(store: ObjectStore, table: str, digest: str, commits: Sequence[Commit]) -> None:
    """Raise CorruptLogError unless each commit follows the one before.

    `digest` is that of the commit before the first. An empty digest, and a commit that holds none
    (of another tool), is accepted.
    """
    for commit in commits:
        if digest and commit.info.previous and commit.info.previous != digest:
            raise _broken(store, table, commit.version, digest)
        digest = commit.digest


def _broken(store: ObjectStore, table: str, version: int, digest: str) -> CorruptLogError:
    """Names the changed file: the predecessor if it has another digest, else this one."""
    before, after = commit_path(table, version - 1), commit_path(table, version)
    try:
        changed = digest_of(store.get(before)) != digest
    except ObjectNotFoundError:
        changed = True
    if changed:
        return CorruptLogError(
            f"{store.url}/{before}: this commit is gone or was replaced after processes had read "
            f"it: version {version} does not follow it. An older copy was restored, or it was lost "
            f"and another commit written in its place. Stop all clients. {RESTORE_ALL}",
            file=before,
        )
    return CorruptLogError(
        f"{store.url}/{after}: this commit does not follow version {version - 1}, which is there. "
        "It belongs to another log or to another copy of this one, or a version before it was lost "
        f"and written again. Stop all clients. {RESTORE_ALL}",
        file=after,
    )


def check_checkpoint(
    store: ObjectStore, table: str, checkpoint: Commit, commits: Sequence[Commit], *, is_head: bool
) -> None:
    """Raise if the commit at a checkpoint's version is not the one it was made from, or is lost.

    `commits` are the log's commits from the checkpoint's version on. The commit may be missing if
    another tool's clean-up removed it, but not at the head of a log: writers check that it exists.
    """
    if not checkpoint.digest:
        return
    version = checkpoint.version
    if not commits or commits[0].version != version:
        if is_head:
            path = commit_path(table, version)
            raise LogGapError(
                f"{store.url}/{path}: the newest commit is missing, though there is a checkpoint "
                f"of it. Later ones may be missing, too. Stop all clients. {RESTORE_ALL}",
                file=path,
            )
        return
    if commits[0].digest != checkpoint.digest:
        path = checkpoint_path(table, version)
        raise CorruptLogError(
            f"{store.url}/{path}: this checkpoint was not made from the commit of its version that "
            "is in the log: one of the two was restored from another time or place. Stop all "
            f"clients. {RESTORE_ALL}",
            file=path,
        )
