"""Every planted damage is found, and named (R66)."""

from __future__ import annotations

import pytest

from tests.verify.damage import DAMAGES
from tests.verify.planting import Damage
from tests.verify.roots import shown, verified
from txnlog.protocol.verification.findings import KINDS, FindingKind, Severity
from txnlog.testing.counts import count


@pytest.mark.parametrize("damage", DAMAGES, ids=[damage.name for damage in DAMAGES])
def test_planted_damage_is_found_and_named(damage: Damage, root: str) -> None:
    """Unreported damage becomes lost or doubled records later."""
    place = damage.plant(root)
    found = verified(root, deep=damage.deep, later_ms=damage.later_ms)
    hits = [finding for finding in found.findings if finding.kind in damage.kinds]
    assert hits, f"found instead:\n{shown(found.findings.kept)}"
    assert any(
        place in text for hit in hits for text in (hit.file, hit.table, hit.subject, hit.what)
    ), f"{place} is not named:\n{shown(hits)}"
    count("damage planted", f"{hits[0].kind.value}, for verify")
    count("damage found", f"{hits[0].kind.value}, by verify")
    errors = any(KINDS[hit.kind].severity is Severity.ERROR for hit in hits)
    assert found.is_damaged >= errors


def test_every_kind_is_planted() -> None:
    """A kind that no test plants may never be reported."""
    planted = {kind for damage in DAMAGES for kind in damage.kinds}
    # In a Delta table of others, by tests/verify/test_publications.py.
    planted.add(FindingKind.PUBLICATION_LOST)
    assert set(FindingKind) == planted
