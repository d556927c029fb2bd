"""The hash of a key: fixed for ever, independent of how rows are batched, spread well."""

from __future__ import annotations

import decimal
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SchemaError
from penstock.plan import keyhash
from penstock.plan.keyhash import check_key_types, hashes_of, key_groups, key_hashes, mix, owner_of

D = decimal.Decimal
COLUMNS = {
    "int64": [pa.array([0, 1, -1, 2**62, -(2**63)], pa.int64())],
    "bool": [pa.array([True, False, None])],
    "string": [
        pa.array(
            [
                "",
                "a",
                "a\0",
                "exactly-15-byte",
                "exactly-16-bytes",
                "ünï",
                "x" * 128,
                "y" * 129,
                None,
            ]
        )
    ],
    "decimal": [pa.array([D("1.23"), D("-99999999999999999999.99"), None], pa.decimal128(30, 2))],
    "timestamp": [pa.array([0, 1_700_000_000_000_000, None], pa.timestamp("us"))],
    "date": [pa.array([0, 20000, -1], pa.date32())],
    "composite": [pa.array([1, 1, None]), pa.array(["a", None, None])],
}
GOLDEN = {
    "int64": [
        (0, 0, 0),
        (11301937270181262595, 1, 70),
        (9591152273999238469, 18446744073709551615, 79),
        (14739836706726270533, 4611686018427387904, 53),
        (7843413469206944946, 9223372036854775808, 51),
    ],
    "bool": [
        (11301937270181262595, 1, 70),
        (0, 0, 0),
        (10339616153268538931, 3983018303918726471, 89),
    ],
    "string": [
        (0, 0, 0),
        (1112195551499047281, 12167425860186681379, 39),
        (17054682912990636220, 2700200442294710307, 51),
        (11145187527788707279, 7308241072655944035, 84),
        (15028518162983243300, 1796682897235252339, 2),
        (8764032735663403925, 17909032738702526788, 12),
        (18031015005483382193, 17621547702834669696, 4),
        (15766667696749756604, 13509845825130733739, 58),
        (13015701587754848453, 3983018303918726471, 7),
    ],
    "decimal": [
        (14459649596406499183, 4232570414547514993, 127),
        (10096292079464958133, 6831724438110702816, 30),
        (13015701587754848453, 3983018303918726471, 7),
    ],
    "timestamp": [
        (0, 0, 0),
        (1088605826200791759, 1700000000000000, 64),
        (10339616153268538931, 3983018303918726471, 89),
    ],
    "date": [
        (0, 0, 0),
        (4943335743989664279, 20000, 32),
        (9591152273999238469, 18446744073709551615, 79),
    ],
    "composite": [
        (2272585684137440394, 15411963498207402603, 108),
        (7300396707752694897, 18058592596580312467, 28),
        (15714690776076610591, 2187413797260886095, 102),
    ],
}


def hashed(columns: list[pa.Array]) -> list[tuple[int, int, int]]:
    h1, h2 = key_hashes(columns)
    groups = key_groups(h1, 128)
    return [(int(a), int(b), int(g)) for a, b, g in zip(h1, h2, groups, strict=True)]


@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_lanes_and_groups_are_those_of_the_golden_vectors(name: str) -> None:
    """I15: H is fixed by golden vectors. If this fails, old checkpoints cannot be restored any more."""
    assert hashed(COLUMNS[name]) == GOLDEN[name]


def test_another_process_with_another_hash_seed_computes_the_same_lanes() -> None:
    """I15: the key group of a key is the same in every process."""
    code = (
        "import pyarrow as pa\nfrom penstock.plan.keyhash import key_hashes\n"
        "h1, h2 = key_hashes([pa.array(['exactly-16-bytes', 'y' * 129]), pa.array([1, None])])\n"
        "print(h1.tolist(), h2.tolist())"
    )
    root = Path(__file__).parents[2]
    seen = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root / "src")}
        seen.add(subprocess.check_output([sys.executable, "-c", code], env=env, text=True))
    h1, h2 = key_hashes([pa.array(["exactly-16-bytes", "y" * 129]), pa.array([1, None])])
    assert seen == {f"{h1.tolist()} {h2.tolist()}\n"}


@given(st.lists(st.one_of(st.none(), st.text(max_size=200)), min_size=1, max_size=30), st.data())
def test_the_hash_of_a_row_does_not_depend_on_the_rest_of_its_batch(
    values: list[str | None], data: st.DataObject
) -> None:
    """I15: a key has one key group, however its rows are batched or sliced."""
    column = pa.array(values, pa.string())
    start = data.draw(st.integers(0, len(values) - 1))
    h1, h2 = key_hashes([column])
    for sliced in (column.slice(start, 1), column.slice(start)):
        s1, s2 = key_hashes([sliced])
        assert (s1[0], s2[0]) == (h1[start], h2[start])
    b1, b2 = key_hashes([column.cast(pa.large_binary()), pa.array([7] * len(values))])
    c1, c2 = key_hashes([column.slice(start, 1), pa.array([7])])
    assert (c1[0], c2[0]) == (b1[start], b2[start])


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint64(), pa.date32()]
)
def test_a_number_hashes_alike_in_every_integer_type(kind: pa.DataType) -> None:
    wide = pa.array([0, 1, 100, None, 5], pa.int64())
    narrow = wide.cast(pa.int32()).cast(kind) if pa.types.is_date(kind) else wide.cast(kind)
    for offset in (0, 2):
        assert hashed([narrow.slice(offset)]) == hashed([wide])[offset:]


def test_sliced_booleans_and_decimals_hash_as_whole_ones_do() -> None:
    flags = pa.array([True, False, None, True, False] * 5)
    money = pa.array([D("1.5"), None, D("-2.5")] * 5, pa.decimal128(20, 1))
    for column in (flags, money):
        assert hashed([column.slice(3)]) == hashed([column])[3:]


def test_null_is_a_key_of_its_own_in_every_column() -> None:
    rows = hashed([pa.array([None, 0, None, 0]), pa.array([None, None, "", ""])])
    assert len(set(rows)) == 4


def test_no_rows_have_no_lanes() -> None:
    for kind in (pa.int64(), pa.string(), pa.decimal128(10, 2), pa.bool_()):
        assert hashed([pa.array([], kind)]) == []
        assert hashed([pa.array([], kind), pa.array([], pa.int8())]) == []


def test_floats_are_refused_as_keys_with_the_reason() -> None:
    with pytest.raises(SchemaError, match="cannot be a key"):
        key_hashes([pa.array([1.0])])
    with pytest.raises(
        SchemaError, match=r"'price' of type double cannot be a key.*cast to decimal"
    ):
        check_key_types(pa.schema([("price", pa.float64())]), ["price"])
    with pytest.raises(SchemaError, match="no key column 'prise'; columns are price"):
        check_key_types(pa.schema([("price", pa.int64())]), ["prise"])


def test_two_words_can_be_solved_from_the_two_lanes() -> None:
    """Where lanes are called exact, equal lanes mean equal keys: the determinants are odd."""
    a, b = [int(x) for x in keyhash.A], [int(x) for x in keyhash.B]
    p, q = [int(x) for x in keyhash.COLUMN_A], [int(x) for x in keyhash.COLUMN_B]
    assert (a[0] * b[1] - a[1] * b[0]) % 2 == 1
    assert (p[0] * q[1] - p[1] * q[0]) % 2 == 1
    assert a[0] % 2 == b[0] % 2 == 1


def test_lanes_are_called_exact_only_where_they_are() -> None:
    ints, words = pa.array([1]), pa.array(["x" * 15])
    assert hashes_of([ints]).exact
    assert hashes_of([ints, ints]).exact
    assert hashes_of([words]).exact
    assert not hashes_of([pa.array(["x" * 16])]).exact
    assert not hashes_of([ints, words]).exact
    assert not hashes_of([ints, ints, ints]).exact
    assert not hashes_of([pa.array([1, None])]).exact
    assert not hashes_of([pa.array(["a", None])]).exact
    assert not hashes_of([ints, pa.array([None], pa.int64())]).exact


@pytest.mark.parametrize("shift", range(48))
def test_regular_keys_spread_over_key_groups_and_table_places(shift: int) -> None:
    """Ids like `counter << 22` must not end up in a few key groups."""
    h1 = mix(np.arange(16384, dtype=np.int64) << shift)
    for bins, of in (
        (128, key_groups(h1, 128).astype(np.int64)),
        (128, (h1 & np.uint64(127)).astype(np.int64)),
        (128, (h1 >> np.uint64(57)).astype(np.int64)),
    ):
        counts = np.bincount(of, minlength=bins)
        assert ((counts - 128) ** 2 / 128).sum() / (bins - 1) < 2.5


@given(st.integers(1, 300), st.integers(1, 400))
def test_subtasks_own_contiguous_ranges_that_cover_all_groups(parallelism: int, extra: int) -> None:
    """I15: the ranges of subtasks partition [0, max_parallelism)."""
    max_parallelism = parallelism + extra
    groups = np.arange(max_parallelism, dtype=np.uint16)
    owners = owner_of(groups, parallelism, max_parallelism)
    assert owners.tolist() == [g * parallelism // max_parallelism for g in groups.tolist()]
    assert set(owners.tolist()) == set(range(parallelism))
    for index in range(parallelism):
        first = -(-index * max_parallelism // parallelism)
        last = -(-(index + 1) * max_parallelism // parallelism)
        assert np.flatnonzero(owners == index).tolist() == list(range(first, last))


def test_key_groups_stay_below_any_max_parallelism() -> None:
    h1 = np.array([0, 2**64 - 1, 2**47, 2**48 - 1], np.uint64)
    for max_parallelism in (1, 2, 127, 128, 32768):
        groups = key_groups(h1, max_parallelism)
        assert groups.max() < max_parallelism
        assert groups[1] == max_parallelism - 1
