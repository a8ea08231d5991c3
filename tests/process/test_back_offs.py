"""What failed is left alone for longer each time, until it works."""

from __future__ import annotations

from contextlib import suppress

from txnlog.errors import StorageError
from txnlog.process.back_offs import BackOffs
from txnlog.process.clock import VirtualClock


def test_pause_doubles_up_to_the_longest_and_ends_when_the_work_succeeds() -> None:
    clock = VirtualClock()
    back_offs = BackOffs[str](clock, pause_ms=3, pause_ms_max=10)
    for pause_ms in (3, 6, 10, 10):
        with suppress(StorageError), back_offs.after_failure("a"):
            raise StorageError("full")
        clock.advance_ms(pause_ms - 1)
        assert isinstance(back_offs.error_of("a"), StorageError)
        assert back_offs.error_of("b") is None
        clock.advance_ms(1)
        assert back_offs.error_of("a") is None
    with back_offs.after_failure("a"):
        pass
    assert not back_offs


def test_error_that_does_not_count_and_keys_that_are_gone_leave_nothing() -> None:
    back_offs = BackOffs[str](VirtualClock(), pause_ms=3, pause_ms_max=10)
    with suppress(StorageError), back_offs.after_failure("a", lambda error: not error.retriable):
        raise StorageError("slow")
    assert not back_offs
    with suppress(StorageError), back_offs.after_failure("a"):
        raise StorageError("slow")
    back_offs.keep_if(lambda key: key != "a")
    assert not back_offs
