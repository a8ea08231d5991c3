"""The proxy that makes a server on loopback answer as late as a real one."""

from __future__ import annotations

import socket
import threading
import time

from benchmarks.stores.delay import HOST, delayed

ROUND_TRIP_MS = 40.0


def test_every_reply_is_late_by_the_round_trip_and_whole() -> None:
    """A request that overtakes another, or comes early, makes every figure too good."""
    with socket.create_server((HOST, 0)) as server:

        def echo() -> None:
            connection, _ = server.accept()
            with connection:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)

        thread = threading.Thread(target=echo, daemon=True)
        thread.start()
        with (
            delayed(server.getsockname()[1], ROUND_TRIP_MS) as port,
            socket.create_connection((HOST, port)) as client,
        ):
            for number in range(5):
                sent, received = bytes([number]) * 100_000, b""
                begun = time.monotonic()
                client.sendall(sent)
                while len(received) < len(sent):
                    received += client.recv(1 << 16)
                assert received == sent
                assert (time.monotonic() - begun) * 1000 >= ROUND_TRIP_MS - 1
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""
        thread.join(60)
        assert not thread.is_alive()


def test_more_than_the_proxy_keeps_arrives_whole_both_ways() -> None:
    """The server answers before it has read all, and the client is faster."""
    sent = bytes(range(256)) * (32 << 12)
    with socket.create_server((HOST, 0)) as server:

        def echo() -> None:
            connection, _ = server.accept()
            with connection:
                while data := connection.recv(1 << 12):
                    connection.sendall(data)

        thread = threading.Thread(target=echo, daemon=True)
        thread.start()
        with (
            delayed(server.getsockname()[1], 1.0) as port,
            socket.create_connection((HOST, port)) as client,
        ):

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
        thread.join(60)
        assert not thread.is_alive()


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
