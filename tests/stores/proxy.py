"""A proxy in front of a store's server, with the faults of networks and stores, by a plan.

    with FaultProxy(server.port, plan=RandomFaults(seed), latency_s=0.025) as proxy:
        ... clients use proxy.port ...

In front of the server and not in the client, so that the library's retries, its connections and our
translation of its errors are tested, for all clients alike. It reads whole requests, asks the plan
what happens to each, and runs in a thread of its own. Every fault is counted (`proxy.faults`, and
txnlog.testing.counts). `python -m tests.stores.proxy` starts one for benchmarks and for trying
things out.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.stores.messages import (
    EndOfStreamError,
    Reply,
    Request,
    read_reply,
    read_request,
    reply_bytes,
)
from tests.stores.plans import LATE, Action, Trouble, no_trouble
from txnlog.testing.counts import count

HOST = "127.0.0.1"
HEAD_BYTES_MAX = 1 << 20
CLOSE_S_MAX = 60
_ERRORS = {
    Trouble.REFUSE_500: (500, "InternalError"),
    Trouble.REFUSE_503: (503, "SlowDown"),
    Trouble.REFUSE_409: (409, "ConditionalRequestConflict"),
    Trouble.FAIL_AFTER: (500, "InternalError"),
}

Plan = Callable[[Request], Action]
_FAILURES = (OSError, EndOfStreamError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)


class FaultProxy:
    """One proxy; `plan` and `latency_s` may be changed at any time."""

    def __init__(
        self, upstream_port: int, *, plan: Plan = no_trouble, latency_s: float = 0.0
    ) -> None:
        self.plan = plan
        self.latency_s = latency_s
        self.port = 0
        self.faults: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self._upstream_port = upstream_port
        self._out_until_s = 0.0
        self._late: set[asyncio.Task[Any]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        assert self._started.wait(CLOSE_S_MAX), "the proxy did not start"
        return self

    def __exit__(self, *raised: object) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(CLOSE_S_MAX)

    def outage(self, duration_s: float) -> None:
        """Cut every connection at its next request, for so long."""
        self._out_until_s = time.monotonic() + duration_s
        count("faults", "proxy: outage")

    def land_late(self) -> None:
        """Wait until each put that is under way late has landed."""
        asyncio.run_coroutine_threadsafe(self._await_late(), self._loop).result(CLOSE_S_MAX)

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(
            self._accept, HOST, 0, limit=HEAD_BYTES_MAX, backlog=1_000
        )
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        await self._await_late()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _await_late(self) -> None:
        await asyncio.gather(*self._late, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upstream = _Upstream(self._upstream_port)
        try:
            with suppress(*_FAILURES):
                while (request := await read_request(reader, writer)) is not None:
                    if not await self._answer(request, upstream, writer):
                        break
        except asyncio.CancelledError:
            # The proxy is closed; asyncio would report it as an error of this callback.
            pass
        finally:
            self._tasks.discard(task)
            upstream.close()
            writer.close()

    async def _answer(
        self, request: Request, upstream: _Upstream, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection stays open."""
        self.requests[request.verb] += 1
        if time.monotonic() < self._out_until_s:
            self.faults["outage"] += 1
            return False
        action = self.plan(request)
        trouble = action.trouble
        if trouble is not Trouble.NONE:
            self.faults[trouble.value] += 1
            count("faults", f"proxy: {trouble.value}")
        await asyncio.sleep(self.latency_s + action.latency_s)
        if trouble is Trouble.CUT:
            return False
        if trouble in (Trouble.REFUSE_500, Trouble.REFUSE_503, Trouble.REFUSE_409):
            return await _send(writer, _error(trouble, request))
        if trouble is Trouble.LAND_LATE:
            late = asyncio.create_task(self._land(request, action.late_s))
            self._late.add(late)
            late.add_done_callback(self._late.discard)
            return False
        reply = await upstream.ask(request)
        return await self._reply(request, reply, trouble, writer)

    async def _reply(
        self, request: Request, reply: Reply, trouble: Trouble, writer: asyncio.StreamWriter
    ) -> bool:
        if trouble is Trouble.LOSE_REPLY:
            return False
        if trouble is Trouble.CUT_REPLY:
            whole = reply.head + reply.raw_body
            await _send(writer, whole[: max(1, len(whole) - 1 - len(reply.raw_body) // 2)])
            return False
        if trouble is Trouble.FAIL_AFTER and reply.is_success:
            return await _send(writer, _error(trouble, request))
        if trouble is Trouble.SAY_EXISTS and reply.is_success:
            return await _send(writer, _exists(request))
        return await _send(writer, reply.head + reply.raw_body) and not reply.closes

    async def _land(self, request: Request, late_s: float) -> None:
        await asyncio.sleep(late_s)
        upstream = _Upstream(self._upstream_port)
        try:
            with suppress(*_FAILURES):
                reply = await upstream.ask(request)
                self.faults[f"{LATE}, {reply.status}"] += 1
        finally:
            upstream.close()


class _Upstream:
    """The connection to the server that belongs to one of a client."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: Request) -> Reply:
        """Forward a request. A server may close an idle connection: then on a new one."""
        is_new = self._streams is None or self._streams[0].at_eof()
        try:
            return await self._ask(request)
        except _FAILURES:
            self.close()
            if is_new or request.method not in ("GET", "HEAD"):
                raise
        return await self._ask(request)

    async def _ask(self, request: Request) -> Reply:
        if self._streams is None or self._streams[0].at_eof():
            self.close()
            self._streams = await asyncio.open_connection(HOST, self._port, limit=HEAD_BYTES_MAX)
        reader, writer = self._streams
        writer.write(request.head + request.raw_body)
        await writer.drain()
        reply = await read_reply(reader, request.method)
        if reply.closes:
            self.close()
        return reply

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _send(writer: asyncio.StreamWriter, data: bytes) -> bool:
    writer.write(data)
    await writer.drain()
    return True


def _error(trouble: Trouble, request: Request) -> bytes:
    status, code = _ERRORS[trouble]
    return _xml(status, code, request)


def _exists(request: Request) -> bytes:
    """What the store says when a conditional put finds an object."""
    if "x-ms-version" in request.headers:
        return _xml(409, "BlobAlreadyExists", request)
    return _xml(412, "PreconditionFailed", request)


def _xml(status: int, code: str, request: Request) -> bytes:
    """An error in the form that S3, GCS' XML API and Azure share."""
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code>'
        "<Message>injected by the fault proxy</Message></Error>"
    ).encode()
    headers = {"content-type": "application/xml", "x-ms-error-code": code}
    return reply_bytes(status, headers, body, method=request.method)


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="A proxy in front of a store's server.")
    parser.add_argument("--upstream-port", type=int, required=True)
    parser.add_argument("--latency-ms", type=float, default=25.0)
    asked = parser.parse_args()
    with FaultProxy(asked.upstream_port, latency_s=asked.latency_ms / 1000) as proxy:
        print(f"listening on {HOST}:{proxy.port}", flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
