"""A TCP proxy on loopback that delivers every byte late: `python -m benchmarks.stores.delay`.

Half of the delay on the way to the server, half on the way back. Bytes on their way do not hold up
those behind them, so a transfer keeps its rate and a request waits for one round trip more.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HOST = "127.0.0.1"
CHUNK_BYTES = 1 << 18
# Bytes on their way in one direction of one connection.
CHUNKS_MAX = 64


@contextmanager
def delayed(port: int, round_trip_ms: float) -> Iterator[int]:
    """The port of a proxy in its own process, in front of `port`."""
    command = [sys.executable, "-m", __name__, str(port), str(round_trip_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


async def _serve(target: int, one_way_s: float) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(HOST, target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_carry(reader, back, one_way_s), _carry(there, writer, one_way_s))

    server = await asyncio.start_server(accept, HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, one_way_s: float
) -> None:
    """Carry one direction of a connection until it ends."""
    clock = asyncio.get_running_loop()
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_MAX)

    async def deliver() -> None:
        while True:
            due_s, data = await under_way.get()
            await asyncio.sleep(max(0.0, due_s - clock.time()))
            if not data:
                return
            writer.write(data)
            await writer.drain()

    async def collect() -> None:
        data = b"first"
        while data:
            data = await reader.read(CHUNK_BYTES)
            await under_way.put((clock.time() + one_way_s, data))

    with suppress(OSError):
        await asyncio.gather(collect(), deliver())
    with suppress(OSError):
        writer.close()


def main() -> None:
    """Serve until killed; print the port."""
    parser = argparse.ArgumentParser(description="Deliver every byte late.")
    parser.add_argument("port", type=int)
    parser.add_argument("round_trip_ms", type=float)
    arguments = parser.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(arguments.port, arguments.round_trip_ms / 2000))


if __name__ == "__main__":
    main()
