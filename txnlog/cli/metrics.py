"""`txnlog metrics`: a root's metrics for Prometheus."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from txnlog.cli.session import Session, session_of, stopped_by_signals
from txnlog.monitoring.exporter import RootCollector
from txnlog.monitoring.prometheus import PREFIX, MetricsServer, prometheus_client

app = typer.Typer(add_completion=False)


@app.command()
def metrics(
    context: typer.Context,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS:PORT",
            help="Serve them at http://ADDRESS:PORT/metrics until SIGTERM, as 127.0.0.1:9401.",
        ),
    ] = None,
) -> None:
    """Metrics of topics, groups, transactions and housekeeping, for Prometheus.

    Prints them once, or serves them. It changes nothing; the root is read when somebody asks, at
    most every 10 s. Whoever can reach the address sees names of topics and groups.
    """
    session = session_of(context)
    where = None if listen is None else _address(listen)
    collector = RootCollector(session.admin().cluster)
    if where is None:
        _show(session, collector)
        return
    address, port = where
    shown = f"[{address}]" if ":" in address else address
    with (
        MetricsServer(_registry(collector), address, port) as server,
        stopped_by_signals() as stop,
    ):
        session.say(f"Metrics at http://{shown}:{server.port}/metrics, until Ctrl-C.")
        sys.stdout.flush()
        stop.wait()


def _address(listen: str) -> tuple[str, int]:
    """ADDRESS:PORT; an IPv6 address is in brackets. Raises BadParameter."""
    address, _, port = listen.rpartition(":")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    elif ":" in address:
        address = ""
    if not address or not (port.isascii() and port.isdigit()):
        raise typer.BadParameter(
            f"--listen takes ADDRESS:PORT as in 127.0.0.1:9401, 0.0.0.0:9401 or [::1]:9401, not "
            f"{listen!r}."
        )
    return address, int(port)


def _registry(collector: RootCollector) -> Any:
    registry = prometheus_client().CollectorRegistry()
    registry.register(collector)
    return registry


def _show(session: Session, collector: RootCollector) -> None:
    if session.is_json:
        session.show_json(
            [
                {
                    "name": PREFIX + family.name,
                    "labels": dict(zip(family.labels, values, strict=True)),
                    "value": float(number),
                }
                for family in collector.families()
                for values, number in family.samples
            ]
        )
        return
    typer.echo(prometheus_client().generate_latest(_registry(collector)).decode(), nl=False)
