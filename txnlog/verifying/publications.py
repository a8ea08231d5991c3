"""Whether Delta tables of others still have what completed transactions published in them.

A writer that does not create log files only if they are absent overwrites commits, unseen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from txnlog.errors import ConfigError, ObjectNotFoundError, UnknownTableError
from txnlog.protocol.enlisted.actions import Txn, decode_actions
from txnlog.protocol.enlisted.parts import app_id_of, republished_app_id
from txnlog.protocol.shards import state_table
from txnlog.protocol.verification.findings import Finding, FindingKind, Findings
from txnlog.protocol.verification.rows import DecidedPart, RowHistory
from txnlog.settings.roots import place_of
from txnlog.storage.delta.log_files import commit_path, log_folder
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.enlisted_log import EnlistedLog
from txnlog.verifying.log_reading import Observer, read_table

DAY_MS = 86_400_000
_AT_ONCE = 100
_COMMIT = re.compile(r"([0-9]{20})\.json\Z")


def completed_parts(store: ObjectStore, shards: Iterable[int]) -> list[DecidedPart]:
    """Of all transactions that the retained logs of the shards know."""
    histories = [_history(store, state_table(number)) for number in shards]
    return [part for history in histories for part in history.completed_parts()]


def _history(store: ObjectStore, table: str) -> RowHistory:
    found = RowHistory(table, Findings())

    def observe(findings: Findings) -> Observer:
        # Again where clean-up was met in the midst of a reading.
        nonlocal found
        found = RowHistory(table, findings)
        return found.observe

    read_table(store, table, observe=observe)
    return found


def by_table(parts: Iterable[DecidedPart]) -> dict[str, list[DecidedPart]]:
    """Parts by the URLs of their tables."""
    found: dict[str, list[DecidedPart]] = {}
    for part in parts:
        found.setdefault(part.table.url, []).append(part)
    return found


def check_publications(
    store: ObjectStore,
    url: str,
    cluster_id: str,
    parts: Sequence[DecidedPart],
    findings: Findings,
) -> None:
    """Of one table; one that is not there any more has lost nothing of ours."""
    try:
        log = EnlistedLog(store.at(url), store.now_ms)
    except ConfigError:
        if place_of(url) is not None:
            raise
        # A local folder that is gone.
        return
    with suppress(UnknownTableError):
        for part in lost_parts(log, cluster_id, parts):
            findings.add(
                Finding(
                    kind=FindingKind.PUBLICATION_LOST,
                    table=url,
                    file=f"{url}/{part.table.part}",
                    subject=part.transactional_id,
                    what=f"{part.table.num_records} records of epoch {part.epoch}",
                    command=f"txnlog tables republish {part.table.name}",
                )
            )


def lost_parts(
    log: EnlistedLog, cluster_id: str, parts: Sequence[DecidedPart]
) -> list[DecidedPart]:
    """Those that were published in this table, and no commit of its log has.

    A part of a table that was dropped and made again, or that is as old as what was cleaned up, is
    not judged. Raises what reading the log raises.
    """
    try:
        return _lost_parts(log, cluster_id, parts)
    except ObjectNotFoundError:
        # Others have cleaned up while it was read; a file that is truly gone is gone again.
        return _lost_parts(log, cluster_id, parts)


def _lost_parts(
    log: EnlistedLog, cluster_id: str, parts: Sequence[DecidedPart]
) -> list[DecidedPart]:
    log.refresh()
    table_id = log.state.definition.metadata.id
    times = {
        int(match[1]): item.last_modified_ms
        for item in log.store.list(log_folder(""))
        if (match := _COMMIT.search(item.path))
    }
    first = min(times, default=0)
    # Clocks of two stores, and the time between staging and publication.
    since_ms = times[first] + DAY_MS if first else 0
    judged = [
        part
        for part in parts
        if part.table.table_id == table_id and part.table.staged_ms >= since_ms
    ]
    there = _txns(log.store, sorted(times)) if judged else set()
    return [part for part in judged if there.isdisjoint(_names(cluster_id, part))]


def _names(cluster_id: str, part: DecidedPart) -> set[tuple[str, int]]:
    """The txns of which one is in the log of a table that has the part."""
    app_id = app_id_of(cluster_id, part.producer_id)
    return {(app_id, part.epoch), (republished_app_id(app_id, part.epoch), 0)}


def _txns(store: ObjectStore, versions: Sequence[int]) -> set[tuple[str, int]]:
    """(appId, version) of each txn in these commits."""
    found: set[tuple[str, int]] = set()
    for start in range(0, len(versions), _AT_ONCE):
        paths = [commit_path("", version) for version in versions[start : start + _AT_ONCE]]
        for data in store.together([partial(store.get, path) for path in paths]):
            actions = decode_actions(data, files=False)
            found.update((one.app_id, one.version) for one in actions if isinstance(one, Txn))
    return found
