"""A root for the compatible clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from txnlog.compat.confluent_kafka.admin import AdminClient, NewTopic


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root with the topic `t` of one partition."""
    made = str(tmp_path / "root")
    AdminClient({"bootstrap.servers": made}).create_topics([NewTopic("t", 1)])["t"].result()
    return made
