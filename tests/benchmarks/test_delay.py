"""The proxy that makes a server on loopback answer as late as a real one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.stores.delay import HOST, delayed


@contextmanager
def echo_through_proxy(round_trip_ms: float, *, at_once_bytes: int) -> Iterator[socket.socket]:
    """A connection, through the proxy, to a server that sends back what it receives."""
    with socket.create_server((HOST, 0)) as server:

        def echo() -> None:
            connection, _ = server.accept()
            with connection:
                while data := connection.recv(at_once_bytes):
                    connection.sendall(data)

        thread = threading.Thread(target=echo, daemon=True)
        thread.start()
        with (
            delayed(server.getsockname()[1], round_trip_ms) as port,
            socket.create_connection((HOST, port)) as client,
        ):
            yield client
        thread.join(60)
        assert not thread.is_alive()


def test_every_reply_is_late_by_the_round_trip_and_whole() -> None:
    """A request that overtakes another, or comes early, makes every figure too good."""
    round_trip_ms = 40.0
    with echo_through_proxy(round_trip_ms, at_once_bytes=1 << 16) as client:
        for number in range(5):
            sent, received = bytes([number]) * 100_000, b""
            begun = time.monotonic()
            client.sendall(sent)
            while len(received) < len(sent):
                received += client.recv(1 << 16)
            assert received == sent
            assert (time.monotonic() - begun) * 1000 >= round_trip_ms - 1
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""


def test_more_than_the_proxy_keeps_arrives_whole_both_ways() -> None:
    """The server answers before it has read all, and the client is faster."""
    sent = bytes(range(256)) * (32 << 12)
    with echo_through_proxy(1.0, at_once_bytes=1 << 12) as client:

        def upload() -> None:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)

        uploading = threading.Thread(target=upload, daemon=True)
        uploading.start()
        received = bytearray()
        while data := client.recv(1 << 20):
            received += data
        assert received == sent
        uploading.join(60)
        assert not uploading.is_alive()


def test_server_that_ends_a_connection_ends_it_for_the_client() -> None:
    with socket.create_server((HOST, 0)) as server:
        with (
            delayed(server.getsockname()[1], 1.0) as port,
            socket.create_connection((HOST, port)) as client,
        ):
            connection, _ = server.accept()
            connection.sendall(b"last")
            connection.close()
            assert client.recv(16) == b"last"
            assert client.recv(16) == b""
        server.close()
        with delayed(1, 1.0) as port, socket.create_connection((HOST, port)) as client:
            assert client.recv(16) == b""
