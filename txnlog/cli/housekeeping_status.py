"""`txnlog housekeeping --status`: who does it, what was done last, and what is overdue."""

from __future__ import annotations

from txnlog.admin import HousekeepingDescription
from txnlog.cli.problem_lines import problem_lines
from txnlog.cli.session import Session
from txnlog.cli.times import format_time
from txnlog.protocol.duties import DutyRun
from txnlog.protocol.problems import ProblemKind, Upkeep, problem_values

DUTIES = ("DUTY", "LAST-RUN", "COUNT", "RESULT", "DUE")
TABLES = ("TABLE", "VERSION", "CHECKPOINT", "FILES", "SMALL-FILES", "BYTES", "VACUUMED")


def show_status(session: Session, found: HousekeepingDescription) -> None:
    """One verdict, then the lease, the problems, the duties and the tables."""
    if session.is_json:
        session.show_json(_values(found))
        return
    failed = sum(one.kind is ProblemKind.DUTY_FAILED for one in found.problems)
    late = len(found.problems) - failed + len(found.overdue)
    session.say(f"{late or 'Nothing'} overdue, {failed or 'nothing'} failed.")
    session.say(_holder(found.upkeep))
    for problem in found.problems:
        session.say("")
        for line in problem_lines(session, problem):
            session.say(line)
    session.say("")
    runs = found.upkeep.duties.items()
    session.show(DUTIES, [_duty(name, run, name in found.overdue) for name, run in runs])
    session.say("")
    session.show(
        TABLES,
        [
            (
                one.table,
                one.version,
                None if one.checkpoint_version < 0 else one.checkpoint_version,
                one.num_files,
                one.small_files,
                one.size_bytes,
                format_time(one.vacuumed_ms),
            )
            for one in found.tables
        ],
    )


def _holder(upkeep: Upkeep) -> str:
    since = f", since {format_time(upkeep.since_ms)}" if upkeep.since_ms >= 0 else ""
    if not upkeep.holder:
        return f"Nobody holds the lease{since}."
    renewed = format_time(upkeep.changed_ms)
    return f"{upkeep.holder} holds the lease{since}; renewed {renewed}."


def _duty(name: str, run: DutyRun, is_overdue: bool) -> tuple[object, ...]:
    due = f"{format_time(run.due_ms)}{' (overdue)' if is_overdue else ''}"
    return name, format_time(run.at_ms), run.count, run.error or "done", due


def _values(found: HousekeepingDescription) -> dict[str, object]:
    upkeep = found.upkeep
    return {
        "holder": upkeep.holder or None,
        "sinceMs": _known(upkeep.since_ms),
        "renewedMs": _known(upkeep.changed_ms),
        "leaseMs": upkeep.lease_ms,
        "duties": [
            {
                "duty": name,
                "lastRunMs": run.at_ms,
                "count": run.count,
                "error": run.error or None,
                "dueMs": run.due_ms,
                "isOverdue": name in found.overdue,
            }
            for name, run in upkeep.duties.items()
        ],
        "problems": [problem_values(problem) for problem in found.problems],
        "tables": [
            {
                "table": one.table,
                "version": one.version,
                "checkpointVersion": _known(one.checkpoint_version),
                "files": one.num_files,
                "smallFiles": one.small_files,
                "sizeBytes": one.size_bytes,
                "vacuumedMs": _known(one.vacuumed_ms),
                "vacuumAgeMs": one.vacuum_age_ms,
            }
            for one in found.tables
        ],
    }


def _known(number: int) -> int | None:
    return None if number < 0 else number
