"""A TCP proxy on loopback that delivers every byte late: `python -m benchmarks.stores.delay`.

Half of the delay on the way to the server, half on the way back. Bytes on their way do not hold up
those behind them, so a transfer keeps its rate and a request waits for one round trip more.
"""

from __future__ import annotations

import argparse
import asyncio
import select
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

HOST = "127.0.0.1"


@contextmanager
def delayed(port: int, round_trip_ms: float) -> Iterator[int]:
    """The port of a proxy in its own process, in front of `port`."""
    command = [sys.executable, "-m", __name__, str(port), str(round_trip_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


class _End(asyncio.Protocol):
    """One end of a connection through the proxy; `other` sends later what this one receives."""

    other: _End
    transport: asyncio.Transport

    def __init__(self, one_way_s: float) -> None:
        self._one_way_s = one_way_s
        self._under_way: deque[bytes] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._under_way.append(data)
        asyncio.get_running_loop().call_later(self._one_way_s, self._deliver)

    def eof_received(self) -> bool:
        """The end is delivered like data, and the other way stays open until then."""
        self.data_received(b"")
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.data_received(b"")

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.other.transport.resume_reading()

    def _deliver(self) -> None:
        data = self._under_way.popleft()
        if data:
            self.other.transport.write(data)
        else:
            self.other.transport.close()


class _Near(_End):
    """The client's end; it opens the other one, to the server."""

    def __init__(self, target: int, one_way_s: float) -> None:
        super().__init__(one_way_s)
        self._target = target
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.pause_reading()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        self.other = _End(self._one_way_s)
        self.other.other = self
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: self.other, HOST, self._target
            )
        except OSError:
            # There is nobody else to tell.
            self.other = self
            self.transport.abort()
            return
        self.transport.resume_reading()


class _Selector(selectors.DefaultSelector):  # type: ignore[valid-type, misc]
    """One that wakes up in time: epoll's time-outs are rounded up, to a millisecond and one more.

    With those, 25 ms were 28.
    """

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout > 0:
            select.select([self], [], [], timeout)
        return super().select(0)


async def _serve(target: int, one_way_s: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Near(target, one_way_s), HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve until killed; print the port."""
    parser = argparse.ArgumentParser(description="Deliver every byte late.")
    parser.add_argument("port", type=int)
    parser.add_argument("round_trip_ms", type=float)
    arguments = parser.parse_args()
    loop = asyncio.SelectorEventLoop(_Selector())
    with suppress(KeyboardInterrupt):
        loop.run_until_complete(_serve(arguments.port, arguments.round_trip_ms / 2000))


if __name__ == "__main__":
    main()
