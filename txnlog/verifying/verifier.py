"""Verifies everything below a root; a second pass checks what the first one found damaged.

It never writes. Two rules prevent false alarms beside active writers and housekeeping. Tables are
read in an order in which a write between two reads can only make a check succeed: consumer offsets,
shards, topics, shards again, consumer offsets again, `__cluster` last. And only findings of both
passes are reported.
"""

from __future__ import annotations

from txnlog.storage.store.objects import ObjectStore
from txnlog.verifying.report import (
    Progress,
    Verification,
    VerifySettings,
    no_progress,
)
from txnlog.verifying.verify_pass import VerifyPass

SECOND_PASS_MS = 1_000


def verify(
    store: ObjectStore,
    settings: VerifySettings | None = None,
    *,
    progress: Progress = no_progress,
) -> Verification:
    """Verify a root. Raises ConfigError if there is no cluster, StorageError if the root cannot be
    listed, UnknownTopicOrPartitionError for a topic that does not exist.
    """
    settings = settings or VerifySettings()
    first = VerifyPass(store, settings, progress)
    first.run()
    found = first.found
    if len(found.findings):
        store.clock.sleep_ms(SECOND_PASS_MS)
        again = VerifyPass(store, settings, progress, first=first)
        again.run()
        found.findings = found.findings.confirmed_by(again.found.findings)
        found.errors += [error for error in again.found.errors if error not in found.errors]
    found.findings.extend(first.undecided)
    return found
