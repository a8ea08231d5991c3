"""Where the Spark benchmarks keep topics and Delta tables: on a disk, or on an object store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """A folder: `root` is its url for txnlog, `tables` for Spark's own formats."""

    root: str
    tables: str
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The settings of txnlog's store."""

    @classmethod
    def on_disk(cls, folder: Path) -> Place:
        return cls(str(folder), str(folder))

    @property
    def options(self) -> dict[str, str]:
        """The store's settings as options of txnlog's source and sink."""
        return {f"storage.{name}": value for name, value in self.storage.items()}
