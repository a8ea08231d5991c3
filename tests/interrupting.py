"""Interrupts at each place where CPython runs signal handlers: Ctrl-C in the middle of a call.

CPython calls a handler when a Python function begins, when a C function returns (its result is then
lost, though it took effect), and at the turn of a loop; never within a statement that calls
nothing, and not on the way into a `finally` or out of a `with` on a lock.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import txnlog

FOLDER = str(Path(txnlog.__file__).parent)
PRODUCING = f"{FOLDER}/producing/"

# Functions whose statements without calls belong together. Their calls are places.
_WITHOUT_LINES = {"_consume", "_wait", "append", "consume_batch", "exclusively", "serve"}


def is_with(frame: FrameType) -> bool:
    """Whether the line opens a `with`; the end of the block is an event of the same line."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return line.lstrip().startswith("with ")


def _within(call: Callable[[], object]) -> Iterator[object]:
    """A generator has exceptions of its own: struck on a line with `except`, CPython 3.11 keeps the
    one that it was handling, which would be the context of each later one in this thread.
    """
    yield call()


def interrupted_at(
    number: int, call: Callable[[], object], folders: tuple[str, ...] = (PRODUCING,)
) -> str | None:
    """Make a call, and interrupt it at the place with that number; the place, or None: it ended."""
    passed = 0
    found: str | None = None

    def strike(frame: FrameType, event: str) -> None:
        nonlocal passed, found
        if not frame.f_code.co_filename.startswith(folders):
            return
        passed += 1
        if passed == number:
            name = Path(frame.f_code.co_filename).name
            found = f"{name}:{frame.f_lineno} {frame.f_code.co_name} ({event})"
            raise KeyboardInterrupt

    def trace(frame: FrameType, event: str, _: object) -> object:
        code = frame.f_code
        if not code.co_filename.startswith(folders) or code.co_name in _WITHOUT_LINES:
            return None
        if event == "line" and not is_with(frame):
            strike(frame, event)
        return trace

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return"):
            strike(frame, event)

    made = _within(call)
    sys.settrace(trace)  # type: ignore[arg-type]
    sys.setprofile(profile)
    try:
        next(made)
    except KeyboardInterrupt:
        assert found is not None
    finally:
        sys.setprofile(None)
        sys.settrace(None)
    return found
