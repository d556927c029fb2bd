"""Control messages: what goes in comes out, and nothing else ever does."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, NewType, get_args, get_origin, get_type_hints

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId, SubtaskId
from penstock.protocol.messages import (
    Abort,
    Ack,
    Collected,
    FromWorker,
    Leave,
    Ready,
    SnapshotOrder,
    Status,
    ToWorker,
    Trigger,
)
from penstock.protocol.snapshot import Block, OperatorSnapshot, Segment, SubtaskSnapshot
from penstock.wire import control
from penstock.wire.control import WireError, decode, encode
from tests.wire.examples import MANIFEST

MESSAGES = (*get_args(ToWorker), *get_args(FromWorker))

TEXT = st.text(alphabet=string.printable + "äß€😀", max_size=8)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXT
)
PLAIN = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
)


class PlainMarker:
    """Stands for the recursive alias."""


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value that a field of this type can have."""
    simple = {
        bool: st.booleans(), int: st.integers(-(2**63), 2**64 - 1), str: TEXT,
        float: st.floats(allow_nan=False), bytes: st.binary(max_size=20),
        type(None): st.none(), PlainMarker: PLAIN,
    }  # fmt: skip
    if kind in simple:
        return simple[kind]
    if isinstance(kind, NewType):
        return values(kind.__supertype__)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind, localns={"Plain": PlainMarker})
        fields = {field.name: values(hints[field.name]) for field in dataclasses.fields(kind)}
        return st.builds(kind, **fields)
    return generic(kind)


def generic(kind: Any) -> st.SearchStrategy[Any]:
    members = get_args(kind)
    if get_origin(kind) is tuple and members[-1] is Ellipsis:
        return st.lists(values(members[0]), max_size=3).map(tuple)
    if get_origin(kind) is tuple:
        return st.tuples(*(values(member) for member in members))
    if get_origin(kind) is Mapping:
        return st.dictionaries(values(members[0]), values(members[1]), max_size=3)
    return st.one_of(*(values(member) for member in members))


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_message_comes_out_as_it_went_in(kind: type) -> None:
    @settings(max_examples=30, deadline=None)
    @given(values(kind))
    def round_trip(message: Any) -> None:
        back = decode(encode(message))
        assert back == message
        assert type(back) is kind
        assert encode(back) == encode(message)

    round_trip()


def test_there_are_messages_to_test() -> None:
    assert len(MESSAGES) == len({kind.__name__ for kind in MESSAGES}) >= 17


def test_an_ack_with_everything_in_it_comes_back() -> None:
    """C2: pointers to state, source positions, transactions and timings."""
    ack = Ack(AttemptId(3), CheckpointId(7), MANIFEST.snapshots)
    assert decode(encode(ack)) == ack
    assert isinstance(decode(encode(ack)).snapshots[0].subtask, SubtaskId)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_with_one_kind_of_error(data: bytes) -> None:
    """Security: whatever arrives on the socket, only WireError is raised."""
    with pytest.raises(WireError):
        decode(data)


TAGS = st.sampled_from([kind.__name__ for kind in MESSAGES])
FIELDS = st.sampled_from(["attempt", "checkpoint", "snapshots", "slot", "live", "metrics", "x"])


@settings(max_examples=300, deadline=None)
@given(TAGS, PLAIN | st.dictionaries(FIELDS, PLAIN, max_size=4))
def test_a_right_tag_with_wrong_fields_never_raises_anything_else(tag: str, body: Any) -> None:
    try:
        message = decode(msgpack.packb([tag, body]))
    except WireError:
        return
    assert type(message).__name__ == tag


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_flipped_byte_gives_a_message_or_a_wire_error(data: st.DataObject) -> None:
    good = bytearray(encode(Ack(AttemptId(1), CheckpointId(7), MANIFEST.snapshots)))
    good[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(WireError):
        assert isinstance(decode(bytes(good)), MESSAGES)


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        ([], "not a tag with its fields"),
        (["Drop"], "not a tag with its fields"),
        ([1, {}], "not a tag with its fields"),
        (["Evil", {}], "unknown kind of control message: 'Evil'"),
        (["Drop", []], "the message: expected dict, got list"),
        (["Drop", {}], "the field 'attempt' is missing"),
        (["Drop", {"attempt": 1, "more": 2}], "unknown field 'more'"),
        (["Drop", {"attempt": "1"}], "attempt: expected an integer, got str"),
        (["Drop", {"attempt": True}], "attempt: expected an integer, got bool"),
        (["Drop", {"attempt": 1.0}], "attempt: expected an integer, got float"),
        (
            ["Trigger", {"attempt": 1, "order": {"id": 2, "kind": "evil", "base": 0}}],
            "kind: 'evil' is not a Snap",
        ),
        (
            ["Trigger", {"attempt": 1, "order": {"id": 2, "kind": None}}],
            "kind: 'None' is not a Snap",
        ),
        (["Start", {"attempt": 1, "endpoints": [[1, {}], [1, {}]]}], "the same key twice"),
        (["Start", {"attempt": 1, "endpoints": [[1]]}], "expected pairs of key and value"),
        (["Finished", {"attempt": 1, "subtasks": [{"task": 1}]}], "subtasks[0]: the field 'index'"),
        (
            ["Status", {"attempt": 1, "slot": 1, "metrics": {"a": "x"}}],
            "metrics.a: expected a number",
        ),
    ],
)
def test_a_message_that_does_not_fit_its_type_says_where(tree: Any, problem: str) -> None:
    with pytest.raises(WireError) as caught:
        decode(msgpack.packb(tree))
    assert problem in str(caught.value)


def test_extension_types_are_not_code() -> None:
    """Security: msgpack's extension types, timestamps among them, are refused."""
    for item in (msgpack.Timestamp(1), msgpack.ExtType(42, b"x")):
        with pytest.raises(WireError):
            decode(msgpack.packb(["Collected", {"attempt": 1, "operator": "a", "item": item}]))


def test_a_length_that_the_bytes_do_not_have_allocates_nothing() -> None:
    """Security: sizes from the wire are capped."""
    for head in (b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"):
        with pytest.raises(WireError):
            decode(head)
    with pytest.raises(WireError):
        decode(b"\x91" * 100_000)


def test_a_message_beyond_the_limit_is_refused_on_both_sides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control, "MESSAGE_BYTES_MAX", 50)
    with pytest.raises(WireError, match="at most 50 can be sent"):
        encode(Collected(AttemptId(1), "out", "x" * 100))
    with pytest.raises(WireError, match="at most 50 can be sent"):
        decode(b"x" * 51)


@pytest.mark.parametrize(
    "item",
    [object(), (1, 2), {1: 2}, b"bytes", {"a": [np.int64(1)]}, 2**70, "\ud800", {"a": {3, 4}}],
)
def test_what_is_not_plain_data_is_refused_by_the_sender(item: Any) -> None:
    """S9: a connector that hands out an object learns it at once, with the way to it."""
    with pytest.raises(WireError, match="Collected cannot be sent"):
        encode(Collected(AttemptId(1), "out", item))


def test_the_senders_error_names_the_place() -> None:
    operators = {"orders": OperatorSnapshot(lanes={3: {"at": np.int64(1)}})}  # type: ignore[dict-item]
    ack = Ack(AttemptId(1), CheckpointId(1), (SubtaskSnapshot(SubtaskId(0, 0), operators),))
    with pytest.raises(
        WireError, match=r"snapshots\[0\]\.operators\.orders\.lanes\[3\]\.at: int64"
    ):
        encode(ack)


def test_numbers_and_views_of_numpy_become_plain_ones() -> None:
    """Counters and offsets often come out of NumPy; their type does not travel."""
    block = Block(np.int64(0), np.int32(1), np.uint16(2), np.int64(3), np.int64(4), "c")  # type: ignore[arg-type]
    segment = Segment("s", memoryview(b"schema"), (block,), inline=bytearray(b"1234567"))  # type: ignore[arg-type]
    snapshot = SubtaskSnapshot(SubtaskId(0, 0), {"a": OperatorSnapshot((segment,))})
    back = decode(encode(Ack(AttemptId(1), CheckpointId(1), (snapshot,))))
    found = back.snapshots[0].operators["a"].segments[0]
    assert found == Segment("s", b"schema", (Block(0, 1, 2, 3, 4, "c"),), inline=b"1234567")
    assert type(found.blocks[0].rows) is int
    status = Status(AttemptId(1), SlotId(0), metrics={"rate": np.float64(1.5)})
    assert type(decode(encode(status)).metrics["rate"]) is float


@pytest.mark.parametrize(
    "message",
    [
        Trigger(AttemptId(1), SnapshotOrder(CheckpointId(1), "checkpoint")),  # type: ignore[arg-type]
        Abort("1", CheckpointId(1)),  # type: ignore[arg-type]
        Ready(AttemptId(1), SlotId(1), {1: "x"}),  # type: ignore[dict-item]
        Status(AttemptId(1), SlotId(0), metrics={"a": "1"}),  # type: ignore[dict-item]
        Ack(AttemptId(1), CheckpointId(1), (object(),)),  # type: ignore[arg-type]
        object(),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_by_the_sender(message: Any) -> None:
    with pytest.raises(WireError):
        encode(message)


def test_a_wire_error_is_a_penstock_error_and_a_message_may_be_a_view() -> None:
    assert issubclass(WireError, PenstockError)
    assert decode(memoryview(encode(Leave()))) == Leave()
