"""Looks at everything below a root, and once more at what seems damaged.

It never writes. Beside live writers and housekeeping two things keep it from false alarms. Tables
are read in an order in which a write between two reads can only make a check succeed: consumer
offsets, shards, topics, shards again, consumer offsets again, `__cluster` last. And what is found
is looked for again: only what both looks find is reported.
"""

from __future__ import annotations

from txnlog.storage.store.objects import ObjectStore
from txnlog.verifying.look import Look
from txnlog.verifying.report import (
    Progress,
    Verification,
    VerifySettings,
    no_progress,
)

LOOK_AGAIN_MS = 1_000


def verify(
    store: ObjectStore,
    settings: VerifySettings | None = None,
    *,
    progress: Progress = no_progress,
) -> Verification:
    """Check a root. Raises ConfigError when there is no cluster, StorageError when the root cannot
    be listed, UnknownTopicOrPartitionError for a topic that is not there.
    """
    settings = settings or VerifySettings()
    first = Look(store, settings, progress)
    first.run()
    found = first.found
    if len(found.findings):
        store.clock.sleep_ms(LOOK_AGAIN_MS)
        again = Look(store, settings, progress, known=first)
        again.run()
        found.findings = found.findings.confirmed_by(again.found.findings)
        found.errors += [error for error in again.found.errors if error not in found.errors]
    return found
