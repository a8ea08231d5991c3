"""Which Delta tables may be enlisted: features and properties that are refused, by name."""

from __future__ import annotations

from txnlog.protocol.enlisted.actions import Definition, TableState


def check_enlistable(state: TableState) -> None:
    """Raise TableFeatureError for a table that txnlog may not write; says what to do.

    Asked when a table is enlisted, and again before each decision.
    """
    raise NotImplementedError


def unknown_features(definition: Definition) -> list[str]:
    """The features of a table that forbid txnlog to write a file of it."""
    raise NotImplementedError
