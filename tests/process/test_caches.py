"""Objects that a process opens once: the keys hold no secret, and a forked child opens its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from txnlog.cluster import CLUSTERS, Cluster
from txnlog.process.caches import ProcessCache, normal_url
from txnlog.storage.store.objects import ObjectStore

URL = "s3://bucket/root"
WAIT_S = 600
SECRET = "hunter2-of-the-store"
OPTIONS = {"access_key_id": "key", "secret_access_key": SECRET}


class Opened:
    """Stands for a store or a cluster."""


@pytest.fixture
def cache() -> ProcessCache[Opened]:
    return ProcessCache(size_max=8)


def test_same_url_and_options_give_the_same_object(cache: ProcessCache[Opened]) -> None:
    first = cache.get(URL, OPTIONS, Opened)
    assert cache.get(URL, dict(reversed(OPTIONS.items())), Opened) is first
    assert len(cache) == 1


@pytest.mark.parametrize(
    "spellings",
    [
        ("/data/root", "/data/root/", "file:///data/root", "file:/data/root/"),
        ("s3://bucket/root", "s3://bucket/root/"),
        ("/", "file:///"),
        ("/localhost/data", "file:///localhost/data", "//localhost/data"),
        ("/data", "file://localhost/data", "FILE:///data", "file:////data", "/data/../data/."),
        ("/a?x", "file:///a?x", "file:/a?x"),
        ("/a#x%20y", "file:///a#x%20y"),
    ],
)
def test_other_spellings_of_a_url_give_the_same_object(
    cache: ProcessCache[Opened], spellings: tuple[str, ...]
) -> None:
    assert len({cache.get(url, None, Opened) for url in spellings}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("file://localhost/data", "/localhost/data"),
        ("file:///a?x", "/a"),
        ("file:///a#x", "/a"),
        ("file:///a%20x", "/a x"),
        ("file:data", "/data"),
    ],
)
def test_urls_of_two_folders_give_two_objects(
    cache: ProcessCache[Opened], one: str, other: str
) -> None:
    """A client of one cluster would have written into another one."""
    assert cache.get(one, None, Opened) is not cache.get(other, None, Opened)


@pytest.mark.parametrize(
    "url",
    [
        "{0}/a", "{0}//a/", "file:{0}/a", "file://{0}/a?x", "file://localhost{0}/a#x",
        "FILE:///{0}/a", "{0}/a?x", "{0}/a#x", "{0}/b/../a/.", "file://{0}/a%20b", "{0}/a\nb",
        "file:a", "a",
    ],
)  # fmt: skip
def test_key_of_a_folder_is_that_of_the_path_that_is_opened(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then two URLs have one key only if they open one folder."""
    monkeypatch.chdir(tmp_path)
    url = url.format(tmp_path)
    opened = ObjectStore.from_url(url).url.removeprefix("file://")
    assert normal_url(url) == opened.replace("//", "/")


def test_other_url_or_options_give_another_object(cache: ProcessCache[Opened]) -> None:
    """A store opened with one user's credentials must not serve another user's request."""
    asked: list[tuple[str, dict[str, str] | None]] = [
        (URL, OPTIONS),
        (URL, None),
        (URL, {**OPTIONS, "secret_access_key": "another"}),
        (URL, {"secret_access_key": "key", "access_key_id": SECRET}),
        (URL, {"access_key_id": "key"}),
        (URL, {"a": "b", "c": "d"}),
        (URL, {"a": 'b", "c": "d'}),
        ("s3://bucket/other", OPTIONS),
        ("/bucket/root", OPTIONS),
    ]
    cache = ProcessCache(size_max=len(asked))
    assert len({cache.get(url, options, Opened) for url, options in asked}) == len(asked)


def test_no_options_are_the_same_as_empty_ones(cache: ProcessCache[Opened]) -> None:
    assert cache.get(URL, None, Opened) is cache.get(URL, {}, Opened)


def test_secret_is_in_no_key_and_no_repr(cache: ProcessCache[Opened]) -> None:
    """A traceback with locals, a debugger or a log line would show it (R67)."""
    url = f"s3://user:{SECRET}@bucket/root?token={SECRET}"
    cache.get(url, OPTIONS, Opened)
    assert SECRET not in repr(cache)
    for key, entry in cache._entries.items():
        assert SECRET not in repr(key) + repr(entry) + repr(vars(entry))


def test_key_of_a_secret_differs_between_caches() -> None:
    """A plain digest could be compared with the digests of likely passwords."""
    keys = set()
    for _ in range(2):
        cache: ProcessCache[Opened] = ProcessCache(size_max=1)
        cache.get(URL, OPTIONS, Opened)
        keys.update(cache._entries)
    assert len(keys) == 2


def test_threads_that_ask_at_once_get_one_object_opened_once(cache: ProcessCache[Opened]) -> None:
    opened = []
    threads = 8
    together = threading.Barrier(threads)

    def open_one() -> Opened:
        opened.append(Opened())
        return opened[-1]

    def ask(_: int) -> Opened:
        together.wait()
        return cache.get(URL, OPTIONS, open_one)

    with ThreadPoolExecutor(threads) as pool:
        assert set(pool.map(ask, range(threads))) == {opened[0]}
    assert len(opened) == 1


def test_opening_one_object_does_not_hold_up_another(cache: ProcessCache[Opened]) -> None:
    """An object store that does not answer must not stop the threads that use others."""
    release = threading.Event()
    is_opening = threading.Event()

    def hang() -> Opened:
        is_opening.set()
        assert release.wait(WAIT_S)
        return Opened()

    slow = threading.Thread(target=cache.get, args=("s3://slow", None, hang))
    slow.start()
    try:
        assert is_opening.wait(WAIT_S)
        assert cache.get("s3://quick", None, Opened)
    finally:
        release.set()
        slow.join(WAIT_S)


def test_cache_per_thread_gives_each_thread_its_own() -> None:
    cache: ProcessCache[Opened] = ProcessCache(size_max=8, per_thread=True)
    mine = cache.get(URL, OPTIONS, Opened)
    found = []
    thread = threading.Thread(target=lambda: found.append(cache.get(URL, OPTIONS, Opened)))
    thread.start()
    thread.join(WAIT_S)
    assert found[0] is not mine
    assert cache.get(URL, OPTIONS, Opened) is mine


def test_opening_that_fails_is_tried_again(cache: ProcessCache[Opened]) -> None:
    def fail() -> Opened:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        cache.get(URL, OPTIONS, fail)
    assert cache.get(URL, OPTIONS, Opened)


def test_full_cache_forgets_the_object_used_longest_ago() -> None:
    """Temporary credentials are other options every hour: without a bound memory would grow."""
    cache: ProcessCache[Opened] = ProcessCache(size_max=2)
    kept = cache.get("s3://kept", None, Opened)
    dropped = cache.get("s3://dropped", None, Opened)
    assert cache.get("s3://kept", None, Opened) is kept
    cache.get("s3://new", None, Opened)
    assert len(cache) == 2
    assert cache.get("s3://kept", None, Opened) is kept
    assert cache.get("s3://dropped", None, Opened) is not dropped


def test_cleared_cache_opens_again(cache: ProcessCache[Opened]) -> None:
    first = cache.get(URL, None, Opened)
    cache.clear()
    assert len(cache) == 0
    assert cache.get(URL, None, Opened) is not first


def test_child_of_a_fork_gets_its_own_even_when_a_thread_was_opening(
    cache: ProcessCache[Opened],
) -> None:
    """The parent's connections are not in the child, and its lock may be held for ever there."""
    inherited = cache.get(URL, None, Opened)
    release = threading.Event()
    is_opening = threading.Event()

    def hang() -> Opened:
        is_opening.set()
        assert release.wait(WAIT_S)
        return Opened()

    slow = threading.Thread(target=cache.get, args=("s3://slow", None, hang))
    slow.start()
    assert is_opening.wait(WAIT_S)

    def check() -> bool:
        own = cache.get(URL, None, Opened)
        cache.get("s3://slow", None, Opened)
        return own is not inherited and cache.get(URL, None, Opened) is own

    try:
        assert passes_in_a_child(check)
    finally:
        release.set()
        slow.join(WAIT_S)
    assert cache.get(URL, None, Opened) is inherited


def passes_in_a_child(check: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        passed = False
        try:
            passed = check()
        finally:
            os._exit(0 if passed else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_clusters_are_kept_per_thread_and_their_secrets_are_in_no_key(tmp_path: Path) -> None:
    """A Cluster is for one thread at a time."""
    mine = Cluster.cached(str(tmp_path), OPTIONS, create=True)
    assert Cluster.cached(f"file://{tmp_path}/", dict(OPTIONS)) is mine
    assert Cluster.cached(str(tmp_path)) is not mine
    found = []
    thread = threading.Thread(target=lambda: found.append(Cluster.cached(str(tmp_path), OPTIONS)))
    thread.start()
    thread.join(WAIT_S)
    assert found[0] is not mine
    assert SECRET not in repr(CLUSTERS) + repr(list(CLUSTERS._entries))
