"""`with` and `async with` for what is closed at the end of the block."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from types import TracebackType
from typing import Protocol, TypeVar

logger = logging.getLogger("txnlog")

T = TypeVar("T")


class _Closes(Protocol):
    def close(self) -> object: ...


class _Awaits(Protocol):
    def close(self) -> Awaitable[object]: ...


class ClosedAtTheEnd:
    """`with` gives the object itself, and closes it at the end.

    An error of the block is raised again, and one of `close` after it is logged.
    """

    def __enter__(self: T) -> T:
        return self

    def __exit__(
        self: _Closes,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception:
            _raise_or_log(error)


class AwaitedAtTheEnd:
    """The same for `async with`, and a `close` that is awaited."""

    async def __aenter__(self: T) -> T:
        return self

    async def __aexit__(
        self: _Awaits,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except Exception:
            _raise_or_log(error)


def _raise_or_log(error: BaseException | None) -> None:
    """Of the exception that is handled: the error of the block, if there is one, goes before it."""
    if error is None:
        raise
    logger.warning("Closing after an error failed, too", exc_info=True)
