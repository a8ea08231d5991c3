"""Which of a table's old files may be deleted."""

from __future__ import annotations

from txnlog.protocol.vacuum import StoredFile, find_deletable


def test_file_that_is_live_named_or_removed_a_moment_ago_stays() -> None:
    """A decided transaction would publish a file that is gone (R72)."""
    old = [StoredFile(name, 1, 0) for name in ("live", "named", "young", "old", "orphan")]
    deletable = find_deletable(
        old,
        table="t",
        live={"live"},
        named={"named"},
        removed_ms={"young": 150, "old": 100},
        now_ms=200,
        age_ms=100,
    )
    assert [item.path for item in deletable] == ["t/old", "t/orphan"]
