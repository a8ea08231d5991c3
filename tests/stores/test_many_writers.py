"""Many producers of one topic, which publish for one another, killed amid faults of a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.clients import SOURCES, Habit
from tests.stores.bounces import bounce_on, duration_s
from tests.stores.conftest import Servers

pytestmark = pytest.mark.stores

STEPS = {
    "prepare_commit.after": 6,
    "helping.rows": 2,
    "helping.after": 2,
    "marker.after": 6,
    "markers.after": 6,
    "offsets.after": 6,
}
WRITERS = [
    Habit(
        publish="eager" if number == 7 else "deferred",
        topics=SOURCES[: 1 + number % 2],
        group=f"counter-{number}" if number // 2 % 2 else "",
    )
    for number in range(8)
]
"""To one topic, or to two; half of them count what they have committed in a group."""


@pytest.mark.parametrize(
    "is_long",
    [pytest.param(False, id="short"), pytest.param(True, id="long", marks=pytest.mark.soak)],
)
def test_writers_of_one_topic_killed_as_they_help_leave_each_transaction_once_or_never(
    servers: Servers, tmp_path: Path, seed: int, is_long: bool
) -> None:
    """What one has decided another publishes, who dies before, between and after, or is suspended
    with old rows: all that was acknowledged is read once, whole, in one order (R44, R50, R79).
    """
    print(
        bounce_on(
            servers.get("versitygw"),
            tmp_path,
            seed,
            for_s=duration_s() if is_long else 8,
            producers=len(WRITERS),
            copiers=0,
            habits=WRITERS,
            steps=STEPS,
            latency_s=0.02,
        )
    )
