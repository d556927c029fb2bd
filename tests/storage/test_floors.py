"""Floors below tables: the one in memory, which tests and the simulator use, and RocksDB do the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import StorageError
from penstock.ports.floor import FIRST_MEMBER, Floor, Floors, Kept, Members
from penstock.shells.spark import floors_dir
from penstock.shells.spark.floors_dir import LockedFloors
from penstock.storage.memory_floor import MemoryFloors
from penstock.storage.rocks import RocksFloors, temporary_floors


@pytest.fixture(params=["memory", "rocksdb"])
def floors(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Floors]:
    made = MemoryFloors() if request.param == "memory" else RocksFloors(tmp_path / "floors")
    yield made
    made.close()


def members(kept: Kept) -> Members:
    files = {name: b"".join(kept.read(name)) for name in kept.members}
    return {name: partial(iter, [data]) for name, data in files.items()}


keys = st.sampled_from([b"", b"a", b"aa", b"ab", b"b", b"b\0", b"\xff", b"\xff\xff"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.dictionaries(keys, st.binary(max_size=3))),
        st.tuples(st.just("remove"), st.lists(keys)),
        st.tuples(st.just("remove_range"), st.tuples(keys, keys)),
        st.tuples(st.just("keep"), st.none()),
    ),
    max_size=12,
)


@pytest.mark.parametrize("make", [MemoryFloors, "rocksdb"])
@given(steps=steps)
@settings(max_examples=25, deadline=None)
def test_a_floor_answers_as_a_dictionary_would(
    make: object, steps: list[tuple[str, object]]
) -> None:
    """S5, I23: reads, ranges and prefixes, also of what was kept and opened again."""
    with temporary_floors() as rocks:
        floors: Floors = rocks if make == "rocksdb" else MemoryFloors()
        floor: Floor = floors.open()
        model: dict[bytes, bytes] = {}
        for what, given_ in steps:
            match what, given_:
                case "write", dict(rows):
                    floor.write(list(rows), list(rows.values()))
                    model |= rows
                case "remove", list(gone):
                    floor.remove(gone)
                    model = {k: v for k, v in model.items() if k not in gone}
                case "remove_range", (first, end) if first < end:
                    floor.remove_range(first, end)
                    model = {k: v for k, v in model.items() if not first <= k < end}
                case "keep", None:
                    kept = floor.keep()
                    again = floors.open(members(kept))
                    check(again, model)
                    again.close()
                    kept.release()
            check(floor, model)


def check(floor: Floor, model: dict[bytes, bytes]) -> None:
    asked = [b"", b"a", b"aa", b"ab", b"b", b"b\0", b"c", b"\xff", b"\xff\xff"]
    assert list(floor.get(asked)) == [model.get(key) for key in asked]
    assert list(floor.scan(b"")) == sorted(model.items())
    assert list(floor.scan(b"aa", b"b\0")) == sorted(
        (k, v) for k, v in model.items() if b"aa" <= k < b"b\0"
    )
    assert [list(rows) for rows in floor.below([b"a", b"zz", b"b"])] == [
        sorted((k, v) for k, v in model.items() if k.startswith(prefix))
        for prefix in (b"a", b"zz", b"b")
    ]


def test_what_was_kept_does_not_change(floors: Floors) -> None:
    """I2: a checkpoint has the rows of its moment, whenever its files are read."""
    floor = floors.open()
    floor.write([b"k"], [b"1"])
    kept = floor.keep()
    floor.write([b"k", b"l"], [b"2", b"2"])
    floor.keep().release()
    again = floors.open(members(kept))
    assert list(again.scan(b"")) == [(b"k", b"1")]


def test_a_moment_is_what_the_floor_had_then(floors: Floors) -> None:
    """I2: whoever reads it later sees nothing of what was written since."""
    floor = floors.open()
    floor.write([b"k", b"l"], [b"1", b"1"])
    moment = floor.moment()
    floor.write([b"k", b"m"], [b"2", b"2"])
    floor.remove([b"l"])
    assert list(moment.get([b"k", b"l", b"m"])) == [b"1", b"1", None]
    assert list(floor.get([b"k", b"l", b"m"])) == [b"2", None, b"2"]


def test_files_that_last_have_names_that_never_come_again(floors: Floors) -> None:
    """S5, bug-D16: a checkpoint takes only files whose names its base does not have."""
    floor = floors.open()
    seen: dict[str, bytes] = {}
    for number in range(12):
        floor.write([b"%d" % number, b"k"], [b"v", b"%d" % number])
        kept = floor.keep()
        assert next(iter(kept.members)) == FIRST_MEMBER
        for name in filter(kept.is_lasting, kept.members):
            data = b"".join(kept.read(name))
            assert seen.setdefault(name, data) == data, name
        kept.release()
        if number == 5:
            floor = floors.open(members(floor.keep()))


def test_a_full_disk_is_told_with_the_folder_and_what_to_do(tmp_path: Path) -> None:
    """What bad input gets: the local disk is full. A process of its own, whose files cannot grow."""
    program = f"""
import resource, signal
from pathlib import Path
from penstock.errors import StorageError
from penstock.storage.rocks import RocksFloors
floor = RocksFloors(Path({str(tmp_path)!r}) / "floors").open()
floor.write([b"%d" % n for n in range(20_000)], [b"v" * 100] * 20_000)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    floor.keep()
except StorageError as error:
    print("told:", error)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert "told: RocksDB could not write state in" in run.stdout, run.stderr
    assert "spark.local.dir" in run.stdout


# ---- whose folder is whose

_LIVES = """
import sys
from pathlib import Path
from penstock.shells.spark.floors_dir import LockedFloors
floors = LockedFloors(Path(sys.argv[1]))
floors.open().write([b"k"], [b"v"])
print("open", flush=True)
sys.stdin.read()
"""


def folders(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.glob(f"{floors_dir.PREFIX}*") if path.is_dir())


def test_the_folder_of_a_killed_worker_goes_when_the_next_one_comes(tmp_path: Path) -> None:
    """I26: local files are cleaned up after a kill -9, and those of a worker that lives stay."""
    run = partial(
        subprocess.Popen,
        [sys.executable, "-c", _LIVES, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with run() as killed, run() as living:
        assert killed.stdout and living.stdout and living.stdin
        assert killed.stdout.readline() == living.stdout.readline() == "open\n"
        before = folders(tmp_path)
        killed.send_signal(signal.SIGKILL)
        killed.wait(60)
        own = LockedFloors(tmp_path)
        own.open()
        left = folders(tmp_path)
        assert len(before) == 2 and len(left) == 2 and len(set(before) & set(left)) == 1
        own.close()
        living.stdin.close()
        living.wait(60)
    floors_dir.sweep(tmp_path)
    assert os.listdir(tmp_path) == []


def test_closing_removes_all_that_was_made(tmp_path: Path) -> None:
    """I26, bug-I8."""
    made: Callable[[], LockedFloors] = partial(LockedFloors, tmp_path)
    first, second = made(), made()
    first.open().write([b"k"], [b"v"])
    kept = second.open().keep()
    first.close()
    second.close()
    assert os.listdir(tmp_path) == []
    with pytest.raises(StorageError):
        list(kept.read(FIRST_MEMBER))


def test_a_snapshot_that_is_still_kept_while_floors_close_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I26, bug-H4: a worker drops its attempt while another thread makes links to the files."""
    floors = LockedFloors(tmp_path)
    floors.open()
    (folder,) = folders(tmp_path)
    rmdir: Callable[..., None] = os.rmdir

    def after_another(path: str, **options: Any) -> None:
        with suppress(OSError):
            (tmp_path / folder / "0-kept-1").mkdir()
        rmdir(path, **options)

    monkeypatch.setattr(os, "rmdir", after_another)
    floors.close()
    assert os.listdir(tmp_path) == []


def test_floors_need_a_folder_that_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors_dir, "floors_parent", lambda: Path("/proc/nowhere"))
    with pytest.raises(StorageError, match="cannot be kept in /proc/nowhere.*spark.local.dir"):
        floors_dir.open_floors()
