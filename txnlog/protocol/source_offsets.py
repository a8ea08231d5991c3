"""The form of the Spark source's offset JSON that the source and the checkpoint reader share."""

from __future__ import annotations

from typing import Final

RESERVED_KEY: Final = "@"
"""The key of the source's metadata (cluster, topic ids, group); not a valid topic name."""
