"""Entry point of the command; without the extra `cli` it prints how to install it."""

from __future__ import annotations

import os
import sys
from io import RawIOBase

INTERRUPTED = 130


def run() -> None:
    """Entry point of the script `txnlog`.

    Exit codes: 0 success, 1 error, 2 wrong usage, 130 Ctrl-C.
    """
    _open_streams()
    try:
        from txnlog.cli.app import app
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit("txnlog: the command line needs typer and rich: pip install 'txnlog[cli]'")
    app(prog_name="txnlog")


def _open_streams() -> None:
    """Streams that the caller has closed are the null device, in the order of their numbers.

    Else a file of the root would get such a number, and with it what libraries print. And stdout
    has a buffer: without (PYTHONUNBUFFERED), Python drops what a full pipe or disk does not take.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    out = sys.stdout
    if isinstance(out.buffer, RawIOBase):
        number = out.fileno()
        sys.stdout = open(number, "w", encoding=out.encoding, errors=out.errors, closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    run()
