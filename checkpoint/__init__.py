"""Reads the checkpoint of a Spark Structured Streaming query, without Spark."""

from checkpoint.location import is_readable, store_url
from checkpoint.offset_seq import OffsetSeq, parse_offset_seq
from checkpoint.reader import Checkpoint
from checkpoint.source_positions import group_positions, groups_of, source_positions

__all__ = [
    "Checkpoint",
    "OffsetSeq",
    "group_positions",
    "groups_of",
    "is_readable",
    "parse_offset_seq",
    "source_positions",
    "store_url",
]
