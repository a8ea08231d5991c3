"""Clients in real processes that are killed, while the proxy in front of their store has faults."""

from __future__ import annotations

import os
import random
from contextlib import closing
from pathlib import Path

from tests.soak.bounce import Bounce
from tests.soak.clients import Home
from tests.stores.plans import RandomFaults, no_trouble
from tests.stores.proxy import FaultProxy
from tests.stores.servers import Server
from tests.stores.verified import verify_place
from txnlog.testing.counts import count

DURATION_VARIABLE = "TXNLOG_SOAK_S"
DURATION_S = 600
OUTAGE_EVERY = 25
OUTAGE_S_MAX = 4.0
IMPATIENT = {"max_retries": "2", "init_backoff": "20ms", "timeout": "15s"}
"""By default the store library hides most faults by its own retries."""
RATE, WRITE_RATE = 0.03, 0.10


def duration_s() -> int:
    """How long each store is tested for: 10 minutes unless TXNLOG_SOAK_S says otherwise."""
    return int(os.environ.get(DURATION_VARIABLE) or DURATION_S)


def bounce_on(
    server: Server, folder: Path, seed: int, *, for_s: int, producers: int, copiers: int
) -> str:
    """Run clients amid kills and faults for so long; returns a line of figures.

    Raises AssertionError for an anomaly: see tests.soak.bounce, `txnlog verify` and the invariants.
    """
    chosen = random.Random(seed)
    place = server.place()
    with FaultProxy(server.port, latency_s=0.002) as proxy:
        through = server.place(place.url.rpartition("/")[2], port=proxy.port)
        home = Home(folder, place.url, dict(place.options))
        storage = {**through.options, **IMPATIENT}
        theirs = Home(folder, through.url, storage, is_faulty=True)
        bounce = Bounce(
            home, producers=producers, copiers=copiers, seed=seed, home_of_clients=theirs
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
        count("kills", f"client on {server.kind}, amid faults", bounce.kills)
        count("kills", f"zombie on {server.kind}, amid faults", bounce.sleeps)
        count("histories", "kills amid faults on a store's server, checked as one history")
        verify_place(place)
        requests, hit = sum(proxy.requests.values()), sum(proxy.faults.values())
        assert bounce.kills
        assert hit
    return f"{server.kind}: {figures}; {requests} requests of clients, {hit} with a fault"
