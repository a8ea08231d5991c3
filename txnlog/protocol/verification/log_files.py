"""Checks of a log's files by their names alone: what must be there, given what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from txnlog.protocol.verification.findings import Finding, FindingKind, Findings


class Hint(NamedTuple):
    """What `_last_checkpoint` says; `version` is None when it cannot be read."""

    version: int | None
    size_bytes: int | None = None


def check_listing(
    table: str, commits: Sequence[int], checkpoints: Sequence[int], findings: Findings
) -> None:
    """Versions ascending, as listed. Clean-up deletes commits oldest first, then checkpoints.

    So there is always a checkpoint at or below the first commit that is kept, if that is not the
    first of all.
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
                what=f"the commits before {first} are removed, and no checkpoint up to {first} is "
                f"there; newer ones: {newer[:3] or 'none'}",
            )
        )


def find_strays(
    commits: Sequence[int], checkpoints: Sequence[int], written_ms: Mapping[int, int]
) -> list[int]:
    """Commits that came late, into slots below the log that clean-up had freed.

    The log itself begins with its oldest checkpoint, and is older than they are. `written_ms` maps
    versions to the store's times.
    """
    if not checkpoints or checkpoints[0] not in commits:
        return []
    first = checkpoints[0]
    below = [version for version in commits if version < first]
    is_apart = bool(below) and below[-1] < first - 1
    if is_apart and all(written_ms[version] > written_ms[first] for version in below):
        return below
    return []


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
    """`checkpoint_bytes` is the size of the checkpoint that it names, None if that is not there."""
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
    """Each commit has an id of its own; `seen` maps those of earlier versions."""
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
