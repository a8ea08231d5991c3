"""The language of the traces.

    create orders stock                 topics of one partition
    group readers                       a group at its next generation
    a init tx                           process a becomes the owner of transactional.id tx
    a commit orders=x1,x2 read=0..10    a deferred transaction: records, and input offsets
    a chain orders=x1 read=0..10        as a producer does it: COMPLETE comes with its next one
    a open orders=x1 read=0..10         an eager one begins: partitions, then data
    a append orders=x2                  more data for it; its partitions are added first
    a commit | a abort                  its end
    s time-out tx | s finish tx         a sweeper acts on a row that it has read
    s sweep                             one full round of a sweeper
    a fetch readers                     committed positions, for a reader that needs stable ones
    a continues                         a stopped process continues
    wait 61                             seconds pass

A line may end in `stop-before=`, `stop-after=`, `die-before=` or `die-after=` and a write:
PREPARE_COMMIT, or with the table, PRODUCE:orders; TIME_OUT stands for TIME OUT, and so on.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress

from tests.interaction.environment import Process, Stop, World
from tests.interaction.rendering import render
from tests.staged_files import append_ongoing, record_columns, written_file
from tests.world import finish_read
from txnlog.cluster import Cluster
from txnlog.coordinator.fencing import time_out
from txnlog.coordinator.finishing import complete
from txnlog.coordinator.sweeper import Sweeper
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import Owner, StagedBatch, TopicPartitions, TransactionMetadata
from txnlog.storage.delta.readings import Reading

GROUP = "readers"
TIMEOUT_MS = 60_000
SWEEP_MS = 31_000
STATES = ("PREPARE_", "COMPLETE_")


class Interpreter:
    """Executes one line after the other, and reports the results."""

    def __init__(self) -> None:
        self.world = World()
        self._sweepers: dict[Cluster, Sweeper] = {}

    def step(self, line: str) -> list[str]:
        """The result of a line: the writes, the answer, and the state afterwards."""
        words, stop = _split(line)
        match words:
            case ["create", *topics]:
                for topic in topics:
                    self.world.reader().create_topic(topic, partitions=1)
                lines = []
            case ["group", name]:
                lines = [f"generation {self.world.reader().groups.start(name)}"]
            case ["wait", seconds]:
                self.world.shared.clock.advance_ms(int(seconds) * 1000)
                return ["ok"]
            case [name, "continues"]:
                lines = self.world.processes[name].resume(stop)
            case [name, verb, *rest]:
                process = self.world.process(name)
                lines = process.run(self._act(process, verb, rest), stop)
            case _:
                raise ValueError(f"{line!r} is no command")
        return [*lines, *render(self.world.reader())]

    def end(self) -> None:
        self.world.end()

    def _act(self, process: Process, verb: str, rest: Sequence[str]) -> Callable[[], str]:
        cluster = process.cluster
        coordinator = cluster.coordinator

        def act() -> str:
            match verb, rest:
                case "init", [name]:
                    owner = Owner(run_id=process.name, host="there", pid=1)
                    process.row = coordinator.init_producer_id(name, owner, timeout_ms=TIMEOUT_MS)
                    process.sequences.clear()
                case "open" | "append", given:
                    self._append(process, given, is_first=verb == "open")
                case "commit" | "chain", given:
                    batches, read = _given(cluster, given)
                    row = coordinator.commit(_own(process), batches, offsets=read)
                    if verb == "commit" and row.state.is_prepared:
                        row = complete(cluster, row) or row
                    _adopt(process, row)
                case "abort", []:
                    _adopt(process, coordinator.abort(_own(process)))
                case "time-out", [name]:
                    time_out(cluster, _row(cluster, name), by=process.name)
                case "finish", [name]:
                    finish_read(cluster, _row(cluster, name), Reading.begin(cluster.store.clock))
                case "sweep", []:
                    sweeper = self._sweepers.setdefault(
                        cluster, Sweeper(cluster, interval_ms=SWEEP_MS)
                    )
                    return f"settles {sweeper.sweep()}"
                case "fetch", [group]:
                    return f"finds {cluster.groups.fetch(group) or 'nothing'}"
                case _:
                    raise ValueError(f"{verb} {rest} is no command")
            return "is done"

        return act

    def _append(self, process: Process, given: Sequence[str], *, is_first: bool) -> None:
        coordinator = process.cluster.coordinator
        batches, read = _given(process.cluster, given)
        if is_first:
            process.sequences.clear()
        named = [
            TopicPartitions(topic=b.topic, topic_id=b.topic_id, partitions=(0,)) for b in batches
        ]
        process.row = coordinator.add_partitions(_own(process), named, offsets=read)
        for batch in batches:
            sequence = process.sequences.get(batch.topic, 0)
            append_ongoing(process.cluster, process.row, [batch], {0: sequence})
            process.sequences[batch.topic] = sequence + batch.num_records


def replay(text: str) -> str:
    """The trace with the current answers."""
    interpreter = Interpreter()
    out: list[str] = []
    try:
        for block in text.strip().split("\n\n"):
            lines = block.split("\n")
            heads = [line for line in lines if line.startswith("#")]
            commands = [line for line in lines if line.startswith("> ")]
            assert len(commands) <= 1, f"one command per block, not {commands}"
            answers = [] if not commands else interpreter.step(commands[0].removeprefix("> "))
            out.append("\n".join([*heads, *commands, *map(_fitted, answers)]))
    finally:
        with suppress(AssertionError):
            interpreter.end()
    return "\n\n".join(out) + "\n"


def _fitted(line: str) -> str:
    return textwrap.fill(
        line, 100, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False
    )


def _split(line: str) -> tuple[list[str], Stop | None]:
    words = line.split()
    how, is_stop, write = words[-1].partition("=")
    if not is_stop or how.split("-")[0] not in ("stop", "die"):
        return words, None
    operation, *table = write.split(":")
    if not operation.startswith(STATES):
        operation = operation.replace("_", " ")
    kind, when = how.split("-")
    return words[:-1], Stop(kind, when, ":".join([operation, *table]))


def _own(process: Process) -> TransactionMetadata:
    assert process.row is not None, f"{process.name} has called no init"
    return process.row


def _adopt(process: Process, row: TransactionMetadata) -> None:
    """Continue with the row after an end, as a producer does; not with another owner's row."""
    if row.owner.run_id == process.name:
        process.row = row


def _row(cluster: Cluster, name: str) -> TransactionMetadata:
    row = cluster.coordinator.describe(name)
    assert row is not None, f"there is no row of {name}"
    return row


def _given(cluster: Cluster, given: Sequence[str]) -> tuple[list[StagedBatch], list[GroupOffsets]]:
    batches, read = [], []
    for word in given:
        name, _, what = word.partition("=")
        if name == "read":
            start, _, end = what.partition("..")
            read.append(
                GroupOffsets(
                    group_id=GROUP,
                    generation=1,
                    start={"input": {0: int(start)}},
                    end={"input": {0: int(end)}},
                )
            )
        else:
            batches.append(_staged(cluster, name, what.split(",")))
    return batches, read


def _staged(cluster: Cluster, topic: str, values: Sequence[str]) -> StagedBatch:
    """A data file of these records, named after them."""
    records = record_columns(
        timestamp=list(range(len(values))), value=[value.encode() for value in values]
    )
    return written_file(cluster, topic, records, path=f"part-0-{'-'.join(values)}.parquet")
