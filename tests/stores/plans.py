"""What the fault proxy does to requests: troubles, and plans that choose them."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tests.stores.messages import Request

LATE = "landed late"


class Trouble(Enum):
    """What happens to one request."""

    NONE = "none"
    REFUSE_500 = "500, nothing done"
    REFUSE_503 = "503, nothing done"
    REFUSE_409 = "409, nothing done"
    """S3's answer to a conditional put beside another one."""
    CUT = "connection cut before the request"
    FAIL_AFTER = "500 after success"
    SAY_EXISTS = "'exists' after success"
    """A conditional put that has succeeded is answered as if another had: 412, or Azure's 409."""
    LOSE_REPLY = "reply dropped"
    CUT_REPLY = "reply cut in the middle"
    LAND_LATE = "cut, and forwarded later"


@dataclass(frozen=True)
class Action:
    """A trouble, more latency than the proxy's own, and how late a late put is forwarded."""

    trouble: Trouble = Trouble.NONE
    latency_s: float = 0.0
    late_s: float = 2.0


WRITES = ("put", "create", "part", "complete", "delete")
CREATES = ("create",)
READS = ("get", "head", "list")
VERBS = {
    Trouble.REFUSE_500: READS + WRITES,
    Trouble.REFUSE_503: READS + WRITES,
    Trouble.REFUSE_409: CREATES,
    Trouble.CUT: READS + WRITES,
    Trouble.FAIL_AFTER: WRITES,
    Trouble.SAY_EXISTS: CREATES,
    Trouble.LOSE_REPLY: READS + WRITES,
    Trouble.CUT_REPLY: READS + WRITES,
    Trouble.LAND_LATE: ("put", "create"),
}
"""The verbs that a trouble makes sense for."""
_NOTHING = Action()


def no_trouble(request: Request) -> Action:
    """A plan in which nothing fails."""
    return _NOTHING


class RandomFaults:
    """A plan that draws a trouble for `rate` of the requests, of those that fit the verb.

    `write_rate` is that of writes, if not the same.
    `path` limits it to objects whose path, bucket first, the expression finds. One generator for
    all connections: the seed repeats the draws, and the order of requests is the clients'.
    """

    def __init__(
        self,
        seed: int,
        *,
        rate: float = 0.05,
        write_rate: float | None = None,
        troubles: Sequence[Trouble] = tuple(VERBS),
        path: str = "",
        late_s_max: float = 3.0,
        slow_s_max: float = 0.0,
    ) -> None:
        self._chosen = random.Random(seed)
        self._lock = threading.Lock()
        self._rates = {
            **dict.fromkeys(READS, rate),
            **dict.fromkeys(WRITES, rate if write_rate is None else write_rate),
        }
        self._fitting: Mapping[str, Sequence[Trouble]] = {
            verb: [one for one in troubles if verb in VERBS[one]] for verb in READS + WRITES
        }
        self._path = re.compile(path)
        self._late_s_max = late_s_max
        self._slow_s_max = slow_s_max

    def __call__(self, request: Request) -> Action:
        with self._lock:
            fitting = self._fitting.get(request.verb, ())
            if not fitting or not self._path.search(request.path):
                return _NOTHING
            slow_s = self._slow_s_max * self._chosen.random() ** 4
            if self._chosen.random() >= self._rates[request.verb]:
                return Action(latency_s=slow_s)
            trouble = self._chosen.choice(fitting)
            late_s = self._late_s_max * self._chosen.random()
            return Action(trouble, latency_s=slow_s, late_s=late_s)


class FaultsAt:
    """A plan by number: of the requests that fit, the n-th (0, 1, ...) meets `faults[n]`."""

    def __init__(
        self,
        faults: Mapping[int, Action],
        fits: Callable[[Request], bool] = lambda request: True,
    ) -> None:
        self._faults = faults
        self._fits = fits
        self._lock = threading.Lock()
        self.calls = 0

    def __call__(self, request: Request) -> Action:
        with self._lock:
            if not self._fits(request):
                return _NOTHING
            self.calls += 1
            return self._faults.get(self.calls - 1, _NOTHING)
