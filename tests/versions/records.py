"""What `make versions` found on each Spark, and the tables of docs/versions.md made from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECORDS = Path(__file__).with_name("records")
PAGE = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- made from tests/versions/records -->", "<!-- end -->"

Record = Mapping[str, Any]


def write_record(record: Record) -> None:
    """Replace the record of a Spark and Python, and renew the page."""
    RECORDS.mkdir(exist_ok=True)
    name = f"spark{record['spark']}-python{record['python']}.json"
    (RECORDS / name).write_text(json.dumps(record, indent=1) + "\n")
    PAGE.write_text(with_tables(PAGE.read_text(), read_records()))


def read_records() -> list[Record]:
    """All records, in the order of their Sparks and Pythons."""
    found = [json.loads(file.read_text()) for file in RECORDS.glob("*.json")]
    return sorted(found, key=lambda one: [*_numbers(one["spark"]), *_numbers(one["python"])])


def with_tables(page: str, records: Sequence[Record]) -> str:
    """The page with the tables of these records between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    assert mark, f"{PAGE} has no {BEGIN} with an {END}"
    return f"{before}{BEGIN}\n{differences(records)}\n{runs(records)}{END}{after}"


def differences(records: Sequence[Record]) -> str:
    """What each Spark has, one column for each."""
    newest = {record["spark"]: record for record in records}

    def row(name: str, cells: Sequence[str]) -> str:
        return f"| {name} | {' | '.join(cells)} |\n"

    def each(feature: str, yes: str, no: str) -> list[str]:
        return [yes if record["features"][feature] else no for record in newest.values()]

    jars = [
        f"`{jar}`" if (jar := record["features"]["delta_jar"]) else "no jar yet"
        for record in newest.values()
    ]
    confs = [
        f"[spark{spark}.conf](configuration.md#confspark{spark.replace('.', '')}conf)"
        if record["features"]["conf"]
        else ""
        for spark, record in newest.items()
    ]
    limits = "`maxOffsetsPerTrigger`, `minOffsetsPerTrigger`, `maxTriggerDelay`"
    return "".join(
        (
            row("", list(newest)),
            f"|---|{'---|' * len(newest)}\n",
            row(limits, each("limits", "yes", "ignored, with one warning")),
            row("`Trigger.AvailableNow`", each("limits", "batches up to the end", "one batch")),
            row("filters of a batch read that skip files", each("filters", "yes", "no")),
            row("Unix domain sockets", each("unix_sockets", "yes", "no: 40 ms a hop")),
            row("`--packages` for SQL views, `read_committed`", jars),
            row(
                "Delta tables in [`transactional`](howto/tables.md#write-to-it-from-spark)",
                each("delta_jar", "yes", "refused: no jar yet"),
            ),
            row("lines of `conf/` that differ", confs),
        )
    )


def runs(records: Sequence[Record]) -> str:
    """What was run, one line for each run."""
    lines = [
        "| pyspark | Python | tests | not for it | SIGKILLs | within a batch | minutes | date |\n",
        "|---|---|--:|--:|--:|--:|--:|---|\n",
    ]
    for one in records:
        cells = [one[name] for name in ("pyspark", "python", "passed", "skipped", "kills")]
        cells += [one[name] for name in ("interrupted", "minutes", "date")]
        lines.append(f"| {' | '.join(map(str, cells))} |\n")
    return "".join(lines)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]
