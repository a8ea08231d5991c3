"""prometheus-client, which is an optional extra, and its server."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from txnlog.errors import ConfigError
from txnlog.text import printable

PREFIX = "txnlog_"
SILENT_S: Final = 10
"""A connection that says nothing for so long is closed: each has a thread."""


def prometheus_client() -> Any:
    """The library. Raises ConfigError without it."""
    try:
        import prometheus_client
    except ImportError as error:
        raise ConfigError(
            "Metrics for Prometheus require prometheus-client: install txnlog[prometheus]."
        ) from error
    return prometheus_client


def label(text: str) -> str:
    """Printable, and of no other text: of two samples with the same labels one hides the other."""
    return printable(text.replace("\\", "\\\\"))


class MetricsServer:
    """Serves a registry at /metrics in a thread, until `close`; port 0 is any free one.

    Raises ConfigError for an address that cannot be listened at.
    """

    def __init__(self, registry: Any, address: str, port: int) -> None:
        start = prometheus_client().start_http_server
        try:
            self._server, self._thread = start(port, addr=address, registry=registry)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"Cannot listen at {address}, port {port}: {error}.") from error
        self._server.RequestHandlerClass = _patient_for(self._server.RequestHandlerClass, SILENT_S)

    @property
    def address(self) -> str:
        return str(self._server.server_address[0])

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def _patient_for(handler: Any, silent_s: float) -> Any:
    class Handler(handler):  # type: ignore[misc]
        timeout = silent_s

        def handle(self) -> None:
            # Whoever has gone, or says nothing, gets no traceback.
            with suppress(OSError):
                super().handle()

    return Handler
