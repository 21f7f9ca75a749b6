"""Tables of measured schedules: near entries serve unmeasured problems; illegal entries are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, fields, replace
from typing import Any

import pytest

import tilewright as tw
from tilewright.errors import ParseError
from tilewright.ops.products import combined, plain
from tilewright.runtime.kernel import Bound
from tilewright.schedule.choice import candidates, choose
from tilewright.schedule.question import Question
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tables import (
    MeasuredSchedule,
    OtherVersionError,
    ScheduleTable,
    TableError,
    Version,
    chosen,
    class_of,
    extents_of,
    read_schedule,
    schedule_format,
)

VERSION = Version.now("sm_90a", "some GPU", 132)
CUBE = (4096, 4096, 4096)


@tw.kernel(A="T K", B="G N K", ends="G", C="T N")
def in_groups(A, B, ends, C):
    for g, m, n in tw.tiles(C, groups=ends):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[g, n, k].T
        C[m, n] = acc


def question(
    shape: tuple[int, int, int],
    dtype: str = "bf16",
    order: str = "C",
    bound: Bound | None = None,
    **named: Any,
) -> Question:
    m, n, k = shape
    arrays = [tw.like(dtype, m, k), tw.like(dtype, k, n, order=order), tw.like(dtype, m, n)]
    program = bound or plain(0).bind(precision="exact")
    found = program.question(*([] if named else arrays), target="cuda", arch="sm_90a", **named)
    assert found is not None
    return found


def entry(asked: Question, schedule: Schedule) -> MeasuredSchedule:
    return MeasuredSchedule(class_of(asked), extents_of(asked), schedule, 100.0, 1.1, 20)


def another(asked: Question, at: int = 5) -> Schedule:
    """Return a legal schedule that the rules do not choose."""
    return [one.schedule for one in candidates(asked) if not one.against][at]


def test_the_problem_itself_and_those_near_it_are_served() -> None:
    asked = question(CUBE)
    tuned = another(asked)
    table = ScheduleTable(VERSION).joined([entry(asked, tuned)])
    assert tuned != choose(asked)
    for shape in (CUBE, (4096, 4096, 8192), (4000, 4104, 4096), (3000, 3000, 4096)):
        assert chosen(question(shape), table) == tuned
    for shape in ((4096, 4096, 8200), (64, 4096, 4096), (2000, 2000, 4096)):
        assert chosen(question(shape), table) == choose(question(shape))


def test_of_two_the_nearer_serves() -> None:
    near, far = question((1024, 1024, 1024)), question((1536, 1024, 1024))
    first, second = another(near, 3), another(near, 4)
    table = ScheduleTable(VERSION).joined([entry(far, second), entry(near, first)])
    assert chosen(question((1100, 1024, 1024)), table) == first
    assert chosen(question((1400, 1024, 1024)), table) == second


def test_a_small_gain_does_not_serve_where_the_estimate_expects_a_loss() -> None:
    """Tiles of 128 x 64 make one wave of 128 tiles, and two waves for twice as many rows."""
    measured = question((256, 4096, 4096), order="F")
    narrow = Schedule(
        tw.atoms.wgmma("bf16", 64), (128, 64, 64), stages=8, staging="tma", roles="cooperative", groups=2,
        group_m=8, epilogue="staged", buffers=1, registers=0,
    )  # fmt: skip
    gained = replace(entry(measured, narrow), speed=1.015)
    for one, serves in ((gained, False), (replace(gained, speed=1.5), True)):
        table = ScheduleTable(VERSION).joined([one])
        assert chosen(measured, table) == narrow
        assert chosen(question((256, 4096, 3072), order="F"), table) == narrow
        asked = question((512, 4096, 4096), order="F")
        assert chosen(asked, table) == (narrow if serves else choose(asked))


def test_where_the_rules_were_right_they_choose_for_what_is_near() -> None:
    """The rules' choice at 1024 is the fastest, so they choose near 1024, though an entry is in reach."""
    asked, far = question((1024, 1024, 1024)), question((1536, 1024, 1024))
    right = replace(entry(asked, choose(asked)), by_rules=True)
    table = ScheduleTable(VERSION).joined([right, entry(far, another(far))])
    for shape in ((1024, 1024, 1024), (1100, 1024, 1024), (800, 1024, 1024)):
        assert chosen(question(shape), table) == choose(question(shape))
    assert chosen(question((1500, 1024, 1024)), table) == another(far)


@pytest.mark.parametrize(("dtype", "order"), [("f16", "C"), ("bf16", "F")])
def test_other_classes_are_left_to_the_rules(dtype: str, order: str) -> None:
    table = ScheduleTable(VERSION).joined([entry(question(CUBE), another(question(CUBE)))])
    asked = question(CUBE, dtype, order)
    assert class_of(asked) != class_of(question(CUBE))
    assert chosen(asked, table) == choose(asked)


def test_what_is_not_legal_for_a_shape_is_left_to_the_rules() -> None:
    """Bulk copies cannot load rows of 4095 elements."""
    table = ScheduleTable(VERSION).joined([entry(question(CUBE), another(question(CUBE)))])
    asked = question((4096, 4095, 4095))
    assert next(table.nearest(asked)).schedule.staging == "tma"
    assert chosen(asked, table) == choose(asked)


def test_functions_of_each_sum_are_of_the_class_of_the_product_alone() -> None:
    m, n, k = CUBE
    arrays = {"A": tw.like("bf16", m, k), "B": tw.like("bf16", k, n), "bias": tw.like("bf16", n)}
    arrays |= dict.fromkeys("CRD", tw.like("bf16", m, n))

    def asked(*terms: str) -> Question:
        bound = combined(0, tw.f32).bind(precision="exact", terms=frozenset(terms), activation="relu")
        return question(CUBE, bound=bound, alpha=1.0, beta=1.0, **arrays)

    assert class_of(asked("bias")) == class_of(question(CUBE)) == "bf16[k] x bf16[mn] -> bf16[n], exact"
    alone = class_of(asked("residual"))
    assert alone.startswith("gemm_combined ")
    assert alone != class_of(asked("residual", "bias"))


def test_rows_in_groups_are_a_class_of_their_own() -> None:
    a, b = tw.like("bf16", 1024, 4096), tw.like("bf16", 8, 4096, 4096)
    arrays = {"A": a, "B": b, "ends": tw.like("i32", 8), "C": tw.like("bf16", 1024, 4096)}
    asked = in_groups.bind().question(*arrays.values(), target="cuda", arch="sm_90a")
    assert asked is not None
    assert class_of(asked) == "bf16[k] x bf16[k] -> bf16[n], exact, rows in groups"
    assert extents_of(asked) == (8, 128, 4096, 4096)


def test_without_entries_the_rules_choose() -> None:
    asked = question(CUBE)
    assert chosen(asked, None) == chosen(asked, ScheduleTable(VERSION)) == choose(asked)


def test_a_table_comes_back_from_json() -> None:
    asked = question(CUBE)
    table = ScheduleTable(VERSION).joined([entry(asked, one.schedule) for one in candidates(asked)[:1]])
    table = table.joined([replace(entry(asked, another(asked)), extents=(1, 8, 16, 32))])
    assert ScheduleTable.of(json.loads(json.dumps(table.record())), VERSION) == table


OTHERS = [
    (replace(VERSION, format="older"), "schedule format older, not "),
    (replace(VERSION, rules="older"), "hash of the candidate rules older, not "),
    (replace(VERSION, device="another GPU"), "device another GPU, not some GPU"),
    (replace(VERSION, processors=66), "processors 66, not 132"),
]


@pytest.mark.parametrize(("version", "said"), OTHERS)
def test_a_table_of_another_version_is_refused(version: Version, said: str) -> None:
    with pytest.raises(OtherVersionError, match=f"of another version: {said}"):
        ScheduleTable.of(ScheduleTable(version).record(), VERSION)


RECORD = ScheduleTable(VERSION).record()
MADE = Schedule(tw.atoms.MMA_F16, (64, 64, 32), (2, 2))
GOOD = MeasuredSchedule("", (1, 2, 3, 4), MADE, 1.0, 1.0, 1).record()
DAMAGED: list[Any] = [
    [],
    {"entries": []},
    RECORD | {"entries": {}},
    RECORD | {"entries": [{}]},
    RECORD | {"version": {"more": 1} | RECORD["version"]},
    *(RECORD | {"entries": [GOOD | {name: "x"}]} for name in ("extents", "schedule", "us", "measured")),
]


def test_what_is_damaged_below_is_whole_without_the_damage() -> None:
    assert len(ScheduleTable.of(RECORD | {"entries": [GOOD]}, VERSION).entries) == 1


@pytest.mark.parametrize("record", DAMAGED)
def test_a_damaged_table_is_refused(record: Any) -> None:
    with pytest.raises(TableError) as raised:
        ScheduleTable.of(record, VERSION)
    assert not isinstance(raised.value, OtherVersionError)


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "f8e4m3", "i8"])
def test_the_text_of_every_candidate_reads_back(target: str, dtype: str) -> None:
    m, n, k = (512, 512, 512)
    arrays = [
        tw.like(dtype, m, k),
        tw.like(dtype, k, n, order="F"),
        tw.like("i32" if dtype == "i8" else dtype, m, n),
    ]
    asked = plain(0).bind(precision="exact").question(*arrays, target="cuda", arch=target)
    assert asked is not None
    for one in candidates(asked):
        assert read_schedule(repr(one.schedule)) == one.schedule


def test_a_version_is_the_same_in_every_process() -> None:
    program = "from tilewright.schedule.tables import Version; print(Version.now('sm_90a', 'some GPU', 132))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(VERSION), done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tw.Schedule(",
        "Schedule(tw.atoms.MMA_F16, (64, 64, 32))",
        "tw.Schedule(tw.atoms.ABSENT, (64, 64, 32))",
        'tw.Schedule(tw.atoms.__loader__.load_module("os"), (64, 64, 32))',
        'tw.Schedule(__import__("os").getcwd(), (64, 64, 32))',
        "tw.Schedule(tw.atoms.MMA_F16, (64, 64, 32), stages=0)",
        "tw.Schedule(tw.atoms.MMA_F16, (64, 64, 32), stagings=2)",
        "tw.Schedule(tw.atoms.MMA_F16, (64, 64, 32), **{'stages': 2})",
    ],
)
def test_other_text_is_no_schedule(text: str) -> None:
    with pytest.raises(ParseError, match="is no schedule"):
        read_schedule(text)


def test_texts_mean_the_same_after_a_field_was_added_last() -> None:
    """This fails if a default changed, or if a field was added in between or removed."""
    older = schedule_format(len(fields(tw.Schedule)) - 1)
    record = asdict(Version.now("sm_90a", "NVIDIA H200", 132))
    assert Version.of(record | {"format": older}, "here") == Version(**record)
    count, _, digest = older.partition(" fields, ")
    wrong = [f"{count} fields, 0{digest[1:]}", f"{int(count) - 1} fields, {digest}"]
    for other in (*wrong, f"{10**9} fields, {digest}", "x"):
        found = Version.of(record | {"format": other}, "here")
        assert found.format == other
        assert "schedule format" in Version(**record).against(found)
