"""What is wrong in a root: who, since when, why, what ends it, and the command to paste.

One decision for all who ask: `txnlog why`, `transactions find-hanging`, BLOCKED-BY of `groups
describe`, and the findings of `verify` about transactions that wait. It gets what was read of the
root, in this order, so that no process that goes on meanwhile is taken for one that does not: rows,
groups, topics.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise

from txnlog.protocol.membership import BEATS_PER_SESSION
from txnlog.protocol.problems import (
    HOUSEKEEPING,
    PATIENCE_MS,
    Problem,
    ProblemKind,
    RootState,
    problem_of,
)
from txnlog.protocol.verification.findings import FindingKind
from txnlog.protocol.waiting import unpublished_files, waiting_transactions
from txnlog.text import shell_option

DAY_MS = 86_400_000
SMALL_FILES_MIN = 1_000
FREE_BYTES_MIN = 128 << 20
"""Less free space is a full disk: a segment of compaction has as much."""
TAKEOVERS_MIN, TAKEOVERS_MS = 3, 600_000
"""So many take-overs of an id in this time are no restarts."""
GAPS_MIN, QUIET_GAPS, QUIET_MS_MIN = 5, 3, 60_000
"""A query has a rhythm after so many batches; so many of its longest gaps without one are odd."""


def find_problems(state: RootState, *, patience_ms: int = PATIENCE_MS) -> list[Problem]:
    """All problems, those of readers first; not transactions that began to wait, or were decided,
    less than `patience_ms` ago.
    """
    waiting = [
        one
        for one in waiting_transactions(state)
        if one.since_ms < 0 or max(0, state.now_ms - one.since_ms) >= patience_ms
    ]
    return [
        *waiting,
        *_members(state),
        *_owners(state),
        *_queries(state),
        *_damage(state, {topic for one in waiting for topic in _missing(one, state)}),
        *_upkeep(state),
    ]


# --- Owners, members, queries ---------------------------------------------------------------------


def _members(state: RootState) -> Iterator[Problem]:
    """Members whose heartbeats stopped, by the measure of those that expel them."""
    for group_id, group in sorted(state.groups.items()):
        for member_id, member in sorted(group.members.items()):
            session_ms = member.session_timeout_ms
            silent_ms = state.now_ms - member.heartbeat_ms
            limit_ms = session_ms + session_ms // BEATS_PER_SESSION
            if member.heartbeat_ms >= 0 and silent_ms > limit_ms:
                partitions = sum(map(len, group.assignment.get(member_id, {}).values()))
                yield Problem(
                    kind=ProblemKind.DEAD_MEMBER,
                    subject=group_id,
                    why=f"{member_id} has sent no heartbeat for {silent_ms // 1000} s "
                    f"(session.timeout.ms={session_ms}); it has {partitions} partitions",
                    ends="a live member of the group, or housekeeping, expels it",
                    since_ms=member.heartbeat_ms,
                    command=HOUSEKEEPING,
                    who=f"member {member_id}, client {member.client_id}, on {member.host}",
                    host=member.host,
                )


def _owners(state: RootState) -> Iterator[Problem]:
    for row in state.rows:
        last, times = row.owner.fenced, state.takeovers.get(row.transactional_id, ())
        recent = [at_ms for at_ms in times if state.now_ms - at_ms <= TAKEOVERS_MS]
        if len(recent) >= TAKEOVERS_MIN:
            yield problem_of(
                row,
                kind=ProblemKind.TAKEN_OVER,
                why=f"{len(recent)} processes have taken it over from each other in "
                f"{TAKEOVERS_MS // 60_000} min: two use it, or one restarts again and again",
                ends="stop one of them, or give each a transactional.id of its own",
                since_ms=recent[0],
                command=_why("--story", row.transactional_id),
            )
        elif (
            last is not None
            and row.owner.run_id in row.owner.former_runs
            and state.now_ms - last.at_ms <= DAY_MS
        ):
            yield problem_of(
                row,
                kind=ProblemKind.FENCED,
                why=f"fenced by {last.by}: {last.reason}; nobody has taken over",
                ends="its program, started again",
                since_ms=last.at_ms,
                command=_why("--transactional-id", row.transactional_id),
            )


def lagging_queries(state: RootState) -> dict[str, tuple[str, int]]:
    """Spark queries that are between two batches for long, and have not read all of their input:
    id -> (group, records).
    """
    found = {}
    queries = {
        row.transactional_id
        for row in state.rows
        if row.owner.query_id and state.now_ms - row.updated_ms >= QUIET_MS_MIN
    }
    for group_id, group in sorted(state.groups.items()):
        for holder in group.tickets.holders:
            records = sum(
                state.unread.get((group_id, topic, number), 0)
                for topic, numbers in holder.partitions.items()
                for number in numbers
            )
            if records and holder.transactional_id in queries:
                found[holder.transactional_id] = group_id, records
    return found


def _queries(state: RootState) -> Iterator[Problem]:
    """Queries that have broken their own rhythm while there is input."""
    rows = {row.transactional_id: row for row in state.rows}
    for name, (group_id, records) in lagging_queries(state).items():
        times = sorted(state.batches.get(name, ()))
        gaps = [after - before for before, after in pairwise(times)]
        is_fenced = rows[name].owner.run_id in rows[name].owner.former_runs
        if len(gaps) < GAPS_MIN or is_fenced:
            continue
        quiet_ms = state.now_ms - times[-1]
        if quiet_ms >= max(QUIET_MS_MIN, QUIET_GAPS * max(gaps)):
            yield problem_of(
                rows[name],
                kind=ProblemKind.STUCK_QUERY,
                why=f"no batch for {quiet_ms // 1000} s, and at most {max(gaps) / 1000:.1f} s "
                f"between its last {len(times)}; group {group_id} has {records} records to read: "
                "it was stopped, or is stuck",
                ends="the query, started again; or look at its driver",
                since_ms=times[-1],
                command=_why("--group", group_id),
            )


def _why(option: str, name: str) -> str:
    return f"txnlog why {shell_option(option, name)}"


# --- Damage, upkeep -------------------------------------------------------------------------------


def _missing(problem: Problem, state: RootState) -> Collection[str]:
    """The topics that a problem already says to be gone."""
    is_named = problem.kind is ProblemKind.TOPIC_MISSING and problem.row is not None
    return set(problem.row.topics) & set(state.gone) if is_named and problem.row else ()


def _damage(state: RootState, said: Collection[str]) -> Iterator[Problem]:
    decided = {f"{one.topic}/{one.path}" for one in unpublished_files(state)}
    for file, wrong in sorted(state.damaged_files.items()):
        if file not in decided:
            yield Problem(
                kind=ProblemKind.FILE_DAMAGED,
                subject=file.partition("/")[0],
                why=f"{file} {wrong}, and a group reads it next",
                ends="the file, restored as it was; or `topics delete-records` past it",
                command="txnlog verify",
            )
    for table, why in sorted(state.unreadable.items()):
        yield Problem(
            kind=ProblemKind.DAMAGE,
            subject=table,
            why=why,
            ends="what the error says",
            command="txnlog verify",
        )
    for finding in state.findings:
        is_missing = finding.kind is FindingKind.LOG_MISSING
        if not (is_missing and finding.table in said):
            yield Problem(
                kind=ProblemKind.TOPIC_MISSING if is_missing else ProblemKind.DAMAGE,
                subject=finding.subject or finding.table,
                why=f"{finding.kind.value}: {finding.what}",
                ends=finding.advice,
                command=finding.command or "txnlog verify",
            )


def _upkeep(state: RootState) -> Iterator[Problem]:
    for topic, count in sorted(state.small_files.items()):
        if count >= SMALL_FILES_MIN:
            yield Problem(
                kind=ProblemKind.SMALL_FILES,
                subject=topic,
                why=f"{count} small files could be merged",
                ends="housekeeping, or jobs/compact.py, merges them",
                command=HOUSEKEEPING,
            )
    if state.unvacuumed:
        yield Problem(
            kind=ProblemKind.VACUUM_OVERDUE,
            subject=", ".join(sorted(state.unvacuumed)),
            why="files that nothing refers to are past the vacuum age",
            ends="vacuum, a duty of housekeeping, deletes them",
            since_ms=min(state.unvacuumed.values()),
            command=HOUSEKEEPING,
        )
    upkeep = state.upkeep
    if upkeep is not None:
        silent_ms = state.now_ms - upkeep.changed_ms
        is_dead = upkeep.holder and silent_ms > upkeep.slack_ms
        if is_dead or silent_ms > DAY_MS:
            who = f"{upkeep.holder} has not renewed its lease" if upkeep.holder else "nobody did it"
            yield Problem(
                kind=ProblemKind.NO_HOUSEKEEPING,
                subject="the root",
                why=f"{who} for {silent_ms // 1000} s: time-outs, retention, compaction and vacuum "
                "wait for it",
                ends="a process that does it, on any machine",
                since_ms=upkeep.changed_ms,
                command=HOUSEKEEPING,
                who=upkeep.holder,
            )
        for name, run in sorted(upkeep.duties.items()):
            if run.error:
                yield Problem(
                    kind=ProblemKind.DUTY_FAILED,
                    subject=name,
                    why=f"its last run failed: {run.error}",
                    ends="its next run, once the cause is gone",
                    since_ms=run.at_ms,
                    command=f"{HOUSEKEEPING} --status",
                    who=upkeep.holder,
                )
    if state.free_bytes is not None and state.free_bytes < FREE_BYTES_MIN:
        yield Problem(
            kind=ProblemKind.DISK_FULL,
            subject="the disk of the root",
            why=f"{state.free_bytes} bytes are free for this user on this machine",
            ends="more space (see `df`); writers try again meanwhile",
        )
