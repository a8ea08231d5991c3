"""Faults of a log that its model must find: methods of one DeltaLog are replaced."""

from __future__ import annotations

from txnlog.storage.delta.delta_log import DeltaLog


def trust_denials(log: DeltaLog) -> None:
    """The slot before is checked for commits of its own only."""
    settle = log._put_until_settled

    def settle_and_trust(path: str, data: bytes, write_id: str) -> bool | None:
        landed = settle(path, data, write_id)
        if landed is False:
            log._follows = lambda version, beside=(): True  # type: ignore[method-assign]
        return landed

    log._put_until_settled = settle_and_trust  # type: ignore[method-assign]


def prove_by_absence(log: DeltaLog) -> None:
    """A refresh counts as a proof also where it has not looked at the slot before."""
    is_at_head = log._is_at_head

    def at_head(base: int, wall_ms: int, *, sure: bool) -> bool:
        if not is_at_head(base, wall_ms, sure=sure):
            return False
        log._proved_wall_ms = wall_ms
        return True

    log._is_at_head = at_head  # type: ignore[method-assign]


def prove_by_a_late_look(log: DeltaLog) -> None:
    """The slot before is proof of when it was looked at, not of when the next one was empty."""
    is_at_head = log._is_at_head

    def at_head(base: int, wall_ms: int, *, sure: bool) -> bool:
        return is_at_head(base, log._clock.now_ms(), sure=sure)

    log._is_at_head = at_head  # type: ignore[method-assign]
