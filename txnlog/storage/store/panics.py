"""Panics of the store library as ordinary errors.

The library is written in Rust. What its authors held to be impossible ends a call by a
PanicException, which is no Exception: it passes every handler and ends threads and queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class LibraryPanicError(Exception):
    """The store library failed inside; its text is a place in its source, never a value."""


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of a library written in Rust."""
    return not isinstance(error, Exception) and type(error).__name__ == "PanicException"


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise LibraryPanicError in place of a panic; any other error as it is."""
    try:
        yield
    except BaseException as error:
        if is_panic(error):
            raise LibraryPanicError(str(error)) from None
        raise
