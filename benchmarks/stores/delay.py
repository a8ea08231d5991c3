"""A TCP proxy on loopback that delivers every byte late: `python -m benchmarks.stores.delay`.

Half of the delay on the way to the server, half on the way back. Bytes on their way do not hold up
those behind them, so a transfer keeps its rate and a request waits for one round trip more. It is
one plain loop: what it takes of the processor, it takes from what is measured.
"""

from __future__ import annotations

import argparse
import select
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import perf_counter

HOST = "127.0.0.1"
RECEIVE_BYTES = 64 << 10
WAITING_BYTES_MAX = 8 << 20
"""What an end may have to deliver before the other one is no longer read."""


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


class _End:
    """One end of a connection through the proxy; `other` gets later what this one receives."""

    other: _End

    def __init__(self, connection: socket.socket, epoll: select.epoll) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.has_received_end = self.has_sent_end = False
        self._epoll = epoll
        self._late = bytearray()
        """Delivered, and not taken by the system yet."""
        self._must_end = False
        self._watched = select.EPOLLIN
        epoll.register(connection, self._watched)

    @property
    def is_full(self) -> bool:
        """Whether the other end is not to be read now."""
        return len(self._late) > WAITING_BYTES_MAX

    def receive(self) -> bytes | None:
        """What has come; b"" at its end, None if nothing has."""
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self.has_received_end = True
            self.watch()
        return data

    def deliver(self, data: bytes) -> None:
        """Send, or end the connection with b""."""
        self._must_end |= not data
        self._late += data
        self.send()

    def send(self) -> None:
        """Send what the system takes; then the end, if it has come."""
        was_late = len(self._late)
        with suppress(BlockingIOError):
            try:
                del self._late[: self.socket.send(self._late) if self._late else 0]
            except BlockingIOError:
                raise
            except OSError:
                # Nobody is there: its end comes from `receive`.
                self._late.clear()
        if self._must_end and not self._late and not self.has_sent_end:
            self.has_sent_end = True
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)
        if self._late or was_late > WAITING_BYTES_MAX:
            self.watch()
            self.other.watch()

    def watch(self) -> None:
        """Ask for the events that matter now."""
        reads = not (self.has_received_end or self.other.is_full)
        wanted = select.EPOLLIN * reads | select.EPOLLOUT * bool(self._late)
        if self._watched:
            # As long as it is registered, epoll reports that both directions have ended.
            self._epoll.unregister(self.socket)
        if wanted:
            self._epoll.register(self.socket, wanted)
        self._watched = wanted

    def close(self) -> None:
        if self._watched:
            self._epoll.unregister(self.socket)
        self.socket.close()


def _serve(target: int, one_way_s: float) -> None:
    listener = socket.create_server((HOST, 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    epoll = select.epoll()
    epoll.register(listener, select.EPOLLIN)
    ends: dict[int, _End] = {}
    # The delay is the same for all, so they are in order.
    under_way: deque[tuple[float, _End, bytes]] = deque()
    while True:
        left_s = max(0.0, under_way[0][0] - perf_counter()) if under_way else None
        # epoll's own time-outs are rounded up, to a millisecond and one more: 25 ms were 28.
        select.select([epoll], [], [], left_s)
        for number, events in epoll.poll(0):
            end = ends.get(number)
            if end is None:
                near, _ = listener.accept()
                try:
                    far = socket.create_connection((HOST, target))
                except OSError:
                    # There is nobody else to tell.
                    near.close()
                    continue
                one, two = _End(near, epoll), _End(far, epoll)
                one.other, two.other = two, one
                ends |= {near.fileno(): one, far.fileno(): two}
                continue
            if events & select.EPOLLOUT:
                end.send()
            if events & ~select.EPOLLOUT and (data := end.receive()) is not None:
                under_way.append((perf_counter() + one_way_s, end.other, data))
        now_s = perf_counter()
        while under_way and under_way[0][0] <= now_s:
            _, end, data = under_way.popleft()
            end.deliver(data)
            if end.has_sent_end and end.other.has_sent_end:
                for one in (end, end.other):
                    del ends[one.socket.fileno()]
                    one.close()


def main() -> None:
    """Serve until killed; print the port."""
    parser = argparse.ArgumentParser(description="Deliver every byte late.")
    parser.add_argument("port", type=int)
    parser.add_argument("round_trip_ms", type=float)
    arguments = parser.parse_args()
    with suppress(KeyboardInterrupt):
        _serve(arguments.port, arguments.round_trip_ms / 2000)


if __name__ == "__main__":
    main()
