"""A root without damage has no findings, and nothing in it changes."""

from __future__ import annotations

from tests.verify.roots import shown, verified


def test_a_root_with_everything_is_clean(root: str) -> None:
    """A false alarm teaches operators to ignore the true ones."""
    for deep in (False, True):
        found = verified(root, deep=deep)
        assert not len(found.findings), shown(found.findings.kept)
        assert found.is_complete
        assert found.batches > 20
        assert bool(found.data_files_read) is deep
