"""What Tab suggests: names of the cluster that the line, or TXNLOG_ROOT, says.

Shells read a suggestion as code: zsh evaluates it at Tab, bash puts it on the line without quotes,
and this command takes one that begins with a dash as an option. Names are chosen by any client, so
only those of the characters of a topic's name are suggested (D137).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import typer

from txnlog.cli.session import Session, given_root, parse_storage

if TYPE_CHECKING:
    from txnlog.admin import AdminClient

_SAFE: Final = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*", re.ASCII)


def topics(context: typer.Context, incomplete: str) -> list[str]:
    """Names of topics."""
    return _found(context, incomplete, lambda admin: admin.list_topics().topics)


def groups(context: typer.Context, incomplete: str) -> list[str]:
    """Names of groups, also of unreadable ones."""

    def find(admin: AdminClient) -> Iterable[str]:
        found = admin.list_consumer_groups().result()
        unreadable = (str(error.key) for error in found.errors)  # type: ignore[attr-defined]
        return [*(group.group_id for group in found.valid), *unreadable]

    return _found(context, incomplete, find)


def transactional_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Transactional ids."""
    return _found(
        context,
        incomplete,
        lambda admin: (found.transactional_id for found in admin.list_transactions().result()),
    )


def configs(incomplete: str) -> list[tuple[str, str]]:
    """Names of topic configurations, with their meaning."""
    from txnlog.settings.topic_configs import TOPIC_CONFIGS

    return [
        (row.name, row.doc) for row in TOPIC_CONFIGS.values() if row.name.startswith(incomplete)
    ]


def config_pairs(incomplete: str) -> list[tuple[str, str]]:
    """The same, for name=value."""
    return [(f"{name}=", doc) for name, doc in configs(incomplete)]


def states(incomplete: str) -> list[str]:
    """Names of the states of a transaction."""
    from txnlog.protocol.states import TransactionState

    names = [state.kafka_name for state in TransactionState]
    return [name for name in names if name.startswith(incomplete)]


def isolation_levels(incomplete: str) -> list[str]:
    """The two isolation levels."""
    levels = ("read_committed", "read_uncommitted")
    return [level for level in levels if level.startswith(incomplete)]


def _found(
    context: typer.Context, incomplete: str, find: Callable[[AdminClient], Iterable[str]]
) -> list[str]:
    given = context.find_root().params
    logging.disable()
    try:
        session = Session(
            root=given_root(context), storage=parse_storage(given.get("storage") or ())
        )
        names = (name for name in find(session.admin()) if _SAFE.fullmatch(name))
        return sorted(name for name in names if name.startswith(incomplete))
    except Exception:
        # No root, or one that cannot be read: a shell that completes a line shows no errors.
        return []
    finally:
        logging.disable(logging.NOTSET)
