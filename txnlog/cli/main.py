"""Entry point of the command; without the extra `cli` it prints how to install it."""

from __future__ import annotations

import sys


def run() -> None:
    """Entry point of the script `txnlog`. Exit codes: 0 success, 1 error, 2 wrong usage."""
    try:
        from txnlog.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit("txnlog: the command line needs typer and rich: pip install 'txnlog[cli]'")
    app(prog_name="txnlog")


if __name__ == "__main__":
    run()
