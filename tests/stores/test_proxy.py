"""The fault proxy does to requests what its plan says, and to nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.stores.conftest import Servers
from tests.stores.messages import Request
from tests.stores.plans import CREATES, VERBS, Action, FaultsAt, RandomFaults, Trouble
from tests.stores.proxy import FaultProxy
from tests.stores.servers import Server
from txnlog.errors import StorageError
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.counts import counted

REFUSED = (Trouble.REFUSE_500, Trouble.REFUSE_503, Trouble.CUT)
DONE = (Trouble.LOSE_REPLY, Trouble.CUT_REPLY, Trouble.FAIL_AFTER)


@pytest.fixture
def server(servers: Servers) -> Server:
    """The fake of GCS, which needs no installation."""
    return servers.get("gcs")


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def store(server: Server, proxy: FaultProxy) -> ObjectStore:
    return server.place(port=proxy.port).open(max_retries="0")


def at(number: int, trouble: Trouble, **more: float) -> FaultsAt:
    return FaultsAt({number: Action(trouble, **more)})


def test_without_faults_everything_passes(store: ObjectStore, proxy: FaultProxy) -> None:
    """A proxy that changed bytes would be taken for a broken store."""
    data = bytes(range(256)) * 40_000
    assert store.put_if_absent("a/b c", data)
    assert store.get("a/b c") == data
    assert [m.size_bytes for m in store.list("a")] == [len(data)]
    writer = store.open_writer("large")
    writer.write(data * 2)
    writer.close()
    assert store.get("large") == data * 2
    store.delete(["a/b c"])
    assert not proxy.faults
    assert proxy.requests["create"] == 1
    assert proxy.requests["part"] >= 2
    assert proxy.requests["complete"] == proxy.requests["list"] == proxy.requests["delete"] == 1


@pytest.mark.parametrize("trouble", REFUSED)
def test_refused_request_has_no_effect(
    store: ObjectStore, proxy: FaultProxy, trouble: Trouble
) -> None:
    proxy.plan = at(0, trouble)
    with pytest.raises(StorageError):
        store.put_if_absent("a", b"1")
    assert not store.exists("a")
    assert proxy.faults == {trouble.value: 1}
    assert counted()["faults"][f"proxy: {trouble.value}"]


@pytest.mark.parametrize("trouble", DONE)
def test_lost_reply_has_its_effect(store: ObjectStore, proxy: FaultProxy, trouble: Trouble) -> None:
    proxy.plan = at(0, trouble)
    with pytest.raises(StorageError):
        store.put_if_absent("a", b"1")
    assert store.get("a") == b"1"


def test_reply_is_cut_in_the_middle_of_an_object(store: ObjectStore, proxy: FaultProxy) -> None:
    """A short read must not pass for a whole object."""
    store.put("a", bytes(1_000_000))
    proxy.plan = at(0, Trouble.CUT_REPLY)
    with pytest.raises(StorageError):
        store.get("a")
    assert store.get("a") == bytes(1_000_000)


def test_exists_after_success_is_what_the_client_is_told(
    store: ObjectStore, proxy: FaultProxy
) -> None:
    """The library, or a store, repeats a put whose reply was lost, and finds its own object."""
    proxy.plan = at(0, Trouble.SAY_EXISTS)
    assert not store.put_if_absent("a", b"1")
    assert store.get("a") == b"1"
    assert not store.put_if_absent("a", b"2")


def test_repeated_put_finds_itself(server: Server, proxy: FaultProxy) -> None:
    """The same without a lie of the store: 500 after success, repeated by the library."""
    proxy.plan = at(0, Trouble.FAIL_AFTER)
    store = server.place(port=proxy.port).open(max_retries="1")
    assert not store.put_if_absent("a", b"1")
    assert store.get("a") == b"1"
    assert proxy.requests["create"] == 2


def test_late_put_lands_after_its_error(store: ObjectStore, proxy: FaultProxy) -> None:
    proxy.plan = at(0, Trouble.LAND_LATE, late_s=0.3)
    with pytest.raises(StorageError):
        store.put_if_absent("a", b"late")
    assert not store.exists("a")
    proxy.land_late()
    assert store.get("a") == b"late"


def test_late_put_loses_against_an_earlier_one(store: ObjectStore, proxy: FaultProxy) -> None:
    proxy.plan = at(0, Trouble.LAND_LATE, late_s=0.3)
    with pytest.raises(StorageError):
        store.put_if_absent("a", b"late")
    assert store.put_if_absent("a", b"early")
    proxy.land_late()
    assert store.get("a") == b"early"


def test_outage_ends(store: ObjectStore, proxy: FaultProxy) -> None:
    store.put("a", b"1")
    proxy.outage(60)
    with pytest.raises(StorageError):
        store.get("a")
    proxy.outage(0)
    assert store.get("a") == b"1"


def test_latency_is_added_to_each_request(store: ObjectStore, proxy: FaultProxy) -> None:
    proxy.latency_s = 0.05
    begun_s = time.monotonic()
    for _ in range(4):
        store.exists("a")
    assert time.monotonic() - begun_s >= 0.2


def test_random_faults_are_those_of_their_seed(seed: int) -> None:
    """A failure is replayed by its seed, as far as the order of requests is the same."""

    def draw(of: int) -> list[Action]:
        plan = RandomFaults(of, rate=0.5, path="/t/")
        return [plan(request) for request in requests]

    requests = [
        Request(method, f"/bucket/t/{n}", {"if-none-match": "*"}, b"", b"")
        for n in range(200)
        for method in ("GET", "PUT", "DELETE")
    ]
    assert draw(seed) == draw(seed)
    assert draw(seed) != draw(seed + 1)
    for request, action in zip(requests, draw(seed), strict=True):
        assert action.trouble is Trouble.NONE or request.verb in VERBS[action.trouble]
    assert {action.trouble for action in draw(seed)} == set(Trouble)
    elsewhere = Request("PUT", "/bucket/u/1", {}, b"", b"")
    assert RandomFaults(seed, rate=1, path="/t/")(elsewhere) == Action()
    assert CREATES == ("create",)
