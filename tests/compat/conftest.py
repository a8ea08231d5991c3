"""A root that does not exist yet, and a client of the schema registry in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from txnlog.compat.confluent_kafka.schema_registry import SchemaRegistryClient


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "root")


@pytest.fixture
def registry(root: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": root}) as client:
        yield client
