"""Settings of a log: checkpoints, retention of its files, how long a read state is trusted."""

from __future__ import annotations

from dataclasses import dataclass

from txnlog.errors import ConfigError

LOG_RETENTION_MS_MIN = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Settings of a log. `trust_ms` is half the minimum log retention.

    checkpoint_mode: "background" (a thread), "inline" (before commit returns) or "off".
    """

    checkpoint_interval: int = 100
    checkpoint_mode: str = "background"
    log_retention_ms: int = 86_400_000
    trust_ms: int = LOG_RETENTION_MS_MIN // 2
    commit_timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        if self.log_retention_ms < 2 * self.trust_ms:
            raise ConfigError(
                f"log_retention_ms={self.log_retention_ms} is shorter than twice "
                f"trust_ms={self.trust_ms}: other processes would still rely on files that "
                "clean-up removes. Keep logs longer.",
                log_retention_ms=self.log_retention_ms,
            )
