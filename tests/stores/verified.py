"""`txnlog verify` of a root on a server, and the invariants of its logs."""

from __future__ import annotations

from tests.stores.servers import Place
from txnlog.protocol.verification.findings import FindingKind
from txnlog.testing.invariants import check_cluster
from txnlog.verifying.report import VerifySettings
from txnlog.verifying.verifier import verify


def verify_place(place: Place, *, settled: bool = True, has_files: bool = True) -> None:
    """Raise AssertionError for a finding, of reading all data files, too.

    `has_files`: not so where a test's batches are files by name only.
    """
    found = verify(place.open(), VerifySettings(deep=True))
    findings = [
        str(finding)
        for finding in found.findings.kept
        if has_files or finding.kind is not FindingKind.FILE_MISSING
    ]
    assert not findings, findings
    assert found.is_complete
    check_cluster(place.open_cluster(), settled=settled)
