"""One CSV file, one transaction: all lines of each file are in a topic once, however often killed.

The loader takes the files of a folder in the order of their names. The records of a file and its
name, in the topic `loaded`, are one transaction. So no file counts as loaded without its records,
and no reader sees a part of a file.

    python examples/csv_files.py [--kills 20] [--zombies 5]
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa
from killing import Killer, Life, add_arguments, folder_of, run
from pyarrow import csv as arrow_csv

from txnlog import OFFSET_BEGINNING, Cluster, Consumer, Message, Producer, TopicPartition

LINES = 20
STEPS = ("arrived", "produced", "committed")
TEXT = {"number": pa.string(), "article": pa.string()}


def load(root: str, folder: str, life: Life, files: int) -> None:
    """A worker: load the files that are there, and then others as they arrive."""
    producer = Producer({"txnlog.root": root, "transactional.id": "loader"})
    # Ends what the former loader has left: no file can be added to `loaded` any more but by us.
    producer.init_transactions()
    loaded = {(message.key() or b"").decode() for message in messages_of(root, "loaded")}
    for file in sorted(Path(folder).glob("*.csv")):
        if file.name not in loaded:
            load_file(producer, file, life)
    life.opened()
    for number in range(len(list(Path(folder).glob("*.csv"))), files):
        file = arrive(folder, number)
        life.passed("arrived")
        load_file(producer, file, life)


def load_file(producer: Producer, file: Path, life: Life) -> None:
    """One transaction: the records of a file, and that it is loaded."""
    options = arrow_csv.ConvertOptions(column_types=TEXT)
    lines = arrow_csv.read_csv(file, convert_options=options)
    names = pa.array([file.name] * len(lines))
    records = pa.table({"key": lines["number"], "value": names})
    with producer.transaction():
        producer.produce_batch("lines", records)
        producer.produce("loaded", str(len(lines)), key=file.name)
        life.passed("produced")
    life.passed("committed")


def arrive(folder: str, number: int) -> Path:
    """A file as another system writes it: it has its name when it is whole."""
    file = Path(folder) / f"{number:06}.csv"
    draft = file.with_suffix(".draft")
    with open(draft, "w", newline="") as opened:
        written = csv.writer(opened)
        written.writerow(TEXT)
        for line in range(number * LINES, (number + 1) * LINES):
            written.writerow([line, "apple"])
    return draft.rename(file)


def messages_of(root: str, topic: str) -> list[Message]:
    """Those that a read_committed reader sees, of a topic of one partition."""
    with Consumer({"txnlog.root": root}) as consumer:
        partition = TopicPartition(topic, 0, OFFSET_BEGINNING)
        consumer.assign([partition])
        _, end = consumer.get_watermark_offsets(partition)
        return consumer.consume(end, timeout=60)


def loaded_lines(root: str) -> Counter[int]:
    """Line -> how many records; no file may be visible in part."""
    messages = messages_of(root, "lines")
    sizes = Counter(message.value() for message in messages)
    assert set(sizes.values()) <= {LINES}, f"A file in part, or twice: {sizes}"
    return Counter(int(message.key() or b"") for message in messages)


def lines_of(folder: str) -> Counter[int]:
    """Line -> how often it is in the files."""
    found: Counter[int] = Counter()
    for file in Path(folder).glob("*.csv"):
        with open(file, newline="") as opened:
            found.update(int(line["number"]) for line in csv.DictReader(opened))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    arguments = parser.parse_args()
    root = str(folder_of(arguments) / "cluster")
    cluster = Cluster.open(root, create=True)
    cluster.create_topic("lines", partitions=1, exist_ok=True)
    compacted = {"cleanup.policy": "compact"}
    cluster.create_topic("loaded", partitions=1, config=compacted, exist_ok=True)
    folder = str(Path(root).with_name("incoming"))
    Path(folder).mkdir(exist_ok=True)
    killer = Killer(
        partial(load, root, folder), partial(loaded_lines, root), partial(lines_of, folder)
    )
    run(killer, arguments, STEPS, stops=STEPS)
    killer.finish()
    files, differences = len(list(Path(folder).glob("*.csv"))), killer.differences()
    print(f"{files} files, {differences} differences after {killer.kills} kills.")
    raise SystemExit(1 if differences else 0)


if __name__ == "__main__":
    main()
