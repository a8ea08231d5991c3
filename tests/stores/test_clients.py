"""The Python clients, the operators' client and housekeeping on servers of stores, end to end."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.stores.plans import RandomFaults, no_trouble
from tests.stores.proxy import FaultProxy
from tests.stores.servers import Place, Server
from tests.stores.verified import verify_place
from tests.stores.worlds import IMPATIENT
from tests.verify.roots import GROUP, ORDERS, STOCK, build
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import TxnLogError
from txnlog.housekeeping import age_gate
from txnlog.housekeeping.housekeeper import Housekeeper, HousekeepingSettings
from txnlog.messages import OFFSET_BEGINNING, Message, TopicPartition
from txnlog.storage.store.objects import ObjectStore

DAY_MS = 86_400_000
KEPT = {"retention.ms": "-1", "min.compaction.lag.ms": "0"}
COMMITTED = {ORDERS: Counter({b"plain": 16, b"in a transaction": 26}), STOCK: 13}
"""What `build` commits in 8 rounds: 16 plain records and 13 transactions over both topics."""
RUNS_MAX = 20
READ_S_MAX = 300
LEASE_MS = 1_000


def values(place: Place, isolation: str = "read_committed") -> dict[str, Counter[bytes]]:
    """What a new reader gets from each topic."""
    found = {}
    config = {**place.settings, "isolation.level": isolation, "auto.offset.reset": "earliest"}
    with Consumer(config) as reader:
        for topic, partitions in ((ORDERS, 2), (STOCK, 1)):
            places = [TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(partitions)]
            reader.assign(places)
            found[topic] = Counter(m.value() or b"" for m in read_to_end(reader, places))
    return found


def read_to_end(reader: Consumer, places: list[TopicPartition]) -> Iterator[Message]:
    """All there is, without waiting for more."""
    ends = [reader.get_watermark_offsets(place)[1] for place in places]
    deadline_s = time.monotonic() + READ_S_MAX
    while any(at.offset < end for at, end in zip(reader.position(places), ends, strict=True)):
        assert time.monotonic() < deadline_s, f"{reader.position(places)} of {ends}"
        yield from reader.consume(10_000, 0.2)


def check_values(place: Place) -> None:
    """The committed records, and as many copies as the copier has made."""
    found = values(place)
    assert found[ORDERS] == COMMITTED[ORDERS]
    assert found[STOCK][b"stock"] == COMMITTED[STOCK]
    assert found[STOCK].total() == 13 + 8


def test_clients_end_to_end(any_server: Server) -> None:
    """Producers of each kind, a group with transactions, an operator's questions, verify."""
    place = any_server.place()
    build(place.url, place.options)
    check_values(place)
    assert values(place, "read_uncommitted")[ORDERS].total() > 42
    admin = AdminClient(place.settings)
    assert set(admin.list_topics().topics) >= {ORDERS, STOCK}
    cluster = place.open_cluster()
    assert cluster.groups.fetch(GROUP) == {ORDERS: {0: 9}}
    verify_place(place)
    admin.delete_topics([STOCK])[STOCK].result()
    assert cluster.list_topics() == [ORDERS]
    verify_place(place)


def test_clients_survive_faults(server: Server, proxy: FaultProxy, seed: int) -> None:
    """The library's own retries hide most; what they do not, the clients settle (R2, R28)."""
    place = server.place()
    through = server.place(place.url.rpartition("/")[2], port=proxy.port)
    proxy.plan = RandomFaults(seed, rate=0.02, write_rate=0.05, late_s_max=2.0)
    retries = {"init_backoff": "10ms", "max_backoff": "50ms"}
    try:
        build(through.url, {**through.options, **retries})
    except TxnLogError as error:
        # A call that is not repeated here may fail, with what a client may repeat.
        if not (error.retriable or error.abortable):
            raise
    finally:
        proxy.plan = no_trouble
        proxy.land_late()
    # A fault may have ended it before there was a cluster.
    if place.open().list("__cluster/_delta_log"):
        verify_place(place, settled=False)


@pytest.mark.parametrize("has_faults", [False, True])
def test_housekeeping_removes_what_is_old_and_keeps_what_is_read(
    server: Server,
    proxy: FaultProxy,
    seed: int,
    has_faults: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compaction, log clean-up, vacuum: all readers get what they got before (R12, R24, R70)."""
    # Otherwise deletion by age begins after an hour in which the store's clock was watched.
    monkeypatch.setattr(age_gate, "may_trust_ages", lambda store: True)
    place = server.place()
    build(place.url, place.options, config=KEPT)
    stray = f"{ORDERS}/part-0-{'0' * 32}.parquet"
    place.open().put(stray, b"staged by a process that died")
    before = len(place.open().list(""))
    through = server.place(place.url.rpartition("/")[2], port=proxy.port)
    if has_faults:
        proxy.plan = RandomFaults(seed, rate=0.01, write_rate=0.05, late_s_max=2.0)
    done = Counter[str]()
    for days in (0, 9, 18):
        keep_house(lambda d=days: opened_later(through, d), done)  # type: ignore[misc]
    proxy.plan = no_trouble
    proxy.land_late()
    keep_house(lambda: opened_later(place, 27), done)
    # What a run did before the store failed it is not in its counts.
    for duty in ("files compacted", "log files cleaned up", "files vacuumed"):
        assert done[duty] or has_faults, done
    assert not place.open().exists(stray)
    assert len(place.open().list("")) < before
    check_values(place)
    verify_place(place)


def keep_house(opened: Callable[[], Cluster], done: Counter[str]) -> None:
    """Every duty once, again while the store fails; adds to what was done."""
    keeper: Housekeeper | None = None
    for _ in range(RUNS_MAX):
        try:
            keeper = keeper or Housekeeper(opened(), HousekeepingSettings(lease_ms=LEASE_MS))
            found = keeper.run_once()
        except TxnLogError as error:
            if not error.retriable:
                raise
            continue
        if found is not None:
            keeper.close()
            done.update(found)
            return
        # Another run could not release the lease; this one must watch it for so long.
        time.sleep(LEASE_MS / 1_000)
    raise AssertionError(f"housekeeping did not succeed in {RUNS_MAX} runs")


class LaterStore(ObjectStore):
    """A store whose clock is ahead, so that everything in it is old."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def opened_later(place: Place, days: int) -> Cluster:
    store = LaterStore.from_url(place.url, {**place.options, **IMPATIENT, "max_retries": "3"})
    assert isinstance(store, LaterStore)
    store.ahead_ms = days * DAY_MS
    return Cluster.open(store)


def test_places_are_apart(any_server: Server) -> None:
    """Two roots in one bucket, of which one's name begins with the other's."""
    first = any_server.place(f"apart-{os.getpid()}")
    second = any_server.place(f"apart-{os.getpid()}0")
    first.open_cluster(create=True).create_topic("a", partitions=1)
    second.open_cluster(create=True).create_topic("b", partitions=1)
    assert first.open_cluster().list_topics() == ["a"]
    assert second.open_cluster().list_topics() == ["b"]
