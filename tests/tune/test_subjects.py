"""Any kernel is tuned: loops that carry a state, several loops, sums of rows, and products of operations."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.programs import CliRunner

import tilewright as tw
from tilewright.cli.tune import KernelInFile
from tilewright.cli.verbs import app
from tilewright.runtime import tables
from tilewright.schedule.question import LoopQuestion
from tilewright.schedule.tables import class_of, extents_of
from tilewright.tune import clocks, subject
from tilewright.tune.gemm import OperationLaunch, build
from tilewright.tune.journal import TuningFiles
from tilewright.tune.measure import Effort
from tilewright.tune.subject import SubjectArrays, TuningSubject
from tilewright.tune.tuner import Tuner

TESTS = Path(__file__).parents[1]
EXAMPLES = TESTS.parent / "examples"
FOLDING, LOOPS = str(TESTS / "schedule/folding.py"), str(EXAMPLES / "18_loops_with_a_state.py")
SUMS = str(EXAMPLES / "20_adapters_and_norms.py")
ROWS = str(TESTS / "schedule/chosen_rows.py")
LITTLE = Effort(seconds=0.0, warm_up_seconds=0.0, least=3)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place of its own for tables; nobody waits for quiet."""
    monkeypatch.setattr(clocks, "wait_for_quiet", lambda: None)
    monkeypatch.setattr(tables, "directory", lambda: tmp_path / "tables")
    tables.forget()
    yield tmp_path
    tables.forget()


def attention(target: str = "cpu", rows: int = 37, heads: int = 2) -> KernelInFile:
    shapes = ((rows, 24), (65, 24), (65, 17), (rows, 17))
    arrays = tuple(tw.like("f16", 1, heads, *shape) for shape in shapes)
    return KernelInFile(f"{FOLDING}:attention", ("scale=0.3",), arrays, target)


def in_file(file: str, name: str, *arrays: Any, constants: tuple[str, ...] = ()) -> KernelInFile:
    return KernelInFile(f"{file}:{name}", constants, arrays, "cpu")


def legal(one: TuningSubject) -> list[Any]:
    return [candidate for candidate in one.candidates() if not candidate.against]


def checked(one: TuningSubject, harm: Any = None) -> dict[str, Any]:
    """Check the untuned choice; ``harm`` changes the results first."""
    arrays = SubjectArrays(one, 0, sets=1)
    schedule = legal(one)[0].schedule
    (given,) = arrays.sets
    call = arrays.bind(schedule)(given)

    def harmed() -> Any:
        ran = call()
        if harm is not None:
            harm(dict(zip(one.named, given, strict=True)))
        return ran

    return dict(arrays.check(schedule, whole=True)(harmed, given))


def f16(*shapes: tuple[int, ...]) -> list[Any]:
    return [tw.like("f16", *shape) for shape in shapes]


OPERATIONS: list[tuple[str, tuple[str, ...], dict[str, Any], dict[str, Any]]] = [
    ("attention", (), {n: tw.like("f16", 2, 33, 16) for n in "qkv"}, {"causal": True}),
    ("gram", (), {"a": tw.like("f32", 150, 40)}, {}),
    ("einsum", ("bsk,khd->bhsd",), dict(zip("ab", f16((2, 9, 24), (24, 2, 16)), strict=True)), {}),
    ("gemm_chain", (), dict(zip("abc", f16((33, 16), (16, 40), (40, 9)), strict=True)), {}),
    (
        "grouped_matmul",
        (),
        dict(zip("ab", f16((70, 16), (3, 16, 20)), strict=True)) | {"ends": tw.like("i32", 3)},
        {},
    ),
]

KERNELS = {
    "a loop with a state": attention(),
    "places of the largest": in_file(
        FOLDING, "argmax", *f16((19, 24), (24, 70)), tw.like("f32", 19), tw.like("i32", 19)
    ),
    "lists of the largest": in_file(
        FOLDING, "top_k", *f16((19, 24), (70, 24)), tw.like("f32", 19, 5), tw.like("i32", 19, 5)
    ),
    "whole rows": in_file(
        LOOPS, "attention_of_rows", *f16((33, 24), (50, 24), (50, 9), (33, 9)), constants=("scale=0.3",)
    ),
    "several loops": in_file(
        SUMS, "adapted", *f16((33, 40), (50, 40), (33, 8), (50, 8), (33, 50)), constants=("s=0.5",)
    ),
    "sums of rows": in_file(SUMS, "rms_norm", *f16((33, 40), (50, 40), (33, 50)), constants=("eps=0.1",)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_each_kind_of_kernel_is_checked_under_its_choice(name: str) -> None:
    one = KERNELS[name]
    found = checked(one)
    assert found["error_of_bound"] <= 1
    assert found["compared"] == sum(
        np.prod(one.specimens[store.operand.name].shape) for store in one.flow.stores
    )
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert repr(again.candidates()) == repr(one.candidates())
    assert one.flops > 0


@pytest.mark.parametrize(("operation", "first", "arrays", "words"), OPERATIONS, ids=lambda one: str(one)[:12])
def test_the_product_of_an_operation_is_checked(
    operation: str, first: tuple[str, ...], arrays: dict[str, Any], words: dict[str, Any]
) -> None:
    one = OperationLaunch.of(operation, arrays, words, "cpu", first)
    assert checked(one)["error_of_bound"] <= 1

    def harm(given: dict[str, Any]) -> None:
        name = next(store.operand.name for store in one.flow.stores)
        given[name].flat[7] += 0.5

    with pytest.raises(tw.WrongResultError, match=r"wrong: [12] of"):
        checked(one, harm)


F32, I32 = tw.f32, tw.i32


@pytest.mark.parametrize(
    ("kernel", "arrays"),
    [
        ("scattered", [(F32, 30, 8), (F32, 9, 8), (I32, 30), (F32, 41, 9)]),
        ("scattered", [(F32, 30, 8), (F32, 9, 8), (I32, 30), (F32, 30, 9)]),
        ("gathered", [(F32, 5, 40), (F32, 9, 40), (I32, 30), (F32, 30, 9)]),
        ("gathered", [(F32, 5, 0), (F32, 9, 0), (I32, 30), (F32, 30, 9)]),
        ("chosen_columns", [(F32, 30, 40), (F32, 40, 7), (I32, 12), (F32, 30, 12)]),
        ("chosen_features", [(F32, 30, 5), (F32, 5, 8), (I32, 12), (F32, 30, 8)]),
        ("gathered", [(F32, 5, 40), (F32, 9, 40), (I32, 0), (F32, 0, 9)]),
    ],
)
def test_chosen_rows_exist_and_are_stored_once(kernel: str, arrays: list[tuple[Any, ...]]) -> None:
    """An array may have fewer columns than rows are chosen, or no elements."""
    one = in_file(ROWS, kernel, *(tw.like(dtype, *shape) for dtype, *shape in arrays))
    found = checked(one)
    assert found["error_of_bound"] <= 1
    assert found["compared"] == np.prod((30, 9) if kernel == "scattered" else arrays[-1][1:])
    numbers = SubjectArrays(one, 0, sets=1).made[next(n for n in one.specimens if n not in ("A", "B", "C"))]
    most = {"gathered": 5, "scattered": arrays[-1][1], "chosen_columns": 7, "chosen_features": 5}[kernel]
    assert ((numbers >= 0) & (numbers < most)).all()
    assert kernel != "scattered" or len(set(numbers)) == len(numbers)


def test_rows_that_cannot_be_stored_once_are_refused() -> None:
    shapes = (F32, 30, 8), (F32, 9, 8), (I32, 30), (F32, 20, 9)
    one = in_file(ROWS, "scattered", *(tw.like(dtype, *shape) for dtype, *shape in shapes))
    with pytest.raises(
        tw.LaunchError, match="rows has 30 elements, and chooses among 20 rows; nearest legal"
    ):
        checked(one)


def test_a_wrong_place_of_the_largest_is_found() -> None:
    """The arrays are whole numbers, of which many are equal, so that every place is exact."""

    def harm(given: dict[str, Any]) -> None:
        given["at"][5] += 1

    with pytest.raises(tw.WrongResultError, match=r"wrong: 1 of 38 elements; at\[5\]"):
        checked(KERNELS["places of the largest"], harm)


def test_a_loop_is_tuned_and_its_schedule_is_taken_from_then_on(directory: Path) -> None:
    one = attention()
    question = one.question()
    assert isinstance(question, LoopQuestion)
    assert extents_of(question) == (2, 37, 65, 17, 24)
    version = tables.version_of(question.arch, question.processors)
    assert version is not None
    files = TuningFiles(tables.user_table(version), version, renew=False, say=print)
    tuned = Tuner(one, files.journal, LITTLE, most=3).run()
    assert (tuned.measured, tuned.known) == (3, 0)
    assert tuned.entry.kind == class_of(question)
    assert tuned.entry.kind.startswith("attention ")
    forced = replace(tuned.entry, schedule=legal(one)[2].schedule, by_rules=False)
    files.add([forced])
    near, far = attention(rows=30), attention(rows=300)
    for asked, chosen in ((one, forced.schedule), (near, forced.schedule), (far, legal(far)[0].schedule)):
        assert asked.bound().schedule_for(*asked.arguments, target="cpu") == chosen
    other = replace(one, arrays=tuple(tw.like("f32", *array.shape) for array in one.arrays))
    assert other.bound().schedule_for(*other.arguments, target="cpu") == legal(other)[0].schedule
    assert Tuner(one, files.journal, LITTLE, most=3).run().measured == 0


@pytest.mark.parametrize(
    ("target", "arch", "least"), [("cpu", None, 5), ("cuda", "sm_90a", 15), ("hip", "gfx942", 15)]
)
def test_candidates_begin_with_the_choice_and_are_legal_near_it(
    target: str, arch: str | None, least: int
) -> None:
    one = attention(target)
    found = one.candidates(arch)
    known = one.bound().schedule_for(*one.arguments, target=target, arch=arch)
    assert found[0].schedule == known
    schedules = [candidate.schedule for candidate in found]
    assert len(set(schedules)) == len(schedules) >= least
    assert all(candidate.estimate > 0 and candidate.rule for candidate in found)
    near = [candidate for candidate in found if candidate.rule.startswith("another")]
    assert near == sorted(near, key=lambda candidate: candidate.estimate)
    assert not any(candidate.against for candidate in near)


def test_of_a_large_loop_some_rows_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    one = attention(heads=3)
    monkeypatch.setattr(subject, "MOST_FLOPS", one.flops * subject.LOOP_COST // 10)
    arrays = SubjectArrays(one, 0, sets=1)
    schedule, given = legal(one)[0].schedule, arrays.sets[0]
    found = arrays.check(schedule)(arrays.bind(schedule)(given), given)
    assert found["compared"] == 3 * 37 // 10 * 17


def test_a_kernel_of_a_file_is_compiled_in_other_processes() -> None:
    assert build(attention(), [one.schedule for one in legal(attention())[:2]], 2) == {}


# ---------------------------------------------------------------- the command line


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [*map(str, words), "--seconds", "0", "--processes", "1", "--most", "1"])


def test_the_commands_take_kernels_of_files_and_operations(directory: Path) -> None:
    shapes = "Q=1x2x37x24:f16,K=1x2x65x24:f16,V=1x2x65x17:f16,O=1x2x37x17:f16"
    done = run("profile", f"{FOLDING}:attention", "--shape", shapes, "--set", "scale=0.3")
    assert done.exit_code == 0, done.output
    assert "by the rule: proposed for loops that carry a state" in done.output
    path = directory / "t.json"
    asked = (
        "tune",
        "attention",
        "--shape",
        "q=2x33x16:f16,k=2x33x16:f16,v=2x33x16:f16",
        "--set",
        "causal=True",
    )
    done = run(*asked, "--table", path)
    assert done.exit_code == 0, done.output
    assert "attention of q f16[2x33x16]" in done.output
    assert "verified again on other numbers" in done.output
    again = run(*asked, "--table", path)
    assert "0 measured now, 1 known" in again.output


REFUSED = [
    (("profile", f"{FOLDING}:attention"), "no array Q, K, V, O; give --shape Q=EXTENTS:DTYPE"),
    (("profile", f"{FOLDING}:attention", "8", "8", "8"), "arrays of a kernel have names"),
    (("profile", "attention"), "attention has no arrays; nearest: --shape q=64x64:f16"),
    (("profile", "attention", "--shape", "q=8x8:f16", "--shape", "k=8x8:f16"), "attention needs v too"),
    (("profile", "attention", "--shape", "x=8x8:f16"), "attention has no array 'x'; it has q, k, v"),
    (("profile", "attention", "--set", "y=1"), "--set y: attention takes q, k, v"),
    (("profile", "gemm", "8x8x8", "--shape", "a=8x8:f16"), "gemm takes extents M N K; nearest: matmul"),
    (
        (
            "profile",
            TESTS.parent / "examples/02_basic_gemm.py:basic_gemm",
            "--shape",
            "A=64x64:f32,B=64x64:f32,C=64x64:f32",
        ),
        "missing constant",
    ),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_what_cannot_be_asked_for(words: tuple[object, ...], said: str) -> None:
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())
