"""The supervisor with a fake Spark: a script that "commits" a row at a time."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from flights_display import Display
from flights_driver import INHERITED, DriverError, DriverProcess
from flights_kills import parse_kills, plan_kills
from flights_supervisor import Supervisor
from rich.console import Console

TOTAL = 1_000

# `stream` appends a row every 20 ms, so that it is not done before it is killed; the last one,
# which is not killed, does not pause. It is killed as at a fail point, and leaves Spark's files.
STAND_IN = """
import json, os, signal, sys, time
from pathlib import Path

def option(name):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None

command, root = sys.argv[1], Path(option("--root"))
root.mkdir(parents=True, exist_ok=True)
rows = root / "rows"
rows.touch()
print(command, "at", rows.stat().st_size, flush=True)
if command == "feed":
    sys.exit(int(os.environ.get("FEEDER_EXIT", "0")))
if command == "check":
    zeros = dict.fromkeys(["missing", "duplicates", "unexpected", "misplaced", "wrong_keys",
        "out_of_order", "scattered_keys", "offset_gaps"], 0)
    delivery = dict(reader="txnlog", rows=rows.stat().st_size, fingerprint="", **zeros)
    report = dict(deliveries=[delivery], rows_by_topic={}, transactions=1, problems=[])
    Path(option("--report")).write_text(json.dumps(report))
    sys.exit(0)
checkpoint = Path(option("--checkpoint"))
for folder in ("offsets", "commits"):
    (checkpoint / folder).mkdir(parents=True, exist_ok=True)
place, _, count = os.environ.get("TXNLOG_FAILPOINT", "").partition("@")
hits = 0
while rows.stat().st_size < int(os.environ["TOTAL"]):
    if os.environ.get("CRASH"):
        sys.exit("the driver's own error")
    batch = str(rows.stat().st_size)
    (checkpoint / "offsets" / batch).touch()
    with rows.open("a") as file:
        file.write("x")
    hits += 1
    if place:
        with open(os.environ["TXNLOG_FAILPOINT_STATE"], "a") as state:
            state.write("x")
        if hits == int(count.split(":")[0]):
            os.kill(os.getpid(), signal.SIGKILL)
    if not os.environ.get("EAGER_COMMITS"):
        (checkpoint / "commits" / batch).touch()
    if "--available-now" not in sys.argv:
        time.sleep(0.02)
if "--available-now" not in sys.argv:
    time.sleep(60)
"""

# What `txnlog housekeeping --once --output json` prints, after a warning.
HOUSEKEEPING = """
import json, os, sys
print("a warning", file=sys.stderr, flush=True)
if "KEEPER_EXIT" in os.environ:
    sys.exit(int(os.environ["KEEPER_EXIT"]))
print(json.dumps([{"DUTY": "files compacted", "COUNT": 12}, {"DUTY": "other", "COUNT": 3}]))
"""

Make = Callable[..., Supervisor]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A supervisor of the fake Spark, with extra environment for its drivers."""
    monkeypatch.setattr("flights_kills.DELAY_MS_MAX", 60)

    def build(**extra: str) -> Supervisor:
        def start(arguments: Sequence[str], own: dict[str, str], log: Path) -> DriverProcess:
            inherited = {k: v for k, v in os.environ.items() if k not in INHERITED}
            environment = {**inherited, "TOTAL": str(TOTAL), **extra, **own}
            return DriverProcess([sys.executable, "-c", STAND_IN, *arguments], environment, log)

        def start_txnlog(arguments: Sequence[str], log: Path) -> DriverProcess:
            command = [sys.executable, "-c", HOUSEKEEPING, *arguments]
            return DriverProcess(command, {**os.environ, **extra}, log)

        rows = tmp_path / "txnlog" / "rows"
        console = Console(file=io.StringIO(), force_terminal=False)
        return Supervisor(
            tmp_path,
            TOTAL,
            Display(TOTAL, console),
            start,
            start_txnlog,
            lambda: rows.stat().st_size if rows.exists() else 0,
            6_000,
        )

    return build


def run(supervisor: Supervisor, kills: str, seed: int = 1) -> str:
    try:
        supervisor.feed(None)
        supervisor.run(plan_kills(parse_kills(kills), seed))
    finally:
        supervisor.close()
    file = supervisor._display.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_supervisor_kills_as_planned_and_finishes(make: Make, tmp_path: Path) -> None:
    """Every kill happens, each driver continues where the last was killed, the last one ends."""
    supervisor = make()
    output = run(supervisor, "random,sink_commit.after,random,offsets.after")
    assert supervisor.tally.kills == 4
    assert output.count("SIGKILL") == 4
    assert (tmp_path / "txnlog" / "rows").stat().st_size == TOTAL
    assert sorted(file.stem for file in (tmp_path / "logs").glob("driver-*.log")) == [
        f"driver-{number}" for number in range(1, 6)
    ]
    report = supervisor.check(None)
    assert report.ok
    assert report.delivery("txnlog").rows == TOTAL
    supervisor.close()


def test_supervisor_lost_checkpoint_means_a_new_folder(make: Make, tmp_path: Path) -> None:
    """The query after a lost checkpoint must not find a trace of it (R59)."""
    output = run(make(), "offsets.after+lost-checkpoint,offsets.after")
    assert not (tmp_path / "checkpoint-1").exists()
    assert (tmp_path / "checkpoint-2").exists()
    assert "the checkpoint deleted" in output


def test_supervisor_kill_that_left_other_traces_fails(make: Make) -> None:
    """A successful demo must have killed at the named place: here nothing was prepared."""
    with pytest.raises(DriverError, match=r"Killed at marker\.after, but on disk: every decided"):
        run(make(), "marker.after")


def test_supervisor_driver_that_fails_by_itself_fails_the_demo(make: Make) -> None:
    """An error is not a kill; the end of the log shows the error."""
    with pytest.raises(DriverError, match="the driver's own error"):
        run(make(CRASH="1"), "random")
    with pytest.raises(DriverError, match=r"not at offsets\.after@"):
        run(make(CRASH="1"), "offsets.after")


def test_supervisor_last_driver_that_fails_fails_the_demo(make: Make) -> None:
    """Also without a kill."""
    with pytest.raises(DriverError, match="exit code 1"):
        run(make(CRASH="1"), "")


def test_supervisor_failed_feeder_stops_the_run(make: Make) -> None:
    """Without input the drivers would wait for ever."""
    with pytest.raises(DriverError, match=r"feeder failed with exit code 3(.|\n)*feed at"):
        run(make(FEEDER_EXIT="3"), "random")


def test_supervisor_more_kills_than_work_is_an_error(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo must not wait silently for a kill that cannot happen any more."""
    monkeypatch.setattr("flights_supervisor.STALL_S_MAX", 0.5)
    with pytest.raises(DriverError, match="lower --max-offsets-per-trigger"):
        run(make(TOTAL="1"), "random,random,random")


def test_supervisor_open_transaction_at_the_end_is_a_problem(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows may be published while a transaction is still open."""
    supervisor = make()
    run(supervisor, "")
    monkeypatch.setattr("flights_supervisor.unsettled_transactions", lambda _: 1)
    assert supervisor.check(None).problems == ("transaction state: 1 transactions are open",)
    supervisor.close()


def test_supervisor_reports_what_housekeeping_did(make: Make) -> None:
    """If it fails, the error has the end of its log."""
    supervisor = make()
    run(supervisor, "")
    supervisor.run_housekeeping()
    assert supervisor.tally.files_compacted == 12
    failing = make(KEEPER_EXIT="4")
    run(failing, "")
    with pytest.raises(DriverError, match=r"exit code 4(.|\n)*a warning"):
        failing.run_housekeeping()


def test_display_without_terminal_prints_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CI log shows no bar, so the display prints a progress line at intervals."""
    monkeypatch.setattr("flights_display.LINE_EVERY_S", 0.0)
    file = io.StringIO()
    with Display(10, Console(file=file, force_terminal=False)) as display:
        display.status("driver 1 splitting", 5)
    assert "driver 1 splitting: 5 of 10 flights" in file.getvalue()
    assert "\x1b" not in file.getvalue()


def test_display_on_a_terminal_draws_a_bar() -> None:
    """The progress bar the demo promises."""
    file = io.StringIO()
    with Display(10, Console(file=file, force_terminal=True, width=100)) as display:
        display.status("driver 1 splitting", 5)
        display.event("kill 1")
    assert "driver 1 splitting" in file.getvalue()
    assert "5/10" in file.getvalue()
    assert "kill 1" in file.getvalue()
