"""Which queries a state row remembers: the newest batch of each of the last QUERIES_MAX (R54, R55).

A row that kept every query id would grow with every lost checkpoint. A dropped query sets bits in a
Bloom filter of fixed size, which says of a query that it was certainly not dropped, or may have
been. The latter is an error, since a batch of it could be a repeat.
"""

from __future__ import annotations

import base64
import hashlib

from msgspec.structs import replace

from txnlog.errors import CheckpointError
from txnlog.protocol.metadata import LastBatch, Owner, TransactionMetadata

QUERIES_MAX = 50
FILTER_BITS = 8_192
"""After 500 dropped queries 1 in 450 new queries is refused, after 1,000 1 in 45."""

_HASHES = 4


def remember_batch(owner: Owner, query_id: str, last: LastBatch) -> Owner:
    """The owner with this batch as the query's newest; the least recent queries are dropped."""
    batches = {known: batch for known, batch in owner.batches.items() if known != query_id}
    batches[query_id] = last
    dropped = list(batches)[:-QUERIES_MAX]
    for known in dropped:
        del batches[known]
    return replace(owner, batches=batches, forgotten=_with(owner.forgotten, dropped))


def may_be_forgotten(owner: Owner, query_id: str) -> bool:
    """Whether the query may have committed under this owner's row and been dropped."""
    if not owner.forgotten or query_id in owner.batches:
        return False
    bits = _decoded(owner.forgotten)
    return all(bits[at // 8] & 1 << at % 8 for at in _places(query_id))


def check_remembered(row: TransactionMetadata, query_id: str) -> None:
    """Raises CheckpointError for a query whose newest batch in the row may have been dropped."""
    if may_be_forgotten(row.owner, query_id):
        raise CheckpointError(
            f"The batches that query {query_id} committed under transactional.id "
            f"{row.transactional_id!r} are no longer known: {QUERIES_MAX} other queries have "
            "committed there since, and this batch may be a repeat. Start a new query with a new "
            "checkpointLocation, the same group.id and startingOffsets=committed, and give each "
            "query a transactional.id of its own.",
            query_id=query_id,
            transactional_id=row.transactional_id,
        )


def _with(forgotten: str, query_ids: list[str]) -> str:
    if not query_ids:
        return forgotten
    bits = _decoded(forgotten) if forgotten else bytearray(FILTER_BITS // 8)
    for query_id in query_ids:
        for at in _places(query_id):
            bits[at // 8] |= 1 << at % 8
    return base64.b64encode(bits).decode()


def _decoded(forgotten: str) -> bytearray:
    return bytearray(base64.b64decode(forgotten))


def _places(query_id: str) -> list[int]:
    digest = hashlib.blake2b(query_id.encode(), digest_size=2 * _HASHES).digest()
    return [
        int.from_bytes(digest[at : at + 2], "big") % FILTER_BITS for at in range(0, 2 * _HASHES, 2)
    ]
