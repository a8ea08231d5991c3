"""Spark's offset log, from files that a real Spark 4.2 wrote, intact and damaged."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import OffsetSeq, parse_offset_seq
from txnlog.errors import CheckpointError

SPARKS = Path(__file__).parent / "spark_checkpoints"
V1 = (SPARKS / "v1" / "offsets" / "0").read_bytes()
V2 = (SPARKS / "v2" / "offsets" / "0").read_bytes()


def parse(data: bytes) -> OffsetSeq:
    return parse_offset_seq(data, file="/ck/offsets/7")


def test_offset_seq_of_spark_v1_keeps_the_lines_verbatim() -> None:
    """Hazard: a line parsed and written again is no longer what Spark planned (R55)."""
    seq = parse(V1)
    assert (seq.version, seq.source_ids) == (1, ("0", "1", "2", "3", "4"))
    lines = V1.decode().split("\n")[2:]
    assert list(seq.sources) == [None if line == "-" else line for line in lines]
    assert seq.sources[1] is None
    assert seq.metadata["conf"]["spark.sql.shuffle.partitions"] == "1"
    assert seq.digest == hashlib.sha256(V1).hexdigest()


@pytest.mark.parametrize("layout", ["v2", "v2_named"])
@pytest.mark.parametrize("batch_id", [0, 1, 2])
def test_offset_seq_of_spark_v2_has_an_offset_per_source_id(layout: str, batch_id: int) -> None:
    """Hazard: lines come in any order, and a source without data has no line (R55)."""
    data = (SPARKS / layout / "offsets" / str(batch_id)).read_bytes()
    seq = parse(data)
    assert seq.version == 2
    by_id = dict(zip(seq.source_ids, seq.sources, strict=True))
    names = ["flights", "text", "orders", "counter", "flights_again"]
    ids = names if layout == "v2_named" else [str(number) for number in range(5)]
    assert by_id.keys() == (set(ids) if batch_id == 2 else set(ids) - {ids[1]})
    assert by_id[ids[0]] == by_id[ids[4]]
    assert str(by_id[ids[2]]).startswith('{"orders": {"0": 10')
    assert str(by_id[ids[3]]).isdigit()


def test_offset_seq_digest_differs_when_a_byte_does() -> None:
    """Hazard: a batch replayed with other data is taken for the decided one (R55)."""
    assert parse(V1).digest != parse(V1.replace(b'"0": 10', b'"0": 11')).digest


@pytest.mark.parametrize("data", [V1, V2], ids=["v1", "v2"])
def test_offset_seq_cut_anywhere_in_it_is_never_taken_for_another_offset(data: bytes) -> None:
    """Hazard: a truncated file read as a shorter whole one moves a group wrongly (R66).

    A cut at the end of a source's line leaves whole lines, which the count of sources of the batch
    before shows; a plain number (the counter's) has no end mark.
    """
    whole = parse(data)
    known = dict(zip(whole.source_ids, whole.sources, strict=True))
    accepted = 0
    for size in range(len(data)):
        try:
            cut = parse(data[:size])
        except CheckpointError:
            continue
        accepted += 1
        for source_id, offset in zip(cut.source_ids, cut.sources, strict=True):
            assert offset == known[source_id]
    assert accepted <= 4


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"\0" * len(V1), "version"),
        (b"v1", "line 1"),
        (b"v1\n{}", "line 2"),
        (b"v1\n{}\n", "line 3 has no offset"),
        (V1 + b"\n", "has no offset"),
        (b'v1\n{"conf":\n-', "line 2, the metadata"),
        (b"v1\n[]\n-", "line 2, the metadata"),
        (b'v1\n{}\n{"flights": {"0": 4', "line 3"),
        (b"v1\n{}\n\xff\xfe", "UTF-8"),
        (b"1\n{}\n-", "version"),
        (b"v\n{}\n-", "version"),
        (b"v-1\n{}\n-", "version"),
        (b"v0\n{}\n-", "version"),
        (b"v2\n\n0:-", "line 2, the metadata"),
        (b"v2\n{}\n17", "source id"),
        (b"v2\n{}\n0:1\n0:2", "source id"),
        (b"v2\n{}\n0:", "line 3 has no offset"),
    ],
)
def test_offset_seq_that_is_damaged_is_refused_by_name(data: bytes, reason: str) -> None:
    """Hazard: a truncated, zero-filled or garbled file is silently skipped (R66)."""
    with pytest.raises(CheckpointError, match=reason) as caught:
        parse(data)
    assert "/ck/offsets/7 is damaged" in str(caught.value)
    assert "new checkpointLocation" in str(caught.value)


def test_offset_seq_of_a_later_version_names_the_upgrade() -> None:
    """Hazard: a format of a later Spark guessed at (R66)."""
    with pytest.raises(CheckpointError, match=r"version v3.*Upgrade txnlog") as caught:
        parse(V1.replace(b"v1", b"v3", 1))
    assert caught.value.context["file"] == "/ck/offsets/7"


def test_offset_seq_of_a_foreign_source_may_hold_any_text() -> None:
    """Hazard: a union with a source whose offset is no JSON object stops the query."""
    seq = parse('v1\n\n42\n"a:b"\n-\n{"at":"x\u2028y"}'.encode())
    assert seq.sources == ("42", '"a:b"', None, '{"at":"x\u2028y"}')
    assert seq.metadata == {}
    assert parse(b'v2\n{}\nmine:{"a":"b:c"}\n1:-').sources == ('{"a":"b:c"}', None)


@given(st.binary(max_size=60) | st.binary(max_size=40).map(lambda tail: b"v1\n{}\n" + tail))
def test_offset_seq_of_any_bytes_is_read_or_refused_with_a_checkpoint_error(data: bytes) -> None:
    """Hazard: garbage ends in an error that does not name the file (R66)."""
    try:
        seq = parse(data)
    except CheckpointError as error:
        message = str(error)
    else:
        message = f"/ck/offsets/7 {seq.version}"
    assert message.startswith("/ck/offsets/7")
