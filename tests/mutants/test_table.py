"""The table of mutants fits the code and the tests as they are; `make mutants` runs it."""

from __future__ import annotations

from collections import Counter

from tests.mutants.table import ROOT, missing_tests, read_table

MUTANTS_MIN = 80
AREAS = {"commits", "groups", "vacuum", "checkpoints", "source"}
HARMLESS_SHARE_MAX = 0.05


def test_table_covers_each_area_with_mutants_of_their_own() -> None:
    """A mutant that is there twice, or a table that shrinks, proves less than it says."""
    table = read_table()
    assert len(table) >= MUTANTS_MIN
    assert {mutant.area for mutant in table} >= AREAS
    assert [id for id, n in Counter(mutant.id for mutant in table).items() if n > 1] == []
    places = Counter((mutant.file, mutant.old, mutant.new) for mutant in table)
    assert [place for place, n in places.items() if n > 1] == []
    assert sum(bool(mutant.harmless) for mutant in table) <= HARMLESS_SHARE_MAX * len(table)


def test_each_mutant_changes_one_place_of_the_code_as_it_is() -> None:
    """A mutant whose line was reworded since tests nothing any more."""
    wrong = []
    for mutant in read_table():
        assert mutant.old.split() != mutant.new.split(), mutant.id
        try:
            mutant.apply(ROOT)
        except ValueError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


def test_the_tests_of_each_mutant_are_there() -> None:
    """Without a test that was renamed, pytest would select nothing."""
    assert {m.id: missing_tests(m) for m in read_table() if missing_tests(m) or not m.tests} == {}
