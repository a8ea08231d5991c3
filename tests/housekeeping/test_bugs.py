"""A bug in one duty, or in a sweep, ends neither the other duties nor a consumer's poll."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.world import process, world
from txnlog.consumer import Consumer
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import ConfigError
from txnlog.housekeeping.housekeeper import Housekeeper, HousekeepingSettings
from txnlog.messages import TopicPartition


def bug(*_: object) -> int:
    raise ZeroDivisionError("a bug")


def test_bug_in_one_duty_does_not_stop_the_others() -> None:
    """The housekeeper ended, and with it retention, compaction and vacuum of all topics."""
    keeper = Housekeeper(process(world()))
    done = []
    first, *others = keeper._duties
    first.act = bug
    for duty in others:
        duty.act = lambda name=duty.name: done.append(name) or 0  # type: ignore[misc,func-returns-value]
        duty.is_unfinished = None
    keeper.step()
    assert done == [duty.name for duty in others]


def test_bug_while_the_lease_is_taken_does_not_end_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is retried, like after any other error."""
    keeper = Housekeeper(process(world()))
    stop, times = threading.Event(), []

    def failing() -> int:
        times.append(1)
        if len(times) > 1:
            stop.set()
        return bug()

    monkeypatch.setattr(keeper._lease, "take", failing)
    monkeypatch.setattr(stop, "wait", lambda _: keeper._clock.sleep_ms(60_000))
    keeper.run(stop)
    assert len(times) == 2


def test_bug_in_a_sweep_is_not_the_caller_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that only reads sweeps for others."""
    monkeypatch.setattr(Sweeper, "sweep", bug)
    made = Consumer({}, cluster=process(world()), background=False)
    made.assign([TopicPartition("orders", 0, 0)])
    assert made.poll(0) is None


@pytest.mark.parametrize("name", ["lease_ms", "vacuum_age_ms", "abort_interval_ms"])
@pytest.mark.parametrize("wrong", [1.5, 60_000.0, True, "60000", -1, 2**63, None])
def test_setting_that_is_no_time_is_refused(name: str, wrong: Any) -> None:
    """A lease of 1.5 ms was written, and no other housekeeper could read it."""
    with pytest.raises((TypeError, ConfigError), match=name):
        HousekeepingSettings(**{name: wrong})
    settings = HousekeepingSettings(lease_ms=np.int64(5_000), log_retention_ms=None)  # type: ignore[arg-type]
    assert type(settings.lease_ms) is int
