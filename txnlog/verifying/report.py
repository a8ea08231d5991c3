"""The settings of verify, its progress, and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from txnlog.errors import CorruptLogError
from txnlog.protocol.verification import tables as across
from txnlog.protocol.verification.findings import Finding, FindingKind, Findings, Severity
from txnlog.settings import arguments

Progress = Callable[[str, int, int, int], None]
"""Called with the table, tables done, number of tables, and files of this table that were read."""


def no_progress(table: str, done: int, count: int, files: int) -> None:
    """Reports no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """`topics`: only these (None: everything). `since_ms`, by the store's clock: log and data files
    written before it are not read. `deep`: read data files completely. `stuck_ms`: how long a
    transaction can be unfinished before it is reported.
    """

    topics: Sequence[str] | None = None
    since_ms: int | None = None
    deep: bool = False
    stuck_ms: int = across.STUCK_MS_DEFAULT


def checked_settings(given: object) -> VerifySettings:
    """A copy with plain values, the defaults for None. Raises TypeError, ConfigError."""
    found: VerifySettings = arguments.one_of("settings", given or VerifySettings(), VerifySettings)
    since_ms = found.since_ms
    return VerifySettings(
        topics=None
        if found.topics is None
        else arguments.each("topics", found.topics, arguments.topic),
        since_ms=None if since_ms is None else arguments.integer("since_ms", since_ms, least=0),
        deep=arguments.flag("deep", found.deep),
        stuck_ms=arguments.integer("stuck_ms", found.stuck_ms, least=0),
    )


@dataclass(slots=True)
class Verification:
    """What was read, and the findings; `errors` are (table, why it could not be read)."""

    findings: Findings = field(default_factory=Findings)
    errors: list[tuple[str, str]] = field(default_factory=list)
    tables: int = 0
    log_files: int = 0
    batches: int = 0
    data_files_read: int = 0

    @property
    def is_damaged(self) -> bool:
        return any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def is_complete(self) -> bool:
        """Whether everything could be read."""
        return not self.errors

    def check(self) -> None:
        """Raise CorruptLogError for damage, or if something could not be read.

        That a copy is unfinished is neither: whoever checks it is about to finish it.
        """
        kept = [f for f in self.findings if f.kind is not FindingKind.COPY_UNFINISHED]
        found = [f"{one.table}: {one.kind.value}: {one.what}" for one in by_severity(kept)]
        found = [f"{table}: {why}" for table, why in self.errors] + found
        if self.errors or any(one.severity is Severity.ERROR for one in kept):
            raise CorruptLogError(
                f"`txnlog verify` finds {len(found)} problems, of which the first is: {found[0]}."
            )


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, then by table and place."""
    return sorted(
        findings,
        key=lambda f: (f.severity.value, f.table, f.kind.value, f.partition, f.offset, f.version),
    )
