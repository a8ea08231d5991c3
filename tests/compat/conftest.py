"""Roots for the compatible clients, and a client of the schema registry in one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from txnlog.compat.confluent_kafka.admin import AdminClient, NewTopic
from txnlog.compat.confluent_kafka.schema_registry import SchemaRegistryClient


@pytest.fixture
def new_root(tmp_path: Path) -> str:
    """A root that does not exist yet."""
    return str(tmp_path / "root")


@pytest.fixture
def root(new_root: str) -> str:
    """A root with the topic `t` of one partition."""
    AdminClient({"bootstrap.servers": new_root}).create_topics([NewTopic("t", 1)])["t"].result()
    return new_root


@pytest.fixture
def registry(new_root: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": new_root}) as client:
        yield client
