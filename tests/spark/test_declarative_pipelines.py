"""examples/declarative_pipeline, run by Spark's own command as its readers run it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp

import pytest
from flights_driver import driver_environment

from tests.docs.blocks import ROOT, blocks
from txnlog import OFFSET_BEGINNING, Cluster, Consumer, Producer, TopicPartition

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXAMPLE = ROOT / "examples" / "declarative_pipeline"
WAIT_S = 600


class Pipeline:
    """The example in a folder of its own, with its root and its checkpoints there."""

    def __init__(self, folder: Path) -> None:
        self.root = str(folder / "lake")
        self._folder = folder / "pipeline"
        shutil.copytree(EXAMPLE, self._folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "storage").mkdir()
        spec = self._folder / "spark-pipeline.yml"
        text = spec.read_text()
        for place, here in (
            ("/data/pipelines/orders", str(folder / "storage")),
            ("/data/lake", self.root),
        ):
            assert text.count(place) == 1
            text = text.replace(place, here)
        spec.write_text(text)

    def feed(self, numbers: range) -> None:
        """Every fifth record of `orders` is no order."""
        with Producer({"txnlog.root": self.root, "num.partitions": 2}) as producer:
            for number in numbers:
                value = "no order" if number % 5 == 0 else f'{{"amount": {number}}}'
                producer.produce("orders", value, key=str(number))

    def run(self, *arguments: str, failpoint: str = "") -> str:
        """`spark-pipelines run`; returns what it printed."""
        temporary = self._folder.with_name("tmp")
        temporary.mkdir(exist_ok=True)
        program = Path(sys.executable).with_name("spark-pipelines")
        ran = subprocess.run(
            [str(program), "run", *arguments],
            cwd=self._folder,
            env=driver_environment(temporary, {"TXNLOG_FAILPOINT": failpoint}),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    def assert_checked(self, numbers: range) -> None:
        """Each record of `orders` is in the topic of its kind, once."""
        expected = {
            "orders.checked": [str(number) for number in numbers if number % 5],
            "orders.refused": [str(number) for number in numbers if number % 5 == 0],
        }
        for topic, keys in expected.items():
            assert self._keys(topic) == Counter(keys), topic

    def _keys(self, topic: str) -> Counter[str]:
        partitions = Cluster.open(self.root).topic(topic).view.partitions
        starts = [
            TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(len(partitions))
        ]
        with Consumer({"txnlog.root": self.root}) as consumer:
            consumer.assign(starts)
            messages = consumer.consume(sum(each.end_offset for each in partitions), timeout=60)
        return Counter((message.key() or b"").decode() for message in messages)


def test_page_shows_the_files_of_the_example() -> None:
    page = ROOT / "docs" / "howto" / "pipelines.md"
    shown = {block.title: block.text for block in blocks(page) if block.title is not None}
    files = [file for file in EXAMPLE.iterdir() if file.is_file()]
    assert shown == {file.name: file.read_text() for file in files}


@pytest.mark.soak
def test_run_checks_each_record_once_also_when_its_flow_is_killed(scratch: Path) -> None:
    """Spark starts a failed flow again; its batch was decided before the kill."""
    pipeline = Pipeline(Path(mkdtemp(dir=scratch)))
    pipeline.feed(range(15))
    killed = Path(pipeline.root).with_name("failpoint")
    killed.write_text("prepare_commit.after")
    printed = pipeline.run(failpoint=f"file:{killed}")
    assert "Flow 'check_orders' has FAILED" in printed
    pipeline.assert_checked(range(15))


@pytest.mark.soak
@pytest.mark.parametrize("arguments", [(), ("--full-refresh-all",)])
def test_second_run_adds_only_new_records(scratch: Path, arguments: tuple[str, ...]) -> None:
    """A full refresh has a new checkpoint, and continues where the group is."""
    pipeline = Pipeline(Path(mkdtemp(dir=scratch)))
    pipeline.feed(range(10))
    pipeline.run()
    pipeline.assert_checked(range(10))
    pipeline.feed(range(10, 15))
    pipeline.run(*arguments)
    pipeline.assert_checked(range(15))
