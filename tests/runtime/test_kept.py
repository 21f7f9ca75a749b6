"""A process keeps kernels and schedules for later ones, by inputs, source and user."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.schedule import small

import tilewright as tw
from tilewright.ir.printer import print_kernel
from tilewright.runtime import cache as files
from tilewright.runtime import scheduled
from tilewright.runtime.backends import backend_named
from tilewright.runtime.cache import Cache, kept, library, source_of
from tilewright.schedule.tables import MeasuredSchedule, ScheduleTable, Version

META = {"what": "a test"}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Use a known source and an empty cache."""
    monkeypatch.setattr(files, "library", lambda: "0" * 64)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def refuse() -> Any:
    raise AssertionError("made again")


def artifact(cache: Path) -> Path:
    (found,) = cache.rglob(f"*{files.SUFFIX}")
    return found


# ---------------------------------------------------------------- the source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.py", "rooms/b.py"):
        (tmp_path / "source" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "source" / name).write_text(f"# {name}")
    return tmp_path / "source"


def changed(folder: Path) -> None:
    (folder / "rooms" / "b.py").write_text("# c.py")


def added(folder: Path) -> None:
    (folder / "rooms" / "c.py").write_text("")


def removed(folder: Path) -> None:
    (folder / "a.py").unlink()


def renamed(folder: Path) -> None:
    (folder / "a.py").rename(folder / "c.py")


@pytest.mark.parametrize("change", [changed, added, removed, renamed])
def test_every_change_of_the_source_changes_its_hash(folder: Path, change: Callable[[Path], None]) -> None:
    later = time.time() + 60
    before = source_of(folder, later)
    states = {path: path.stat() for path in folder.rglob("*.py")}
    change(folder)
    for path in states.keys() & {*folder.rglob("*.py")}:  # the size is the same, and now the time is
        os.utime(path, ns=(states[path].st_atime_ns, states[path].st_mtime_ns))
    assert len(before) == 64
    assert source_of(folder, later) not in ("", before)


def test_source_that_changed_while_the_process_ran_is_unknown(folder: Path) -> None:
    assert source_of(folder, time.time()) == ""
    begun = time.time() - 3600
    for path in folder.rglob("*.py"):
        os.utime(path, (begun - 60, begun - 60))  # as a copy with its old times; the change itself shows
    assert source_of(folder, begun) == ""


def test_no_source_is_unknown(tmp_path: Path) -> None:
    assert source_of(tmp_path / "library.zip", time.time()) == ""


def test_the_hash_is_of_this_library() -> None:
    assert Path(tw.__file__).parent == files.PACKAGE
    assert library() in ("", source_of(files.PACKAGE, time.time() + 60))


def test_nothing_is_kept_for_an_unknown_source(monkeypatch: pytest.MonkeyPatch, known: Path) -> None:
    monkeypatch.setattr(files, "library", lambda: "")
    assert [kept(["a"], lambda number=number: number, META) for number in (1, 2)] == [1, 2]
    assert not known.exists()


# ---------------------------------------------------------------- entries


def test_an_object_is_made_once_for_its_parts_and_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    made = (tw.f16, {"a": (1, 2.5)}, np.float32)
    assert kept(["a", "b"], lambda: made, META) is made
    assert kept(["a", "b"], refuse, META) == made
    assert kept(["ab"], lambda: "other parts", META) == "other parts"
    monkeypatch.setattr(files, "library", lambda: "1" * 64)
    assert kept(["a", "b"], lambda: "another source", META) == "another source"


@pytest.mark.parametrize("of", ["artifact", "record"])
def test_a_damaged_entry_is_made_again(known: Path, of: str) -> None:
    kept(["a"], lambda: "first", META)
    path = artifact(known)
    path = path if of == "artifact" else Path(f"{path}.json")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert kept(["a"], lambda: "second", META) == "second"
    assert kept(["a"], refuse, META) == "second"


def test_an_entry_that_another_user_may_write_is_made_again(known: Path) -> None:
    kept(["a"], lambda: "first", META)
    artifact(known).chmod(0o666)
    assert kept(["a"], lambda: "second", META) == "second"


def test_nothing_is_read_from_a_cache_that_another_user_may_write(known: Path) -> None:
    kept(["a"], lambda: "first", META)
    known.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="cannot keep compiled kernels"):
        assert kept(["a"], lambda: "second", META) == "second"


def test_only_objects_of_the_library_are_read(known: Path) -> None:
    assert kept(["a"], lambda: json.JSONDecoder, META) is json.JSONDecoder
    assert kept(["a"], lambda: "made again", META) == "made again"
    assert known.exists()


def test_what_cannot_be_kept_is_returned(known: Path) -> None:
    made = [lambda: 1]
    assert kept(["a"], lambda: made, META) is made
    assert not [*known.rglob(f"*{files.SUFFIX}")]


def test_without_a_cache_an_object_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise PermissionError("no folder")

    monkeypatch.setattr(Cache, "get_or_build", fail)
    assert [kept(["a"], lambda number=number: number, META) for number in (1, 2)] == [1, 2]


@pytest.mark.parametrize("error", [TypeError, pickle.PicklingError, tw.TilewrightError])
def test_the_errors_of_what_makes_it_are_raised(error: type[Exception]) -> None:
    def fail() -> None:
        raise error("no")

    for _ in range(2):
        with pytest.raises(error, match="no"):
            kept(["a"], fail, META)


# ---------------------------------------------------------------- kernels


@tw.kernel(A="M K", B="K N", C="M N")
def product(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("name", small.CASES)
@pytest.mark.parametrize("arch", ["sm_90a", "gfx942", "x86-64-v3"])
def test_a_kernel_is_the_same_after_it_was_kept(name: str, arch: str) -> None:
    case = small.CASES[name]
    target = {"s": "cuda", "g": "hip", "x": "cpu"}[arch[0]]
    backend = backend_named(target)
    try:
        kernel = case.bound.trace(*case.arrays(case.shape(case.turns)).values(), target=target, arch=arch)
        listing = backend.listing(kernel, arch)
    except tw.TilewrightError:
        return  # the schedule is of another machine
    assert listing is not None
    traced, found = pickle.loads(pickle.dumps((kernel, listing), pickle.HIGHEST_PROTOCOL))
    assert print_kernel(traced) == print_kernel(kernel)
    assert print_kernel(found.kernel) == print_kernel(listing.kernel)
    for field in ("text", "entry", "notes", "shared_bytes"):
        assert getattr(found, field) == getattr(listing, field)
    assert [*map(str, found.lines.values())] == [*map(str, listing.lines.values())]
    again = backend.listing(traced, arch)
    assert again is not None
    assert again.text == listing.text
    assert [str(op.location) for op in traced.walk()] == [str(op.location) for op in kernel.walk()]


PROCESS = r"""
import sys
import numpy as np
import tilewright as tw
from tilewright.runtime import cache
from tilewright.targets import cuda
from tilewright.runtime import scheduled
cache.library, chosen = lambda: "0" * 64, scheduled.chosen
if sys.argv[1] == "again":
    def refuse(*_): raise AssertionError("made again")
    cuda.emit = cuda.lower = cuda.violations = refuse
    scheduled.chosen = refuse
    from tilewright.schedule.expand import Expanded
    Expanded.trace = refuse
sys.path.insert(0, sys.argv[2])
from test_kept import product
made = product.compile(*[tw.like("bf16", (512, 512))] * 3, target="cuda", arch="sm_90a")
print(made.cached, hash(made.source), hash(made.ir), repr(made.schedule), made.resources, made.notes)
scheduled.chosen = chosen  # for processors it is not kept
x = np.random.default_rng(0).normal(size=(40, 40)).astype(np.float32)
y = np.empty_like(x)
print(product(x, x, y, target="cpu").cached, bool(np.allclose(y, x @ x, atol=1e-4)))
"""


def test_a_second_process_neither_chooses_nor_traces_nor_lowers(known: Path) -> None:
    around = {**os.environ, "PYTHONHASHSEED": "0"}
    said = []
    for what in ("first", "again"):
        command = [sys.executable, "-c", PROCESS, what, str(Path(__file__).parent)]
        done = subprocess.run(command, capture_output=True, text=True, env=around, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[1] == said[0].replace("False", "True")
    assert "tma" in said[0]


# ---------------------------------------------------------------- what a schedule depends on


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Record the key of every requested object."""
    found: list[tuple[str, ...]] = []

    def record(parts: Any, make: Callable[[], Any], _: Any) -> Any:
        found.append(tuple(parts))
        return make()

    monkeypatch.setattr(files, "kept", record)
    return found


def test_a_schedule_is_kept_for_its_problem_machine_and_table(
    asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(arch: str, processors: int, m: int, dtype: str = "bf16", kernel: Any = product) -> None:
        monkeypatch.setattr("tilewright.runtime.kernel.processors_of", lambda *_: processors)
        arrays = [tw.like(dtype, (m, 512)), tw.like(dtype, (512, 256)), tw.like(dtype, (m, 256))]
        kernel.bind().schedule_for(*arrays, target="cuda", arch=arch)

    choose("sm_90a", 132, 512)
    choose("sm_90a", 66, 512)
    choose("sm_80", 132, 512)
    choose("sm_90a", 132, 513)
    choose("sm_90a", 132, 512, "f16")
    entry = MeasuredSchedule("", (1, 1, 1, 1), tw.Schedule(tw.atoms.MMA_F16, (32, 32, 16)), 1.0, 1.0, 1)
    table = ScheduleTable(Version.now("sm_90a", "a card", 132))
    for one in (table, table.joined([entry]), table.joined([replace(entry, us=2.0)])):
        monkeypatch.setattr("tilewright.runtime.tables.table_for", lambda *_, one=one: one)
        choose("sm_90a", 132, 512)
    assert len(asked) == len({*asked}) == 8
    choose("sm_90a", 132, 512)
    assert asked[-1] == asked[-2]


def test_the_choice_for_a_processor_is_not_kept(asked: list[tuple[str, ...]]) -> None:
    """Its rules may depend on the machine, which no key contains."""
    product.bind().schedule_for(*[np.ones((8, 8), np.float32)] * 2, np.ones((8, 8), np.float32), target="cpu")
    assert asked == []
    assert f"{files.__name__}:{kept.__name__}" == scheduled.KEPT


def test_kernels_that_differ_only_in_their_lines_are_kept_apart(asked: list[tuple[str, ...]]) -> None:
    def made(source: str) -> Any:
        space: dict[str, Any] = {"tw": tw}
        exec(compile(source, "kernel.py", "exec"), space)
        return tw.kernel(A="M K", B="K N", C="M N")(space["scaled"])

    body = """def scaled(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc * {}
"""
    sources = (body.format(2), "\n" + body.format(2), body.format(3))
    for source in sources:
        made(source).compile(*[tw.like("f16", (64, 64))] * 3, target="cuda", arch="sm_90a")
    assert len({*asked}) == len(asked) == 2 * len(sources)


def test_the_cache_lists_kept_objects(known: Path) -> None:
    kept(["a"], lambda: 1, META)
    stats = Cache.default().stats()
    assert (stats.root, stats.entries) == (known, 1)
    assert Cache.default().clear() == 1
