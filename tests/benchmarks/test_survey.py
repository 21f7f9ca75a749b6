"""The survey's draws, summaries and refusals, and a small survey on processors."""

from __future__ import annotations

import importlib
import json
import math
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.programs import run_here
from tests.runtime.fake_gpu import Driver, OnGpu
from tests.runtime.fake_gpu import gpu as gpu  # a fixture

import tilewright as tw
from tilewright.errors import WrongResultError
from tilewright.ops import matmul
from tilewright.ops.planes import written

from .test_benchmarks import HERE, ROOT, run

SEEDS = ("f1700001", "0123abcd", "f17")
MODULES = ("survey_problems", "survey_calls", "survey_table", "survey")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the modules of the survey, which import each other by name."""
    monkeypatch.syspath_prepend(str(HERE))
    made = [importlib.import_module(name) for name in MODULES]
    return type("Program", (), dict(zip(MODULES, made, strict=True)))


# ---------------------------------------------------------------- what is drawn


def test_a_seed_draws_the_same_problems_always(program: Any) -> None:
    drawn = program.survey_problems.drawn
    some = {part: [str(one) for one in islice(drawn(part, "0123abcd"), 2)] for part in KNOWN}
    assert some == KNOWN


KNOWN = {
    "language models": ["bf16 nt 1×28672×4096", "bf16 nt 2×57344×8192"],
    "deep K f16": ["f16 nt 144×1056×34416", "f16 nt 464×1024×76608"],
    "CPU f32": ["f32 nn 243×4058×19", "f32 nn 2144×104×1432"],
}


def test_fewer_problems_are_a_prefix_and_other_parts_change_nothing(program: Any) -> None:
    survey, parts = program.survey_problems.survey, program.survey_problems.PARTS
    on_gpu = [name for name, part in parts.items() if part.target == "cuda"]
    whole = survey("f1700001", on_gpu)
    assert len(whole) >= 800
    assert whole == survey("F1700001", on_gpu) != survey("f1700002", on_gpu)
    for few, names in ((3, on_gpu), (5, ["vectors", "aligned"])):
        for name in names:
            mine = [one for one in survey("f1700001", names, few) if one.part == name]
            assert mine == [one for one in whole if one.part == name][: len(mine)]
            assert few - 1 <= len(mine) <= few
    # A survey that is cut short has problems of each part.
    assert {one.part for one in whole[: len(whole) // 4]} == {*on_gpu}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_part_keeps_to_its_distribution(program: Any, seed: str) -> None:
    module = program.survey_problems
    for name, part in module.PARTS.items():
        found = [*islice(module.drawn(name, seed), 60)]
        assert len({*found}) == 60
        for one in found:
            assert one.part == name
            assert part.least_flops <= one.flops < part.most_flops
            assert one.bytes <= module.MOST_BYTES
            assert module.SurveyProblem.read(json.loads(json.dumps(one.record()))) == one
    aligned = [*islice(module.drawn("aligned", seed), 400)]
    extents = np.array([one.shape for one in aligned])
    assert not (extents % 8).any()
    assert extents.min() >= 8
    assert extents.max() <= 10000
    # A log-uniform extent is below the geometric middle half of the time; 1200 draws, five deviations.
    assert abs(np.mean(extents < math.sqrt(8 * 10000)) - 0.5) < 5 * 0.5 / math.sqrt(extents.size) + 0.01
    for counts, kinds in (
        (Counter(one.layout for one in aligned), 4),
        (Counter(one.dtype for one in aligned), 2),
    ):
        assert len(counts) == kinds
        share = 1 / kinds
        off = 5 * math.sqrt(share * (1 - share) / 400)
        assert all(abs(count / 400 - share) < off for count in counts.values())
    for name in ("odd, small", "odd, large"):
        assert all(any(n % 8 for n in one.shape) for one in islice(module.drawn(name, seed), 100))
    rows = [one.shape[0] for one in islice(module.drawn("language models", seed), 28)]
    assert rows == [*module.ROWS, *module.ROWS]
    for one in islice(module.drawn("groups", seed), 20):
        assert sum(one.sizes) == one.shape[0]
        assert min(one.sizes) >= 0


def test_operations_and_bytes(program: Any) -> None:
    new = program.survey_problems.SurveyProblem
    assert new("", "matmul", "c64", (3, 5, 7), items=2).flops == 8 * 2 * 105
    assert new("", "matmul", "bf16", (3, 5, 7), items=2).bytes == 2 * 2 * (21 + 35 + 15)
    assert new("", "mixed", "f16", (3, 5, 7)).bytes == 2 * 21 + 35 + 2 * 15
    assert new("", "scaled", "f8e4m3", (3, 5, 7)).bytes == 21 + 35 + 2 * 15
    assert new("", "grouped", "bf16", (9, 5, 7), sizes=(4, 5)).bytes == 2 * (63 + 2 * 35 + 45)
    assert new("", "chain", "f16", (3, 5, 7, 11)).flops == 2 * 15 * 18
    full, causal = (new("", "attention", "f16", (2, 4, 2, 6, 6, 8), causal=c) for c in (False, True))
    assert (full.flops, causal.flops) == (4 * 2 * 4 * 36 * 8, 4 * 2 * 4 * 21 * 8)
    assert full.bytes == 2 * 2 * 2 * 8 * (4 * 6 + 2 * 6)


# ---------------------------------------------------------------- what it says


def test_figures_of_a_summary(program: Any) -> None:
    table, rng = program.survey_table, np.random.default_rng(3)
    speeds = [*map(float, rng.lognormal(0.1, 0.4, 200))]
    found = table.Summary.of(speeds)
    assert found.count == 200
    assert found.mean == pytest.approx(math.exp(np.log(speeds).mean()))
    assert found.tenth == pytest.approx(np.percentile(speeds, 10))
    assert found.least == min(speeds)
    assert found.below == np.mean(np.array(speeds) < 0.95)
    # The deviation of a mean of 200 logarithms with a deviation of 0.4 is 0.028.
    low, high = found.interval
    assert low < found.mean < high
    assert 3.5 * 0.028 < math.log(high / low) < 4.3 * 0.028


def row(part: str, speed: float, **more: Any) -> dict[str, Any]:
    shape = more.pop("shape", (1, 64, 64))
    call = {"part": part, "op": "matmul", "dtype": "bf16", "shape": list(shape), "layout": "nt"}
    common = {"group": part, "problem": f"bf16 {shape} {speed}", "call": call, "us": 10.0, "peer": "torch.mm"}
    return common | {"peer_us": 10 * speed, "speed": [speed, speed, speed], "limit_us": 2.0} | more


ROWS = [
    *(row("language models", 2.0**power, shape=(1, 64, 64), predicted_us=11.0) for power in (-1, 0, 1)),
    *(row("language models", 1.0, shape=(16, 64, 64), predicted_us=20.0) for _ in range(2)),
    row("aligned", 0.8, shape=(64, 64, 64), candidates={"one": 8.0, "two": 12.0}, limit="bytes"),
    row("aligned", 1.2, shape=(8192, 8192, 8192), candidates={"one": 11.0}, schedule="tw.Schedule(x)"),
    {"group": "tf32", "problem": "f32 as tf32", "failed": "wrong: an element"},
]


def test_tables_of_a_survey(program: Any, tmp_path: Path) -> None:
    table = program.survey_table
    lines = {line[0]: line for line in table.lines(ROWS)}
    assert [*lines] == [
        *("language models", "– M = 1", "– M = 16", "aligned"),
        *("– under 10⁷ operations", "– from 10¹⁰ operations on"),
    ]
    assert lines["language models"][1:] == [
        *("5", lines["language models"][2], "0.700", "0.500", "20%", "1; 0.95 <; 0.9 <", "1.08")
    ]
    assert lines["language models"][2].startswith("1.000 [")
    of_one_row = ["3", lines["– M = 1"][2], "0.600", "0.500", "33%", "1; 0.95 <; 0.9 <", ""]
    assert lines["– M = 1"][1:] == of_one_row
    assert lines["– M = 16"][6] == "1; 0.95; 0.9"
    assert lines["– under 10⁷ operations"][6] == ""
    assert [line[2] for line in table.worst(ROWS, 2)] == ["0.500", "0.800"]
    assert table.worst(ROWS)[-1][0] == "bf16 (1, 64, 64) 2.0"
    (everything, of_models) = table.estimates(ROWS)
    assert everything == ["all", "5", f"{math.log(1.1):.1%}", f"{math.log(2):.1%}"]
    assert of_models[0] == "language models"
    assert [line[:4] for line in table.regrets(ROWS)] == [
        ["all", "2", f"{math.sqrt(0.8):.3f}", "0.820"],
        ["aligned", "2", f"{math.sqrt(0.8):.3f}", "0.820"],
    ]
    assert "8 problems, 1 failed, 0 without a peer" in table.text(ROWS)
    kept = tmp_path / "survey.json"
    record = {"benchmark": "survey", "machine": None, "commit": "", "seed": "0123abcd", "rows": ROWS}
    kept.write_text(json.dumps(record))
    run("render.py", kept, "--out", tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "Seed `0123abcd`." in page
    assert "| aligned | 2 | 0.980 [" in page
    assert "| bf16 (64, 64, 64) 0.8 | aligned | 0.800 | 10.0 | 8.0 | torch.mm |  | 2.0 | bytes |  |" in page
    faster = [one | {"speed": [2 * one["speed"][0]] * 3} for one in ROWS[:3]]
    slower = ROWS[5] | {"speed": [0.6, 0.6, 0.6]}
    later = tmp_path / "later.json"
    later.write_text(json.dumps(record | {"rows": [*faster, slower]}))
    words = ("--before", kept, "--plot", tmp_path / "times.svg")
    said = run("survey.py", "--summary", later, *words).partition("Change since survey.json")[2]
    assert [line.split() for line in said.splitlines()[2:]] == [
        ["all", "4", "0.946", "1.480", f"{(8 * 0.75) ** 0.25:.3f}"],
        ["language", "models", "3", "1.000", "2.000", "2.000"],
        ["aligned", "1", "0.800", "0.600", "0.750"],
        ["bf16", "(64,", "64,", "64)", "0.8", "0.800", "0.600", "0.750"],
    ]
    assert "measured" in (tmp_path / "times.svg").read_text()


# ---------------------------------------------------------------- what it refuses


def small(program: Any, **fields: Any) -> Any:
    common: dict[str, Any] = {"op": "matmul", "dtype": "f32", "shape": (33, 40, 50), "layout": "nt"}
    return program.survey_problems.SurveyProblem("CPU f32", **(common | fields))


CASES: list[dict[str, Any]] = [
    *({"dtype": kind, "layout": layout} for kind, layout in (("f32", "nn"), ("f64", "tt"), ("c64", "tn"))),
    *({"dtype": kind, "items": 3} for kind in ("f16", "bf16", "c64")),
    {"shape": (1, 200, 300)},
    {"shape": (1, 1, 5000)},
    {"shape": (2, 3, 40000), "dtype": "bf16"},
]


@pytest.mark.parametrize("fields", CASES, ids=str)
def test_a_result_is_checked_and_so_is_the_peer(program: Any, fields: dict[str, Any]) -> None:
    calls_of, memory = program.survey_calls.calls_of, program.survey_calls.NumpyMemory()
    module = program.survey_calls
    launched, check, agreeing = module.launched, module.check, module.agreeing
    calls = calls_of(memory, small(program, **fields))
    plans = launched(memory, calls)
    assert 0 <= check(memory, calls, plans) <= 1
    assert [plan.target for plan in plans] == ["cpu"]
    assert agreeing(memory, calls) == {}
    assert len(calls.peers) == (2 if fields.get("dtype") in ("f16", "bf16") else 1)

    def spoiled(change: Any) -> Any:
        def ours() -> None:
            calls.ours()
            change(calls.out)

        return calls._replace(ours=ours)

    def half_again(out: Any) -> None:
        out[..., -1, -1] *= 1.5

    def forget(out: Any) -> None:
        out[..., 0, -1] = np.nan

    for change, why in ((half_again, "beyond|wrong"), (forget, "not written")):
        with pytest.raises(WrongResultError, match=why):
            check(memory, calls, launched(memory, spoiled(change)))
    assert check(memory, calls, launched(memory, calls)) <= 1
    other = {name: (lambda: 2 * np.asarray(calls.out)) for name in calls.peers}
    without = agreeing(memory, calls._replace(peers=other))
    assert {*without} == {*calls.peers}
    assert not other
    assert {*without.values()} == {"it differs by 1 in norm"}

    def refuses() -> Any:
        raise RuntimeError("no kernel\nof this kind")

    assert agreeing(memory, calls._replace(peers={"x": refuses})) == {"x": "no kernel"}


def test_operands_that_a_prepass_rounds(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prepass for tf32 rounds to nearest; multiplications without it truncate."""

    def along_k(call: Any, problem: Any, wanted: Any) -> Any:
        return written({name: problem.operands[name].of(call.infos[name]) for name in ("a", "b")})

    monkeypatch.setattr(matmul, "planes_first", along_k)
    module, memory = program.survey_calls, program.survey_calls.NumpyMemory()
    memory.target = "reference"
    atom = tw.atoms.wgmma("f32", 32)
    schedule = tw.Schedule(atom, (64, 32, 32), stages=3, staging="tma", roles="cooperative", groups=1)
    calls = module.calls_of(memory, small(program, shape=(70, 40, 72), layout="nn", precision="tf32"))
    calls = calls._replace(ours=partial(calls.ours, schedule=schedule, target="reference"))
    plans = module.launched(memory, calls)
    assert [len(plan.launches) for plan in plans] == [2]
    assert module.check(memory, calls, plans) <= 1
    monkeypatch.setattr(module, "as_multiplied", lambda operands, *_: operands)
    with pytest.raises(WrongResultError, match="beyond their bound"):
        module.check(memory, calls, plans)


def test_places_have_both_ends(program: Any) -> None:
    places = program.survey_calls.places
    assert places(3, 8) == [0, 1, 2]
    found = places(10000, 32)
    assert (len({*found}), found[0], found[-1]) == (32, 0, 9999)
    assert found == sorted(found)


def test_kernels_of_a_gpu_compile_without_a_launch(program: Any, gpu: Driver) -> None:
    """A launch needs no time for these figures: schedule, predicted time, limit, proposals for the regret."""
    survey, recorded = program.survey, program.survey_calls.recorded
    a, b, c = (OnGpu(np.empty(shape, np.float16)) for shape in ((256, 512), (384, 512), (256, 384)))
    turned = OnGpu(b.array.T)
    with recorded(launch=False) as plans:
        tw.matmul(a, turned, c)
    assert not gpu.launched
    found = survey.described(plans)
    assert found["launches"] == 1
    assert found["schedule"].startswith("tw.Schedule(tw.atoms.wgmma(")
    assert 2 < found["predicted_us"] < 50
    one = replace(small(program), dtype="f16", shape=(256, 384, 512))
    arch, processors = plans[0].call.machine
    us, which = survey.limit_us(one, arch, processors)
    assert (which, us) == ("bytes", pytest.approx(one.bytes / 4250e3))
    wide = replace(one, shape=(8192, 8192, 8192))
    us, which = survey.limit_us(wide, arch, processors)
    assert (which, us) == ("operations", pytest.approx(wide.flops / (4096 * 132 * 1980)))
    schedules = survey.proposals(survey.question_of(plans[0]), 8)
    assert len({*schedules}) == 8
    assert repr(schedules[0]) == found["schedule"]


def test_calls_of_several_launches_compile_in_scratch_memory(program: Any, gpu: Driver) -> None:
    """The first product of a chain is in scratch memory, not in an array's memory."""
    shapes = ((128, 300), (300, 64), (64, 40), (128, 40))
    a, b, c, out = (OnGpu(np.empty(shape, np.float16)) for shape in shapes)
    with program.survey_calls.recorded(launch=False) as plans:
        tw.gemm_chain(a, b, c, out=out)
    found = program.survey.described(plans)
    assert found["launches"] == 2
    assert "stored" in found["reason"]
    assert "predicted_us" not in found
    assert not gpu.launched


# ---------------------------------------------------------------- a small survey


def test_a_small_survey_on_processors(tmp_path: Path) -> None:
    kept = tmp_path / "cpu_survey.json"
    words = ("--target", "cpu", "--parts", "CPU f32; CPU complex64; CPU f16", "--per-part", 1)
    words += ("--most-flops", 1e8, "--each", 0.01, "--busy", "--seed", "f1700003", "--json", kept)
    said = run("survey.py", *words)
    found = json.loads(kept.read_text())
    assert (found["benchmark"], found["seed"], found["target"]) == ("survey", "f1700003", "cpu")
    assert found["machine"]["blas"]
    assert {one["group"] for one in found["rows"]} == {"CPU f32", "CPU complex64", "CPU f16"}
    for one in found["rows"]:
        assert 0 <= one["error_of_bound"] <= 1
        assert one["schedule"].startswith("tw.Schedule(")
        assert one["rounds"] >= 5
        assert one["us"] > 0
        assert {*one["strides"]} == {"a", "b", "out"}
        judge = "tilewright, in f32" if one["group"] == "CPU f16" else "NumPy"
        assert one["peer"] == judge
        assert one["peer_us"] == one["peers"][judge]
        assert one["speed"][1] <= one["speed"][0] <= one["speed"][2]
    (halves,) = (one for one in found["rows"] if one["group"] == "CPU f16")
    assert {*halves["peers"]} == {"tilewright, in f32", "NumPy, in f32"}
    assert "3 problems, 0 failed, 0 without a peer" in said
    run("render.py", kept, "--out", tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| CPU f32 | 1 |" in page
    assert "Counted: processor time of all threads" in page


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--seed", "xyz"), "hexadecimal digits"),
        (("--seed", "1", "--parts", "aligned; nonsense"), "--parts nonsense: none of language models"),
        (("--seed", "1", "--target", "cpu", "--parts", "aligned"), "none of CPU f32"),
    ],
)
def test_wrong_arguments(words: tuple[str, ...], why: str) -> None:
    done = run_here(HERE / "survey.py", *words, cwd=ROOT)
    assert done.status == 2
    assert why in done.stderr
