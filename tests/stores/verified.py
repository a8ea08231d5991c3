"""`txnlog verify` of a root on a server, and the invariants of its logs."""

from __future__ import annotations

from tests.stores.servers import Place
from txnlog.testing.invariants import check_cluster
from txnlog.verifying.report import VerifySettings
from txnlog.verifying.verifier import verify


def verify_place(place: Place, *, settled: bool = True) -> None:
    """Raise AssertionError for a finding, of reading all data files, too."""
    found = verify(place.open(), VerifySettings(deep=True))
    assert not len(found.findings), [str(finding) for finding in found.findings.kept]
    assert found.is_complete
    check_cluster(place.open_cluster(), settled=settled)
