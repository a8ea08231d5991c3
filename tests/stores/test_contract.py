"""The contract of ObjectStore on servers of S3, Azure and (a fake of) Google Cloud Storage."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.stores.servers import Place, Server
from txnlog.errors import ObjectNotFoundError, StorageError, StorePermissionError
from txnlog.storage.store.clock import check_conditional_puts
from txnlog.storage.store.objects import ObjectStore

SPAWN = multiprocessing.get_context("spawn")
ODD_NAMES = (
    "a b", "plus+sign", "per%cent", "per%20cent", "equals=sign", "a=1/b=2/c", "ä/ö/ü", "日本/語",
    "quote'", 'double"', "amp&ersand", "semi;colon", "comma,", "at@", "tilde~", "(brackets)",
    "dollar$", "excl!", "dot.dot", "-", "_", "~/.x", "a" * 200,
)  # fmt: skip
RACERS, SLOTS = 4, 25
MIB = 1 << 20


@pytest.fixture
def store(any_server: Server) -> ObjectStore:
    return any_server.place().open()


def test_put_get_head_list_delete_round_trip(store: ObjectStore) -> None:
    """Every store must look the same to the layers above."""
    store.put("a/one", b"1")
    store.put("a/one", b"11")
    store.put_new("a/deep/two", b"2")
    store.put("b/three", b"")
    assert store.get("a/one") == b"11"
    assert store.get("b/three") == b""
    assert store.head("a/one")[:2] == ("a/one", 2)
    assert store.exists("a/one")
    assert not store.exists("a")
    assert sorted(m.path for m in store.list("a")) == ["a/deep/two", "a/one"]
    assert {m.path: m.size_bytes for m in store.list("")} == {
        "a/one": 2,
        "a/deep/two": 1,
        "b/three": 0,
    }
    assert [m.path for m in store.list("a", start_after="a/deep/two")] == ["a/one"]
    assert [m.path for m in store.list_files("a")] == ["a/one"]
    assert sorted(store.list_folders()) == ["a", "b"]
    assert store.list("nothing") == []
    assert store.list_files("nothing") == []
    store.delete(["a/one", "a/one", "never/there"])
    assert not store.exists("a/one")
    for miss in (store.get, store.head):
        with pytest.raises(ObjectNotFoundError, match="a/one"):
            miss("a/one")
    with pytest.raises(ObjectNotFoundError, match="a/one"):
        store.open_reader("a/one").read()


def test_prefixes_end_at_names_of_folders(store: ObjectStore) -> None:
    """A listing of "a" that showed "ab/..." would give one topic the files of another."""
    for path in ("a/1", "ab/1", "a-b/1", "a.b", "A/1"):
        store.put(path, b"")
    assert [m.path for m in store.list("a")] == ["a/1"]
    assert [m.path for m in store.list_files("a")] == ["a/1"]


def test_put_if_absent_keeps_the_first(store: ObjectStore) -> None:
    """The log depends on it (D1)."""
    assert store.put_if_absent("slot", b"first")
    assert not store.put_if_absent("slot", b"second")
    assert store.get("slot") == b"first"
    store.delete(["slot"])
    assert store.put_if_absent("slot", b"third")
    assert store.get("slot") == b"third"


def test_probe_accepts_the_store_and_leaves_nothing(store: ObjectStore) -> None:
    """A store without conditional puts is refused when a root is made (R69)."""
    check_conditional_puts(store, "__cluster")
    assert store.list("") == []


def race(place: Place, name: str, start: str) -> None:
    """Put a racer's name into every slot, and write down the slots it has got."""
    store = place.open()
    store.get("go")
    Path(start, name).touch()
    while not Path(start, "go").exists():
        time.sleep(0.001)
    won = [n for n in range(SLOTS) if store.put_if_absent(f"slots/{n:03}", f"{name} {n}".encode())]
    Path(start, f"won-{name}").write_text(" ".join(map(str, won)))


def test_put_if_absent_of_several_processes_has_one_winner(
    any_server: Server, tmp_path: Path
) -> None:
    """Two winners of one slot would be two commits of one version (D1)."""
    if any_server.kind == "moto":
        pytest.skip("moto looks and then writes, without a lock; nothing but tests uses it")
    place = any_server.place()
    place.open().put("go", b"")
    names = [f"racer{n}" for n in range(RACERS)]
    racers = [SPAWN.Process(target=race, args=(place, name, str(tmp_path))) for name in names]
    for racer in racers:
        racer.start()
    while not all((tmp_path / name).exists() for name in names):
        assert all(racer.is_alive() for racer in racers)
        time.sleep(0.01)
    (tmp_path / "go").touch()
    for racer in racers:
        racer.join(600)
        assert racer.exitcode == 0
    won = {name: (tmp_path / f"won-{name}").read_text().split() for name in names}
    winners = Counter(n for slots in won.values() for n in slots)
    assert winners == Counter(str(n) for n in range(SLOTS))
    store = place.open()
    for name, slots in won.items():
        for n in slots:
            assert store.get(f"slots/{int(n):03}") == f"{name} {n}".encode()


def test_list_of_more_than_a_page_is_whole_and_starts_after(server: Server) -> None:
    """Stores answer with 1,000 keys (Azure 5,000); a log of a day has more.

    Azurite ignores where a listing should start, as Azure's older versions do.
    """
    store = server.place().open()
    paths = [f"log/{n:020}.json" for n in range(1_203)]
    store.together([partial(store.put, path, b"{}") for path in paths])
    assert sorted(m.path for m in store.list("log")) == paths
    assert sorted(m.path for m in store.list_files("log")) == paths
    for at in (0, 500, 999, 1_000, 1_201, 1_202):
        found = store.list("log", start_after=paths[at])
        assert sorted(m.path for m in found) == paths[at + 1 :]
    between = store.list("log", start_after=paths[7] + ".x")
    assert sorted(m.path for m in between) == paths[8:]
    store.delete(paths)
    assert store.list("log") == []


def test_get_many_keeps_the_order(store: ObjectStore) -> None:
    """Commits fetched side by side are applied one after the other."""
    paths = [f"x/{n:03}" for n in range(80)]
    store.together([partial(store.put, path, path.encode()) for path in paths])
    assert store.get_many(paths) == [path.encode() for path in paths]
    with pytest.raises(ObjectNotFoundError, match="x/999"):
        store.get_many([*paths, "x/999"])


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_kept(store: ObjectStore, name: str) -> None:
    """Clients escape names in urls, signatures and listings, each in its own way."""
    path = f"odd/{name}"
    assert store.put_if_absent(path, name.encode())
    assert not store.put_if_absent(path, b"")
    assert store.get(path) == name.encode()
    assert store.head(path).path == path
    assert [m.path for m in store.list("odd")] == [path]
    assert store.list("odd", start_after=path) == []
    with_slash = name.rpartition("/")[0]
    assert [m.path for m in store.list_files(f"odd/{with_slash}".rstrip("/"))] == [path]
    store.delete([path])
    assert not store.exists(path)


@pytest.mark.parametrize("size_bytes", [0, 1, 5 * MIB, 23 * MIB + 17])
def test_open_writer_writes_one_object_of_any_size(store: ObjectStore, size_bytes: int) -> None:
    """Data files are streamed; large ones become multipart uploads."""
    data = os.urandom(size_bytes)
    writer = store.open_writer("a/file")
    for start in range(0, size_bytes, 3 * MIB):
        writer.write(data[start : start + 3 * MIB])
    assert not store.exists("a/file")
    writer.close()
    assert store.head("a/file").size_bytes == size_bytes
    assert store.get("a/file") == data
    reader = store.open_reader("a/file")
    for at in (0, size_bytes // 2, max(0, size_bytes - 8)):
        reader.seek(at)
        assert bytes(reader.read(8)) == data[at : at + 8]


def test_put_of_a_large_object_is_read_back(store: ObjectStore) -> None:
    """A checkpoint of a table of many files is tens of megabytes, put at once."""
    data = os.urandom(40 * MIB)
    assert store.put_if_absent("large", data)
    assert not store.put_if_absent("large", b"")
    assert store.get("large") == data
    store.put("large", memoryview(data)[:100])
    assert store.get("large") == data[:100]


def test_now_is_the_stores_time(store: ObjectStore) -> None:
    """The server runs on this machine, and its times have seconds (D14)."""
    before_ms = int(time.time() * 1_000)
    found_ms = store.now_ms()
    assert before_ms - 2_000 <= found_ms <= time.time() * 1_000 + 2_000
    assert store.list("") == []


def test_wrong_credentials_are_a_permission_error(any_server: Server) -> None:
    """The error says that, and its text has no secret."""
    if any_server.kind == "moto":
        pytest.skip("moto checks no signatures")
    place = any_server.place()
    wrong = {
        "versitygw": {"aws_secret_access_key": "wrong"},
        "azurite": {"azure_storage_account_key": "d3Jvbmc="},
        "gcs": {"google_bearer_token": "wrong"},
    }[any_server.kind]
    store = Place(place.url, {**place.options, **wrong}).open()
    for act in (lambda: store.get("a"), lambda: store.put("a", b""), lambda: store.list("")):
        with pytest.raises(StorePermissionError) as raised:
            act()
        assert not any(secret in str(raised.value) for secret in wrong.values())


def test_missing_bucket_is_no_missing_object(any_server: Server) -> None:
    """A wrong bucket's name must not look like an empty root."""
    place = any_server.place()
    scheme = place.url.partition("://")[0]
    store = Place(f"{scheme}://no-such-bucket/root", place.options).open()
    codes = {"NoSuchBucket", "ContainerNotFound"}
    for act in (lambda: store.get("a"), lambda: store.put("a", b""), lambda: store.list("")):
        with pytest.raises(StorageError) as raised:
            act()
        assert not isinstance(raised.value, ObjectNotFoundError)
        assert raised.value.context["store_code"] in codes
