"""The kinds of damage that `txnlog verify` reports: what each means, and what to do about it.

`KINDS` is the only list; docs/verify.md is made from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from txnlog.errors import RESTORE_ALL, RESTORE_FILE
from txnlog.text import shell_option

FINDINGS_PER_KIND_MAX = 100
"""Maximum number of findings of one kind in one table; further ones are only counted."""


class Severity(Enum):
    """ERROR: data, transactions or offsets are damaged. WARNING: nothing is lost."""

    ERROR = "error"
    WARNING = "warning"


class FindingKind(Enum):
    """Every kind of finding; the value is its name in the output."""

    LOG_MISSING = "log missing"
    COMMIT_MISSING = "commit missing"
    COMMIT_DAMAGED = "commit damaged"
    COMMIT_MISPLACED = "commit misplaced"
    COMMIT_FOREIGN = "commit foreign"
    COMMIT_STRAY = "commit stray"
    CHAIN_BROKEN = "chain broken"
    CHECKPOINT_MISSING = "checkpoint missing"
    CHECKPOINT_DAMAGED = "checkpoint damaged"
    CHECKPOINT_DISAGREES = "checkpoint disagrees"
    HINT_WRONG = "hint wrong"
    TABLE_FOREIGN = "table foreign"
    TABLE_UNSUPPORTED = "table unsupported"
    TABLE_ID_WRONG = "table id wrong"
    TABLE_ID_SHARED = "table id shared"
    FILE_MISSING = "file missing"
    FILE_SIZE_WRONG = "file size wrong"
    FILE_DAMAGED = "file damaged"
    RECORDS_DISAGREE = "records disagree"
    ROW_FILE_MISSING = "row file missing"
    HEADER_UNREADABLE = "header unreadable"
    PARTITION_UNKNOWN = "partition unknown"
    BATCHES_OVERLAP = "batches overlap"
    OFFSETS_MISSING = "offsets missing"
    BOUND_WRONG = "bound wrong"
    SEQUENCE_GAP = "sequence gap"
    SEQUENCE_REPEATED = "sequence repeated"
    MARKER_MISSING = "marker missing"
    UNDECIDED_AFTER_MARKER = "undecided after marker"
    HANGING_TRANSACTION = "hanging transaction"
    ROW_UNREADABLE = "row unreadable"
    ROW_REPEATED = "row repeated"
    ROW_IN_WRONG_SHARD = "row in wrong shard"
    ROW_WENT_BACK = "row went back"
    ROW_BEHIND_MARKER = "row behind marker"
    SHARD_UNKNOWN = "shard unknown"
    PRODUCER_ID_UNKNOWN = "producer id unknown"
    PRODUCER_ID_SHARED = "producer id shared"
    TRANSACTION_STUCK = "transaction stuck"
    OFFSET_BEYOND_END = "offset beyond end"
    OFFSET_BELOW_START = "offset below start"
    OFFSET_WITHOUT_PARTITION = "offset without partition"
    TICKET_ABOVE_NEWEST = "ticket above newest"
    PUBLICATION_LOST = "publication lost"
    FSYNC_UNDECIDED = "fsync undecided"
    COPY_UNFINISHED = "copy unfinished"


class KindText(NamedTuple):
    """What a kind means and what to do, for the docs and for every finding."""

    severity: Severity
    meaning: str
    advice: str


_E, _W = Severity.ERROR, Severity.WARNING
_K = FindingKind
_REPAIR = "Without a backup: `txnlog repair`."
_ALL, _FILE = f"{RESTORE_ALL} {_REPAIR}", f"{RESTORE_FILE} {_REPAIR}"
_RESTORE_DATA = (
    f"{_FILE} Or `topics delete-records` past it, while clients run, lets readers continue, and "
    "housekeeping removes it; its records, and all before them, are lost."
)
_KEEP = f"Stop the writers and keep a copy of the root. {RESTORE_ALL}"

KINDS: Mapping[FindingKind, KindText] = {
    _K.LOG_MISSING: KindText(
        _E,
        "a table of the cluster, or a folder with data files, has no commits; or the folder of a "
        "topic that was written to is gone",
        f"{_ALL} If the folder is a leftover of your own, delete it. If a topic was removed "
        "on purpose, create it again, and delete it with `topics delete`.",
    ),
    _K.COMMIT_MISSING: KindText(
        _E,
        "a commit is missing between the first one that is kept and the newest",
        _FILE,
    ),
    _K.COMMIT_DAMAGED: KindText(
        _E,
        "a commit is truncated, garbled, or fails its checksum; or a folder, a FIFO or a broken "
        "link is in its place",
        _FILE,
    ),
    _K.COMMIT_MISPLACED: KindText(_E, "the same commit is in the log at two versions", _FILE),
    _K.COMMIT_FOREIGN: KindText(
        _W,
        "a commit was written by another tool, without the checksum of txnlog",
        f"Let other tools read these tables, never commit to them. If none did: {RESTORE_FILE}",
    ),
    _K.COMMIT_STRAY: KindText(
        _W,
        "a commit was written late, into a slot that clean-up had freed; no reader reads it",
        "Nothing: clean-up removes it when it is old enough.",
    ),
    _K.CHAIN_BROKEN: KindText(
        _E,
        "a commit or checkpoint names another predecessor than the present file: one of the "
        "two was replaced or restored from an older state",
        _ALL,
    ),
    _K.CHECKPOINT_MISSING: KindText(
        _E,
        "the checkpoint that replaces the removed commits is missing",
        f"If a newer checkpoint is there, only older versions are lost. {_FILE}",
    ),
    _K.CHECKPOINT_DAMAGED: KindText(
        _E,
        "a checkpoint is truncated, garbled, or fails its seal",
        f"Delete it if an older checkpoint and all commits after that are undamaged. Else: {_FILE}",
    ),
    _K.CHECKPOINT_DISAGREES: KindText(
        _E,
        "a checkpoint differs from the checkpoint before it and the commits between them",
        "Do not trust either: compare with a backup. If the commits are complete, delete the "
        "checkpoint and all newer ones, and run `txnlog housekeeping --once`. Else: "
        f"{RESTORE_ALL}",
    ),
    _K.HINT_WRONG: KindText(
        _W,
        "`_last_checkpoint` is unreadable, or names a checkpoint that is missing or has another "
        "size",
        "Delete the file `_last_checkpoint`; the next checkpoint writes it again.",
    ),
    _K.TABLE_FOREIGN: KindText(
        _W,
        "a Delta table below the root is not one of txnlog's",
        "Move it to another folder, or leave it: txnlog does not touch it.",
    ),
    _K.TABLE_UNSUPPORTED: KindText(
        _E,
        "a table has a Delta protocol version or feature that this txnlog does not know",
        "Upgrade txnlog, or undo the table upgrade that another tool made.",
    ),
    _K.TABLE_ID_WRONG: KindText(
        _E, "a table belongs to another cluster, or is another topic or another shard", _KEEP
    ),
    _K.TABLE_ID_SHARED: KindText(
        _E,
        "two tables have the same id: one is a copy of the other's folder",
        "Remove the copy from the root.",
    ),
    _K.FILE_MISSING: KindText(_E, "a data file that the log names is missing", _RESTORE_DATA),
    _K.FILE_SIZE_WRONG: KindText(_E, "a file has another size than the log says", _RESTORE_DATA),
    _K.FILE_DAMAGED: KindText(
        _E,
        "a file fails its seal, cannot be decoded, or is another file under this name (`--deep`)",
        _RESTORE_DATA,
    ),
    _K.RECORDS_DISAGREE: KindText(
        _E,
        "offsets or timestamps in a data file contradict its header (`--deep`)",
        _RESTORE_DATA,
    ),
    _K.ROW_FILE_MISSING: KindText(
        _E,
        "the one-row file behind a state row or group is missing; SQL on the table fails, txnlog "
        "reads the log only",
        f"Copy any other `row-*.parquet` of the same size to its name, or: {_FILE}",
    ),
    _K.HEADER_UNREADABLE: KindText(
        _E, "the header of a data file cannot be read or contradicts itself", _KEEP
    ),
    _K.PARTITION_UNKNOWN: KindText(
        _E, "a batch is in a partition that the topic does not have", _KEEP
    ),
    _K.BATCHES_OVERLAP: KindText(_E, "two batches have the same offset", _KEEP),
    _K.OFFSETS_MISSING: KindText(
        _E,
        "offsets between the log start and the end are in no batch",
        f"{RESTORE_ALL} Without one, `topics delete-records` past the gap.",
    ),
    _K.BOUND_WRONG: KindText(
        _E,
        "the log start of a partition is above its end, or a topic has an impossible number of "
        "partitions",
        _KEEP,
    ),
    _K.SEQUENCE_GAP: KindText(
        _E, "sequence numbers of a producer are missing between two of its batches", _KEEP
    ),
    _K.SEQUENCE_REPEATED: KindText(
        _E, "a sequence number of a producer is in two batches: records are doubled", _KEEP
    ),
    _K.MARKER_MISSING: KindText(
        _E,
        "a transaction has ended, and a table it wrote to lacks its marker: its data there may be "
        "lost",
        f"Its newest commits may be missing. {_ALL}",
    ),
    _K.UNDECIDED_AFTER_MARKER: KindText(
        _E,
        "a batch is undecided though its transaction has a marker in the topic",
        f"{_KEEP} {_REPAIR}",
    ),
    _K.HANGING_TRANSACTION: KindText(
        _E,
        "a batch is undecided and no transaction will decide it: readers with read_committed wait",
        "End it: `txnlog transactions abort -t TOPIC -p PARTITION --producer-id N "
        "--producer-epoch N`.",
    ),
    _K.ROW_UNREADABLE: KindText(
        _E,
        "a state row or group cannot be read",
        f"Upgrade txnlog if a newer one wrote it. Else: {RESTORE_ALL}",
    ),
    _K.ROW_REPEATED: KindText(_E, "an id or group has two live rows", _KEEP),
    _K.ROW_IN_WRONG_SHARD: KindText(
        _E,
        "a transactional.id is in another shard than that of its hash, so no client finds it",
        _KEEP,
    ),
    _K.ROW_WENT_BACK: KindText(
        _E, "an epoch or generation of a row is lower than in an earlier commit", _KEEP
    ),
    _K.ROW_BEHIND_MARKER: KindText(
        _E,
        "a topic, or a shard of the groups, has a marker or an undecided batch of a newer "
        "transaction than the state row: the newest commits of the row's shard are missing",
        f"{_ALL} Until then transactions of this id are refused where the markers are.",
    ),
    _K.SHARD_UNKNOWN: KindText(
        _E,
        "a shard of the transaction log or of the groups is there, and `__cluster` does not know "
        "it: the newest commits of `__cluster` are missing",
        f"{_ALL} Until then readers take its ids and groups for new ones.",
    ),
    _K.PRODUCER_ID_UNKNOWN: KindText(
        _E,
        "a producer id is in use that `__cluster` has not given out: it will be given out again",
        f"{_ALL} Until then start no producer.",
    ),
    _K.PRODUCER_ID_SHARED: KindText(_E, "two transactional.ids have the same producer id", _KEEP),
    _K.TRANSACTION_STUCK: KindText(
        _W,
        "a transaction is decided and unfinished, or open past its time-out, for an hour or more",
        "Run `txnlog housekeeping`; its log says which topic refuses.",
    ),
    _K.OFFSET_BEYOND_END: KindText(
        _E,
        "a group's committed offset is above the end of the partition: records are lost, or the "
        "topic's newest commits are missing",
        f"{_ALL} Else the group skips the records that come next, up to its offset, and no client "
        "can tell. If a client committed this offset by mistake: "
        "`txnlog groups reset-offsets -g GROUP -t TOPIC --to-latest --execute`.",
    ),
    _K.OFFSET_BELOW_START: KindText(
        _W,
        "a group's committed offset is below the log start: records that it has not read are gone",
        "Nothing, if retention removed it; `auto.offset.reset` decides where the group continues.",
    ),
    _K.OFFSET_WITHOUT_PARTITION: KindText(
        _W,
        "a group has an offset for a topic or partition that does not exist; if the topic was "
        "never deleted, its folder is gone",
        f"`txnlog groups delete-offsets -g GROUP -t TOPIC`. If its folder is gone: {RESTORE_ALL}",
    ),
    _K.TICKET_ABOVE_NEWEST: KindText(
        _E,
        "a transactional.id has registered with a group, and the row of the group knows only older "
        "registrations: the newest commits of the group's shard are missing",
        f"{_ALL} Until then transactions with offsets of the group may be refused.",
    ),
    _K.PUBLICATION_LOST: KindText(
        _E,
        "a Delta table of others lacks what a completed transaction published there: another "
        "writer, or a copy, has put another commit in its place",
        "Find out which writer creates files of the table's log without looking whether they are "
        "there, and stop it: commits of all others are lost, too. Then "
        "`txnlog tables republish NAME`, before vacuum deletes the files.",
    ),
    _K.FSYNC_UNDECIDED: KindText(
        _W,
        "on a local disk: `__cluster` does not record `storage.fsync`, as in a root that was "
        "copied from an object store, so each process follows its own option; or a change to "
        "`true` is not finished",
        "`txnlog configs alter --entity-type brokers --add-config storage.fsync=true`, or "
        "`=false`: with it, a power cut may damage the root.",
    ),
    _K.COPY_UNFINISHED: KindText(
        _E,
        "the root is a copy that `txnlog backup` or `txnlog clone` is making, or was: no client "
        "opens it, and what else is found may be due to this",
        "Run the same command again, to the same place.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One damage. `file` is relative to the root, or a URL; -1 and "" where a field does not apply.

    `subject` is a transactional.id, a group or a producer. The damage is at `offset` to
    `last_offset`, which hold `records`. `command` is one to paste, without options of the root,
    where one ends the damage. Findings of two passes are the same damage if their `key` is equal.
    """

    kind: FindingKind
    table: str
    what: str
    file: str = ""
    version: int = -1
    partition: int = -1
    offset: int = -1
    last_offset: int = -1
    records: int = -1
    subject: str = ""
    command: str = ""

    @property
    def severity(self) -> Severity:
        return KINDS[self.kind].severity

    @property
    def advice(self) -> str:
        return KINDS[self.kind].advice

    @property
    def key(self) -> tuple[object, ...]:
        """All fields but the text, which may contain a moving end offset."""
        return (
            self.kind, self.table, self.file, self.version, self.partition, self.offset,
            self.subject,
        )  # fmt: skip


def delete_records_command(topic: str, partition: int, offset: int) -> str:
    """Moves the log start past damaged data: with it go all records before."""
    option = shell_option("--topic", topic)
    return f"txnlog topics delete-records {option} -p {partition} --offset {offset}"


class Findings:
    """Collects findings, up to FINDINGS_PER_KIND_MAX of a kind in a table; all are counted."""

    def __init__(self) -> None:
        self.kept: list[Finding] = []
        self.counts: Counter[tuple[FindingKind, str]] = Counter()
        self._kept: Counter[tuple[FindingKind, str]] = Counter()

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.kept)

    def __len__(self) -> int:
        return len(self.kept)

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it if there is room."""
        place = finding.kind, finding.table
        self.counts[place] += 1
        self._kept[place] += 1
        if self._kept[place] <= FINDINGS_PER_KIND_MAX:
            self.kept.append(finding)

    def count_more(self, kind: FindingKind, table: str, count: int) -> None:
        """Count findings beyond the maximum, which are not made."""
        if count > 0:
            self.counts[kind, table] += count

    def extend(self, findings: Iterable[Finding]) -> None:
        """Add each of them; the counts of another collection, too."""
        if not isinstance(findings, Findings):
            for finding in findings:
                self.add(finding)
            return
        for finding in findings.kept:
            self.add(finding)
        made = Counter((finding.kind, finding.table) for finding in findings.kept)
        self.counts += findings.counts - made

    def keep_only(self, kind: FindingKind) -> None:
        """Drop the findings of all other kinds."""
        self.kept = [finding for finding in self.kept if finding.kind is kind]
        for counter in (self.counts, self._kept):
            for place in [place for place in counter if place[0] is not kind]:
                del counter[place]

    def confirmed_by(self, other: Findings) -> Findings:
        """The findings that a second pass found again."""
        keys = {finding.key for finding in other}
        left = Findings()
        left.kept = [finding for finding in self.kept if finding.key in keys]
        for place in {(finding.kind, finding.table) for finding in left.kept}:
            left.counts[place] = min(self.counts[place], other.counts[place])
        return left
