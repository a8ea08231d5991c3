"""The table of docs/rules.md: every rule of the protocol, and its tests.

A rule without a test is not enforced; a table without a check is soon outdated.
`python tests/project/test_rules.py` regenerates the last column.
"""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
PAGE = ROOT / "docs" / "rules.md"
DECISIONS = ROOT / "ARCHITECTURE.md"
RULES = range(1, 80)
# Rules of features that do not exist yet.
TO_COME: frozenset[int] = frozenset()
DECISION_WORDS_MAX = 25
PAGE_LINES_MAX = 75
PAGE_HEADINGS = (
    *("What goes wrong without it", "The decision", "Why it is enough"),
    *("Rejected", "What it costs", "Where it is"),
)
CITING_FOLDERS = (
    *("txnlog", "spark_source", "spark_sink", "checkpoint", "tests", "docs"),
    *("jobs", "benchmarks", "notebooks", "examples", "conf"),
)
# A notebook's .py has the same cells (test_notebooks.py), and no pictures, which are any letters.
CITING_SUFFIXES = (".md", ".py", ".toml", ".txt", ".conf", ".yaml", ".properties", ".sh")

_ROW = re.compile(r"^\| R(\d+) \| (.*?) \| (.*?) \|$", re.MULTILINE)
_CITED = re.compile(r"(?<![\w-])([RD]\d{1,3})(?![\w-])")
_PAGE = re.compile(
    r"^\| \[(.+?)\]\((.+?)\) \| ([D\d, ]*) \| (.+?) \| 20\d\d-\d\d-\d\d \|$", re.MULTILINE
)
_DECISION = re.compile(
    r"^\| D(\d+) \| (.+?) \| (.+?) \| `(.+?)` \| 20\d\d-\d\d-\d\d \|$", re.MULTILINE
)
_NAMED = re.compile(r"\bR(\d{1,2})\b(?:-R?(\d{1,2})\b)?")


def files_naming_rules() -> dict[int, set[str]]:
    """Rule -> the test files that cite it, as R17 or within R12-R20."""
    found: dict[int, set[str]] = {rule: set() for rule in RULES}
    for path in TESTS.rglob("test_*.py"):
        if path == Path(__file__):
            continue
        for first, last in _NAMED.findall(path.read_text()):
            for rule in range(int(first), int(last or first) + 1):
                if rule in found:
                    found[rule].add(path.relative_to(TESTS).as_posix())
    return found


def rows() -> dict[int, tuple[str, list[str]]]:
    """Rule -> (its text, files in the table)."""
    return {
        int(rule): (text, re.findall(r"`([^`]+)`", files))
        for rule, text, files in _ROW.findall(PAGE.read_text())
    }


def test_table_has_every_rule_with_a_test_that_cites_it() -> None:
    """Detects renamed files, and rules whose last test was removed."""
    named = files_naming_rules()
    table = rows()
    assert sorted(table) == list(RULES)
    wrong = {
        f"R{rule}": [file for file in files if file not in named[rule]]
        for rule, (_, files) in table.items()
        if any(file not in named[rule] for file in files)
    }
    assert wrong == {}
    without = {rule for rule, (_, files) in table.items() if not files}
    assert without == TO_COME


def test_cited_rules_and_decisions_exist() -> None:
    """With a wrong citation a reader searches all documents."""
    known = {f"D{number}" for number in homes()} | {f"R{rule}" for rule in RULES}
    wrong = [
        f"{path.relative_to(ROOT)}: {cited}"
        for path in cited_in()
        for cited in _CITED.findall(path.read_text())
        if cited not in known
    ]
    assert wrong == []


def test_nothing_else_is_cited_by_number() -> None:
    """Numbers of former lists of rules mean nothing."""
    loose = re.compile(r"\b(?:design )?rule \d+\b")
    assert [path for path in cited_in() if loose.search(path.read_text())] == []


def cited_in() -> list[Path]:
    """Files of the project that may cite a rule or a decision."""
    found = [path for folder in CITING_FOLDERS for path in (ROOT / folder).rglob("*")]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    return [path for path in found if path.suffix in CITING_SUFFIXES or path.name == "Makefile"]


def decisions() -> str:
    """The part of ARCHITECTURE.md that lists them."""
    return DECISIONS.read_text().partition("\n## Decisions\n")[2].partition("\n## ")[0]


def homes() -> dict[int, str]:
    """Decision -> the file that says why: a page of docs/design, or a module."""
    pages = [(numbers, page) for _, page, numbers, _ in _PAGE.findall(decisions())]
    found = {int(one): page for numbers, page in pages for one in re.findall(r"\d+", numbers)}
    return found | {int(number): file for number, _, _, file in _DECISION.findall(decisions())}


def test_each_decision_has_its_reason_cost_and_date_in_few_words() -> None:
    """A decision without its reason is undone by the next reader; a long list is not read."""
    rows = [line for line in decisions().splitlines() if re.match(r"\| (D\d|\[)", line)]
    titles = [title for title, *_ in _PAGE.findall(decisions())]
    titles += [title for _, title, *_ in _DECISION.findall(decisions())]
    assert len(titles) == len(rows)
    assert not [title for title in titles if len(title.split()) > DECISION_WORDS_MAX]
    assert not [
        f"D{number}: {file}"
        for number, file in homes().items()
        if not re.search(rf"\bD{number}\b", (ROOT / file).read_text())
    ]


def test_pages_of_decisions_say_what_a_newcomer_asks() -> None:
    """Without the history a page is a claim; one that is longer than two screens is not read."""
    listed = {ROOT / page for _, page, *_ in _PAGE.findall(decisions())}
    assert listed == set((ROOT / "docs/design").glob("*.md")) - {ROOT / "docs/design/README.md"}
    for page in listed:
        text = page.read_text()
        assert [one for one in PAGE_HEADINGS if f"\n## {one}" not in text] == [], page
        assert len(text.splitlines()) <= PAGE_LINES_MAX, page


def test_numbers_of_decisions_that_are_gone_are_named() -> None:
    """Whoever meets one in the history finds what became of it; none is given twice."""
    gone = decisions().partition("**Numbers that are gone.**")[2]
    numbers = [int(number) for number in re.findall(r"\d+", gone)]
    assert sorted([*numbers, *homes()]) == list(range(1, max(homes()) + 1))


def write_table() -> None:
    """Write the last column: up to three files each, those nearest to the protocol first."""
    named = files_naming_rules()
    order = ("protocol/", "storage/", "coordinator/", "producer/", "consumer/", "model/", "soak/")

    def near(file: str) -> tuple[int, str]:
        return next((n for n, folder in enumerate(order) if file.startswith(folder)), 9), file

    def row(found: re.Match[str]) -> str:
        rule = int(found[1])
        files = ", ".join(f"`{file}`" for file in sorted(named[rule], key=near)[:3])
        return f"| R{rule} | {found[2]} | {files} |"

    PAGE.write_text(_ROW.sub(row, PAGE.read_text()))


if __name__ == "__main__":
    write_table()
