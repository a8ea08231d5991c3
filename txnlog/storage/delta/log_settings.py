"""Settings of a log: checkpoints, retention of its files, how long a read state is trusted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txnlog.errors import ConfigError
from txnlog.protocol.decoding import INT64_MAX
from txnlog.storage.delta.actions import Commit

LOG_RETENTION_MS_MIN = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Settings of a log. `trust_ms` is half the minimum log retention.

    checkpoint_mode: "background" (a thread), "inline" (before commit returns) or "off".
    `watch` is called with each table's commits, and checkpoints as one, as they are applied; a log
    that is opened again repeats some. `kept_from_ms`: log files of the versions that were the
    newest ones then, or later, stay, whatever the retention; 0 for all of them.
    """

    checkpoint_interval: int = 100
    checkpoint_mode: str = "background"
    log_retention_ms: int = 86_400_000
    trust_ms: int = LOG_RETENTION_MS_MIN // 2
    commit_timeout_ms: int = 30_000
    watch: Callable[[str, Commit], object] | None = None
    kept_from_ms: Callable[[], int] = lambda: INT64_MAX

    def __post_init__(self) -> None:
        if self.log_retention_ms < 2 * self.trust_ms:
            raise ConfigError(
                f"log_retention_ms={self.log_retention_ms} is shorter than twice "
                f"trust_ms={self.trust_ms}: other processes would still rely on files that "
                "clean-up removes. Keep logs longer.",
                log_retention_ms=self.log_retention_ms,
            )
