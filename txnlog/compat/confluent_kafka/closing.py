"""`async with` for what is closed by a coroutine."""

from __future__ import annotations

from collections.abc import Awaitable
from types import TracebackType
from typing import Protocol, TypeVar

T = TypeVar("T")


class _Closes(Protocol):
    def close(self) -> Awaitable[object]: ...


class ClosedAtTheEnd:
    """`async with` gives the object itself, and awaits its `close` at the end."""

    async def __aenter__(self: T) -> T:
        return self

    async def __aexit__(
        self: _Closes,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
