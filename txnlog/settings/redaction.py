"""Which `storage.*` options Spark would show in plans, in its UI and in event logs (R67).

Spark replaces the value of an option whose name matches spark.redaction.regex. Its default knows
secret, password, token and access key. conf/spark-defaults.conf has one that knows all of ours.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final

SPARK_DEFAULT: Final = r"(?i)secret|password|token|access[.]?key"
SETTING: Final = "spark.redaction.regex"
RECOMMENDED: Final = (
    r"(?i)secret|password|token|access[._]?key|account[._]key|master_key|sas_key|encryption[._]key"
    r"|customer_key|service_account_key|private[._]key|proxy_url|default_headers|bearer"
)


def shown_by_spark(names: Iterable[str], regex: str) -> list[str]:
    """Those of the option names that a redaction regex does not cover."""
    pattern = _compiled(regex)
    return sorted(name for name in names if pattern is None or not pattern.search(name))


def regex_of_conf(environ: Mapping[str, str] = os.environ) -> str:
    """The regex in the spark-defaults.conf that this process' Spark reads; else Spark's default.

    A Python worker cannot ask its session, and inherits the variables of its JVM.
    """
    folder = environ.get("SPARK_CONF_DIR") or os.path.join(environ.get("SPARK_HOME", ""), "conf")
    try:
        with open(os.path.join(folder, "spark-defaults.conf"), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, ValueError):
        return SPARK_DEFAULT
    found = SPARK_DEFAULT
    for line in lines:
        name, _, value = line.strip().replace("=", " ", 1).partition(" ")
        if name == SETTING and value.strip():
            found = value.strip()
    return found


def warning_of(names: Iterable[str], regex: str) -> str | None:
    """What to say about secret options that Spark would show; None if it shows none."""
    shown = shown_by_spark(names, regex)
    if not shown:
        return None
    return (
        f"Spark shows the values of {', '.join(shown)} in plans, in its UI and in event logs, "
        f"unless this session's {SETTING} covers the names. Set it as in conf/spark-defaults.conf, "
        "or write storage.secret.<name>, or refer to credentials (docs/configuration.md)."
    )


def _compiled(regex: str) -> re.Pattern[str] | None:
    """The regex, which is Java's; None if Python cannot read it."""
    try:
        return re.compile(regex)
    except re.error:
        return None
