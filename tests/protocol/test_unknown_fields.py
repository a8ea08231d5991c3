"""What a newer txnlog may have written is refused, and nothing of it dropped (R38)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from txnlog.errors import CorruptLogError
from txnlog.protocol.decoding import FORMAT, JsonObject
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.leases import decode_lease
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.sightings import Sighting

ROW = TransactionMetadata(transactional_id="tx", producer_id=1, producer_epoch=3, timeout_ms=1)
GROUP = Group(group_id="g")
FENCED = '{"fenced":{"by":"b","at_ms":1,"reason":"c","new":1}}'
NAMES_THE_FORMAT = f"newer txnlog than this one, which reads format {FORMAT}, or is damaged"


@pytest.mark.parametrize("kind", JsonObject.__subclasses__(), ids=lambda kind: kind.__name__)
def test_json_object_with_an_unknown_field_is_refused(kind: type[Any]) -> None:
    """Dropped when the row is written again, it would undo what its writer promised."""
    assert Sighting in JsonObject.__subclasses__()
    with pytest.raises(msgspec.ValidationError, match="unknown field `new`"):
        msgspec.json.decode('{"new":1}', type=kind)


@pytest.mark.parametrize(
    ("row", "column", "text"),
    [
        (ROW, "owner", '{"new":1}'),
        (ROW, "owner", FENCED),
        (ROW, "pending", '{"batches":[],"new":[1]}'),
        (ROW, "partitions", '[{"topic":"t","topic_id":"i","partitions":[0],"new":1}]'),
        (ROW, "new_column", "1"),
        (GROUP, "offsets", '{"t":{"0":[5,1,1,"",7]}}'),
        (GROUP, "tickets", '{"newest":3,"new":1}'),
        (GROUP, "members", '{"m":{"topics":["t"],"new":1}}'),
        (GROUP, "new_column", "1"),
    ],
)
def test_row_with_an_unknown_field_names_the_format(
    row: TransactionMetadata | Group, column: str, text: str
) -> None:
    """It costs its own id (D57), and says which txnlog to take."""
    values = row.to_values()
    assert type(row).from_values(values, path="", source="s") == row
    with pytest.raises(CorruptLogError, match=f"the-source: .*{NAMES_THE_FORMAT}") as caught:
        type(row).from_values({**values, column: text}, path="", source="the-source")
    assert caught.value.context["file"] == "the-source"


def test_lease_with_an_unknown_field_names_the_format() -> None:
    """It must not count as free."""
    with pytest.raises(CorruptLogError, match=NAMES_THE_FORMAT):
        decode_lease('{"holder":"a","counter":4,"lease_ms":10,"zone":"b"}', source="__cluster")
