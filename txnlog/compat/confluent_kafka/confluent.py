"""confluent-kafka's own package, of the extra `confluent`: loaded where one of its names is used.

A module below `txnlog.compat.confluent_kafka.schema_registry` is the one of the same name in
confluent-kafka, not a copy: its classes are the same by both names.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_HERE = "txnlog.compat.confluent_kafka."
_OWN = f"{_HERE}schema_registry.schema_registry_client"


def load(module: str) -> Any:
    """`confluent_kafka.<module>`. Raises ImportError, which says what to install."""
    try:
        return import_module(f"confluent_kafka.{module}")
    except ImportError as error:
        raise ImportError(
            f"{_HERE}{module} needs confluent-kafka's own package, which cannot be imported "
            f'({error}): pip install "txnlog[confluent]".'
        ) from error


class _Below(MetaPathFinder, Loader):
    """Finds the modules below `schema_registry` in confluent-kafka."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.startswith(f"{_HERE}schema_registry.") and name != _OWN:
            return ModuleSpec(name, self)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module: ModuleType = load(spec.name.removeprefix(_HERE))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # It has run. importlib has given it the spec of the other name.
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


# In front: the folder of a package of confluent-kafka would give a second copy of its modules.
sys.meta_path.insert(0, _Below())
