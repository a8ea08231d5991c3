"""Checks of a log's files by their names alone: which files are missing or misplaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from txnlog.protocol.verification.findings import Finding, FindingKind, Findings


class Hint(NamedTuple):
    """The content of `_last_checkpoint`; `version` is None if it cannot be read."""

    version: int | None
    size_bytes: int | None = None


def check_listing(
    table: str, commits: Sequence[int], checkpoints: Sequence[int], findings: Findings
) -> None:
    """Check versions, ascending as listed. Clean-up deletes commits oldest first, then checkpoints.

    So there is always a checkpoint at or below the first retained commit, unless that is version 0.
    """
    if not commits:
        return
    first = commits[0]
    if first > 0 and not any(version <= first for version in checkpoints):
        newer = [version for version in checkpoints if version > first]
        findings.add(
            Finding(
                kind=FindingKind.CHECKPOINT_MISSING,
                table=table,
                version=first,
                what=f"the commits before {first} are removed, and there is no checkpoint up to "
                f"{first}; newer ones: {newer[:3] or 'none'}",
            )
        )


def find_strays(
    commits: Sequence[int], checkpoints: Sequence[int], written_ms: Mapping[int, int]
) -> list[int]:
    """Commits that were written late, into slots below the log that clean-up had freed.

    The log itself begins with its oldest checkpoint, which is older than these commits.
    `written_ms` maps versions to the store's times. The last one may be just below the checkpoint:
    then they are strays only if the checkpoint's commit names another predecessor, which the caller
    checks.
    """
    if not checkpoints or checkpoints[0] not in commits:
        return []
    first = checkpoints[0]
    below = [version for version in commits if version < first]
    return below if all(written_ms[version] > written_ms[first] for version in below) else []


def missing_commit(table: str, version: int, why: str) -> Finding:
    """A finding about a version without its commit."""
    return Finding(
        kind=FindingKind.COMMIT_MISSING,
        table=table,
        file=f"{table}/_delta_log/{version:020}.json",
        version=version,
        what=f"version {version} is missing: {why}",
    )


def check_hint(table: str, hint: Hint, checkpoint_bytes: int | None, findings: Findings) -> None:
    """`checkpoint_bytes` is the size of the checkpoint that it names, None if that is missing."""
    why = ""
    if hint.version is None:
        why = "it cannot be read"
    elif checkpoint_bytes is None:
        why = f"it names version {hint.version}, which has no checkpoint"
    elif hint.size_bytes not in (None, checkpoint_bytes):
        why = f"it gives the checkpoint {hint.size_bytes} bytes, the file has {checkpoint_bytes}"
    if why:
        findings.add(
            Finding(
                kind=FindingKind.HINT_WRONG,
                table=table,
                file=f"{table}/_delta_log/_last_checkpoint",
                what=why,
            )
        )


def check_write_ids(
    table: str, write_id: str, version: int, seen: dict[str, int], findings: Findings
) -> None:
    """Write ids are unique; `seen` maps those of earlier commits to their versions."""
    if not write_id:
        return
    before = seen.setdefault(write_id, version)
    if before != version:
        findings.add(
            Finding(
                kind=FindingKind.COMMIT_MISPLACED,
                table=table,
                file=f"{table}/_delta_log/{version:020}.json",
                version=version,
                what=f"versions {before} and {version} are the same commit",
            )
        )
