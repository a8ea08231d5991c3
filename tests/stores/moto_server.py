"""moto's S3 in a process of its own, on a free port that it prints."""

from __future__ import annotations

import logging
import threading

from moto.server import ThreadedMotoServer


def main() -> None:
    """Serve until the process ends."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"listening on {host}:{port}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
