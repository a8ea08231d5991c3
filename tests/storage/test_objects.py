"""ObjectStore: same behaviour on disk and in memory; clock, probe, secrets."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest

from txnlog.errors import (
    ConfigError,
    ObjectNotFoundError,
    StorageError,
    StorePermissionError,
    TxnLogError,
    UnsupportedStoreError,
)
from txnlog.storage.store.clock import check_conditional_puts
from txnlog.storage.store.local_disk import NothingWrittenOSError
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import Fault, FaultsAt, SharedMemory, no_faults

SECRET = "wJalrXUtnFEMIK7MDENG"


# --- Bytes ----------------------------------------------------------------------------------------


def test_put_get_head_list_delete_round_trip(store: ObjectStore) -> None:
    """Every store must look the same to the layers above."""
    store.put("a/one", b"1")
    store.put("a/one", b"11")
    store.put("a/deep/two", b"2")
    store.put("b/three", b"")
    assert store.get("a/one") == b"11"
    assert store.head("a/one")[:2] == ("a/one", 2)
    assert sorted(m.path for m in store.list("a")) == ["a/deep/two", "a/one"]
    assert [m.path for m in store.list("a", start_after="a/deep/two")] == ["a/one"]
    assert sorted(store.list_folders()) == ["a", "b"]
    store.delete(["a/one", "a/one", "never/there"])
    with pytest.raises(ObjectNotFoundError, match="a/one"):
        store.get("a/one")
    with pytest.raises(ObjectNotFoundError):
        store.head("a/one")


def test_list_after_a_name_leaves_out_what_a_store_lists_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Azure's servers of older versions ignore where a listing should start (D84)."""
    whole = obstore.list
    monkeypatch.setattr(obstore, "list", lambda store, prefix, offset=None: whole(store, prefix))
    store = ObjectStore.from_url("memory://")
    for number in range(4):
        store.put(f"log/{number}", b"")
    found = store.list("log", start_after="log/1")
    assert sorted(meta.path for meta in found) == ["log/2", "log/3"]
    assert len(store.list("log")) == 4


@pytest.mark.parametrize("count", [1, 2, 1_000, 2_500])
def test_delete_takes_lists_of_any_length(count: int) -> None:
    """S3 takes 1,000 in one request; missing ones are no error."""
    store = SharedMemory().open()
    paths = [f"t/{number}" for number in range(count)]
    for path in paths[::2]:
        store.put(path, b"1")
    store.calls.clear()
    store.delete(paths)
    assert store.list("t") == []
    assert [verb for verb, _ in store.calls[:-1]] == ["delete"] * -(-count // 1_000)


def test_list_that_is_refused_is_deleted_one_by_one() -> None:
    """Azure reports a missing object as an error, and some S3 services take no lists."""
    lists = iter([Fault.FAIL_BEFORE])
    store = SharedMemory().open()
    paths = [f"t/{number}" for number in range(5)]
    for path in paths[1:]:
        store.put(path, b"1")
    store.plan = lambda verb, path: next(lists, Fault.NONE)
    store.delete(paths)
    store.plan = no_faults
    assert store.list("t") == []


def test_path_that_cannot_be_deleted_is_named_and_stops_no_other() -> None:
    """The error of a list names no path; an operator must know which object is denied."""
    store = SharedMemory().open()
    paths = [f"t/{number}" for number in range(5)]
    for path in paths:
        store.put(path, b"1")
    calls = iter([Fault.DENY])
    store.plan = lambda verb, path: Fault.DENY if path == "t/3" else next(calls, Fault.NONE)
    with pytest.raises(StorePermissionError, match="t/3"):
        store.delete(paths)
    store.plan = no_faults
    assert [item.path for item in store.list("t")] == ["t/3"]


def test_every_path_that_cannot_be_deleted_is_named() -> None:
    """Of the second an operator learned after mending the first (D59)."""
    store = SharedMemory().open()
    paths = [f"t/{number}" for number in range(5)]
    for path in paths:
        store.put(path, b"1")
    calls = iter([Fault.DENY])
    denied = ("t/1", "t/3")
    store.plan = lambda verb, path: Fault.DENY if path in denied else next(calls, Fault.NONE)
    with pytest.raises(StorePermissionError) as failed:
        store.delete(paths)
    assert all(path in failed.value.message for path in denied)
    assert "t/2" not in failed.value.message
    store.plan = no_faults
    assert sorted(item.path for item in store.list("t")) == list(denied)


def test_store_that_answers_nothing_is_asked_twice_not_once_per_path() -> None:
    """Each request to a store that is away takes minutes."""
    store = SharedMemory().open(plan=lambda verb, path: Fault.FAIL_BEFORE)
    with pytest.raises(StorageError):
        store.delete([f"t/{number}" for number in range(500)])
    assert len(store.calls) == 2


def test_delete_in_order_ends_at_the_first_error() -> None:
    """What is later in a log must not go before what is earlier (D92)."""
    store = SharedMemory().open()
    paths = [f"t/{number}" for number in range(5)]
    for path in paths:
        store.put(path, b"1")
    store.plan = lambda verb, path: Fault.FAIL_BEFORE if path == "t/2" else Fault.NONE
    with pytest.raises(StorageError):
        store.delete_in_order(paths)
    store.plan = no_faults
    assert sorted(item.path for item in store.list("t")) == paths[2:]


def test_put_if_absent_keeps_the_first(store: ObjectStore) -> None:
    """The log depends on it (D1)."""
    assert store.put_if_absent("slot", b"first")
    assert not store.put_if_absent("slot", b"second")
    assert store.get("slot") == b"first"


def test_get_many_keeps_the_order(store: ObjectStore) -> None:
    """Commits fetched side by side must be applied one after the other."""
    paths = [f"x/{n:03}" for n in range(60)]
    for path in paths:
        store.put(path, path.encode())
    assert store.get_many(paths) == [path.encode() for path in paths]
    with pytest.raises(ObjectNotFoundError, match="x/999"):
        store.get_many([*paths, "x/999"])


def test_open_writer_writes_one_object(store: ObjectStore) -> None:
    """Files larger than memory are streamed."""
    writer = store.open_writer("a/file")
    writer.write(b"half")
    writer.write(b" and half")
    writer.close()
    assert bytes(store.open_reader("a/file").read()) == b"half and half"


def test_list_does_not_show_files_being_written(tmp_path: Path) -> None:
    """A put on a local disk goes through a temporary name next to the object."""
    store = ObjectStore.from_url(str(tmp_path))
    store.put("t/_delta_log/00000000000000000000.json", b"{}")
    (tmp_path / "t/_delta_log/00000000000000000001.json#1").write_bytes(b"torn")
    assert [m.path for m in store.list("t")] == ["t/_delta_log/00000000000000000000.json"]


# --- Urls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["{}", "file://{}", "file://localhost{}"])
def test_from_url_local_paths_are_one_store(tmp_path: Path, url: str) -> None:
    """Spark passes file:// urls, users write paths."""
    store = ObjectStore.from_url(url.format(tmp_path))
    store.put("a", b"1")
    assert store.url == f"file://{tmp_path}"
    assert (tmp_path / "a").read_bytes() == b"1"
    assert store.local_path("a") == str(tmp_path / "a")


def test_from_url_path_with_blanks_and_signs_is_not_unescaped(tmp_path: Path) -> None:
    """A folder named "a b%20c#d" is a folder, not an escaped one."""
    folder = tmp_path / "a b%20c#d?é"
    store = ObjectStore.from_url(str(folder))
    store.put("x", b"1")
    assert (folder / "x").exists()


@pytest.mark.parametrize("url", ["hdfs://nn/x", "http://x/y", "file://host/path", "ftp://x"])
def test_from_url_unknown_scheme_is_refused_with_what_can_be_opened(url: str) -> None:
    """The error names the valid schemes."""
    with pytest.raises(ConfigError, match="s3://|absolute"):
        ObjectStore.from_url(url)


# --- Secrets (R67) --------------------------------------------------------------------------------

KEYS = {"aws_access_key_id": "AKIA", "aws_secret_access_key": SECRET, "aws_region": "x"}


def output_of(action: Callable[[], object]) -> str:
    try:
        output = action()
    except TxnLogError as error:
        output = (error, error.context, error.__cause__, repr(error))
    return f"{output} {output!r} {vars(output) if isinstance(output, ObjectStore) else ''}"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket/x", KEYS),
        ("s3://bucket/x", {**KEYS, "bogus": SECRET}),
        ("s3://", KEYS),
        (f"s3://AKIA:{SECRET}@bucket/x", {}),
        ("az://container/x", {"azure_storage_account_name": "a", "azure_storage_account_key": "?"}),
        (f"az://container/x?sig={SECRET}", {}),
        (f"hdfs://user:{SECRET}@host/x", {}),
        (f"s3://bucket/x#{SECRET}", {}),
    ],
)
def test_store_never_shows_secrets(url: str, options: dict[str, str]) -> None:
    """Options and urls go into logs, plans and bug reports (R67)."""
    assert SECRET not in output_of(lambda: ObjectStore.from_url(url, options))


@pytest.mark.parametrize("url", [f"s3://AKIA:{SECRET}@bucket/x", f"az://c/x?sig={SECRET}"])
def test_from_url_credentials_in_the_url_are_refused(url: str) -> None:
    """They would be ignored; the error says where they belong."""
    with pytest.raises(ConfigError, match=r"storage\.\*"):
        ObjectStore.from_url(url)


def test_store_is_not_pickled(store: ObjectStore) -> None:
    """A pickle in a Spark plan would hold the credentials (R67)."""
    import pickle

    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(store)


# --- Errors (R68) ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (PermissionError(errno.EACCES, "no"), StorePermissionError),
        (OSError("Permission denied (os error 13)"), StorePermissionError),
        (OSError(errno.ENOSPC, "No space left on device"), StorageError),
        (ValueError("bad"), StorageError),
        (FileNotFoundError("x"), ObjectNotFoundError),
    ],
)
def test_errors_of_the_store_become_typed_and_name_the_path(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, raised: Exception, expected: type
) -> None:
    """A handler decides by type; a person needs the path (R68)."""

    def fail(*_: Any, **__: Any) -> None:
        raise raised

    for verb in ("put", "get"):
        monkeypatch.setattr(f"txnlog.storage.store.objects.obstore.{verb}", fail)

    def refuse(*_: Any, **__: Any) -> None:
        # A local disk raises this if a put failed before its file had a name.
        if expected is StorePermissionError:
            raise NothingWrittenOSError(errno.EACCES, str(raised)) from raised
        raise raised

    monkeypatch.setattr("txnlog.storage.store.local_disk.LocalDisk.get", fail)
    for verb in ("put", "put_new", "put_if_absent", "open_writer"):
        monkeypatch.setattr(f"txnlog.storage.store.local_disk.LocalDisk.{verb}", refuse)
    for call in (
        lambda: store.put("t/x", b""),
        lambda: store.put_new("t/x", b""),
        lambda: store.put_if_absent("t/x", b""),
        lambda: store.get("t/x"),
    ):
        with pytest.raises(expected, match="t/x") as caught:
            call()
        assert type(caught.value) is expected
    assert StorePermissionError.fatal
    assert not StorePermissionError.retriable


# --- The store's clock ----------------------------------------------------------------------------


def test_now_ms_is_the_stores_time_not_this_machines(tmp_path: Path) -> None:
    """A machine whose clock is a year off must not call fresh files old (R34)."""
    from txnlog.process.clock import VirtualClock

    store = ObjectStore.from_url(str(tmp_path), clock=VirtualClock(0))
    store.put("a", b"1")
    assert abs(store.now_ms() - store.head("a").last_modified_ms) < 5_000


def test_now_ms_asks_once_an_hour_and_leaves_nothing_behind() -> None:
    """One small object an hour, not one at each commit."""
    shared = SharedMemory()
    store = shared.open()
    first_ms = store.now_ms()
    calls = len(store.calls)
    shared.clock.advance_ms(3_000_000)
    assert store.now_ms() - first_ms == 3_000_000
    assert len(store.calls) == calls
    shared.clock.advance_ms(700_000)
    assert store.now_ms() - first_ms == 3_700_000
    assert len(store.calls) > calls
    assert store.list("") == []


@pytest.mark.parametrize("call", range(4))
def test_now_ms_measured_while_the_machine_sleeps_is_not_wrong_by_the_sleep(call: int) -> None:
    """A clock ahead by the length of a suspension would delete logs others still read."""
    shared = SharedMemory()
    store = shared.open(
        plan=FaultsAt(
            {}, interlude=lambda: shared.clock.advance_ms(5 * 3_600_000), interlude_at=call
        )
    )
    assert abs(store.now_ms() - shared.clock.now_ms()) <= 1_000
    assert abs(store.now_ms() - shared.clock.now_ms()) <= 1_000


# --- The probe (R69) ------------------------------------------------------------------------------


def test_probe_of_a_working_store_passes_and_leaves_nothing(store: ObjectStore) -> None:
    """It runs at every creation of a cluster."""
    check_conditional_puts(store, "__cluster")
    assert store.list("") == []


@pytest.mark.parametrize("how", ["overwrites", "lies", "always says exists"])
def test_probe_finds_a_store_without_conditional_puts(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """On such a store acknowledged commits are lost silently (R69)."""

    def put_if_absent(path: str, data: bytes) -> bool:
        if how == "always says exists":
            return False
        store.put(path, data)
        return how == "overwrites" or data == b"first"

    monkeypatch.setattr(store, "put_if_absent", put_if_absent)
    with pytest.raises(UnsupportedStoreError, match="conditional put"):
        check_conditional_puts(store, "__cluster")


def test_probe_whose_first_reply_is_exists_relies_on_what_it_reads() -> None:
    """A store client that retries a put by itself finds its own first one (R63)."""
    shared = SharedMemory()
    store = shared.open()
    real = store.put_if_absent

    def repeated(path: str, data: bytes) -> bool:
        real(path, data)
        return False

    store.put_if_absent = repeated  # type: ignore[method-assign]
    check_conditional_puts(store, "__cluster")


def test_probe_that_fails_is_a_storage_error() -> None:
    """Without a network the store is not at fault."""
    shared = SharedMemory()
    with pytest.raises(StorageError):
        check_conditional_puts(shared.open(plan=FaultsAt({1: Fault.FAIL_BEFORE})), "__cluster")


# --- Other places ---------------------------------------------------------------------------------


def test_other_place_of_the_same_cloud_has_the_options_of_the_first() -> None:
    """Credentials go to no other cloud than the one they were given for (R67)."""
    given = {"aws_access_key_id": "id", "aws_secret_access_key": SECRET, "aws_region": "r"}
    root = ObjectStore.from_url("s3://bucket/lake", given)
    assert root.at("s3a://other/silver")._options() == given
    assert root.at("s3://other/silver").url == "s3://other/silver"
    assert root.at("gs://other/silver")._options() == {}


def test_other_folder_follows_the_fsync_of_the_root(tmp_path: Path) -> None:
    """A transaction is complete when all of it survives a power cut (D26)."""
    for name in ("lake", "silver"):
        tmp_path.joinpath(name).mkdir()
    root = ObjectStore.from_url(str(tmp_path / "lake"))
    other = root.at(str(tmp_path / "silver"))
    for is_on in (True, False):
        root.set_fsync(is_on, by_all=False)
        other._looked_ms = None
        other.put("a", b"")
        assert other._disk is not None
        assert other._disk.fsync == is_on
    with pytest.raises(ConfigError, match="no folder"):
        root.at(str(tmp_path / "missing"))
