"""Clients in real processes that are killed, while the proxy in front of their store has faults."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from tests.soak.bounce import HABITS, Bounce
from tests.soak.clients import SOURCES, Habit, Home
from tests.stores.plans import RandomFaults, no_trouble
from tests.stores.proxy import FaultProxy
from tests.stores.servers import Place, Server
from tests.stores.verified import verify_place
from txnlog.protocol.verification.findings import FindingKind
from txnlog.testing.counts import count

DURATION_VARIABLE = "TXNLOG_SOAK_S"
DURATION_S = 600
OUTAGE_EVERY = 25
OUTAGE_S_MAX = 4.0
IMPATIENT = {"max_retries": "2", "init_backoff": "20ms", "timeout": "15s"}
"""By default the store library hides most faults by its own retries."""
RATE, WRITE_RATE = 0.03, 0.10
_MARKER = re.compile(r'"appId":"txnlog/\d+"')


def duration_s() -> int:
    """How long each store is tested for: 10 minutes unless TXNLOG_SOAK_S says otherwise."""
    return int(os.environ.get(DURATION_VARIABLE) or DURATION_S)


def bounce_on(
    server: Server,
    folder: Path,
    seed: int,
    *,
    for_s: int,
    producers: int,
    copiers: int,
    habits: Sequence[Habit] = HABITS,
    steps: Mapping[str, int] = {},
    latency_s: float = 0.002,
) -> str:
    """Run clients amid kills and faults for so long; returns a line of figures.

    Raises AssertionError for an anomaly: see tests.soak.bounce, `txnlog verify` and the invariants.
    """
    chosen = random.Random(seed)
    place = server.place()
    with FaultProxy(server.port, latency_s=latency_s) as proxy:
        through = server.place(place.url.rpartition("/")[2], port=proxy.port)
        home = Home(folder, place.url, dict(place.options))
        storage = {**through.options, **IMPATIENT}
        theirs = Home(folder, through.url, storage, is_faulty=True)
        bounce = Bounce(
            home,
            producers=producers,
            copiers=copiers,
            seed=seed,
            home_of_clients=theirs,
            habits=habits,
            steps=steps,
        )

        def disturb(number: int) -> None:
            proxy.plan = faults
            if number % OUTAGE_EVERY == 0:
                proxy.outage(OUTAGE_S_MAX * chosen.random())

        faults = RandomFaults(
            seed, rate=RATE, write_rate=WRITE_RATE, slow_s_max=0.3, late_s_max=9.0
        )
        with closing(bounce):
            bounce.run(for_s, disturb=disturb)
            proxy.plan = no_trouble
            proxy.land_late()
            bounce.finish()
        figures = bounce.verdict()
        who = "writer of one topic" if steps else "client"
        zombie = "zombie writer of one topic" if steps else "zombie"
        count("kills", f"{who} on {server.kind}, amid faults", bounce.kills)
        count("kills", f"{zombie} on {server.kind}, amid faults", bounce.sleeps)
        for step, died in bounce.died.items():
            count("kills", f"{who} on {server.kind}, at {step}", died)
        count("histories", "kills amid faults on a store's server, checked as one history")
        # Of a group that counts.
        verify_place(place, expected=[FindingKind.OFFSET_WITHOUT_PARTITION])
        requests, hit = sum(proxy.requests.values()), sum(proxy.faults.values())
        assert bounce.kills
        assert hit
        carried = carried_markers(place)
        assert not steps or carried, "no commit carried a transaction of another"
    return (
        f"{server.kind}: {figures}; {requests} requests of clients, {hit} with a fault; at steps "
        f"{dict(bounce.died)}; {carried} transactions carried by commits of others"
    )


def carried_markers(place: Place) -> int:
    """Of all commits of a topic: how many markers more than one they have."""
    store = place.open()
    names = [meta.path for meta in store.list(f"{SOURCES[0]}/_delta_log")]
    commits = [store.get(name).decode() for name in names if name.endswith(".json")]
    return sum(max(0, len(_MARKER.findall(commit)) - 1) for commit in commits)
