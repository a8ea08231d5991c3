"""`txnlog verify` of a root on a server, and the invariants of its logs."""

from __future__ import annotations

from collections.abc import Sequence

from tests.stores.servers import Place
from tests.world import complete_all
from txnlog.protocol.verification.findings import FindingKind
from txnlog.testing.invariants import check_cluster
from txnlog.verifying.report import VerifySettings
from txnlog.verifying.verifier import verify

NAMES_ONLY = (FindingKind.FILE_DAMAGED, FindingKind.OFFSET_WITHOUT_PARTITION)
"""What the coordinator's tests leave: files without records, an input topic by name only."""


def verify_place(
    place: Place, *, settled: bool = True, expected: Sequence[FindingKind] = ()
) -> None:
    """Raise AssertionError for a finding of another kind, of reading all data files, too.

    COMPLETE of a query's last micro-batch may be left, where the store has refused it.
    """
    if settled:
        complete_all(place.open_cluster())
    found = verify(place.open(), VerifySettings(deep=True))
    findings = [str(finding) for finding in found.findings.kept if finding.kind not in expected]
    assert not findings, findings
    assert found.is_complete
    check_cluster(place.open_cluster(), settled=settled)
