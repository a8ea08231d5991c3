"""Servers for the tests of stores, one of each kind for a whole run, and proxies in front."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.stores.proxy import FaultProxy
from tests.stores.servers import STORES, NotInstalledError, Place, Server, running

IN_EVERY_TEST = ("moto", "gcs")


class Servers:
    """The servers of one run; each is started when a test first asks for it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._found: dict[str, Server | NotInstalledError] = {}

    def get(self, kind: str) -> Server:
        """The server; skips the test with the reason where it is not installed."""
        if kind not in self._found:
            try:
                self._found[kind] = self._stack.enter_context(running(kind))
            except NotInstalledError as error:
                self._found[kind] = error
        found = self._found[kind]
        if isinstance(found, NotInstalledError):
            pytest.skip(str(found))
        assert found.process.poll() is None, f"{kind} ended: {(found.folder / 'log').read_text()}"
        return found


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.stores) for kind in STORES])
def server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """Each store of `make stores`."""
    return servers.get(request.param)


@pytest.fixture(
    params=[
        pytest.param(kind, marks=() if kind in IN_EVERY_TEST else pytest.mark.stores)
        for kind in ("moto", *STORES)
    ]
)
def any_server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """The same and moto's S3; those that come with pip are in `make test`, too."""
    return servers.get(request.param)


@pytest.fixture
def place(server: Server) -> Place:
    """A new root."""
    return server.place()


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    """A proxy in front of the server, without faults at first."""
    with FaultProxy(server.port) as proxy:
        yield proxy
