"""Wrong calls of all public functions give a result, or an error that a user can read.

The message of a failure has the seed: ``--fuzz-seed`` makes the calls again.  `scripts/fuzz_calls.py` runs
for any time.
"""

from __future__ import annotations

import ast
import inspect
from random import Random

import pytest
from tests.calls import performed
from tests.calls.flows import FLOWS, RECORDED
from tests.calls.legal import INSIDE, OUTSIDE
from tests.calls.performed import Call, Failure, drawn, failure_of, perform
from tests.calls.values import TRACED, VALUES

import tilewright as tw

CALLS = 400
"""For each of four seeds: together as long as the budget says."""

SPACES = ("ck", "hopper", "ir", "layouts", "testing")

NAMES = {*tw.__all__, *(f"{space}.{name}" for space in SPACES for name in getattr(tw, space).__all__)}

NOT_CALLED = {
    "errors are raised": {name for name in tw.__all__ if name.endswith(("Error", "Warning"))},
    "constants": {name for name in tw.__all__ if isinstance(getattr(tw, name), tw.DType | str | tuple)},
    "modules": {"atoms", "draw", *SPACES},
    "made by others": {
        *("Bound", "Condition", "Executable", "Fragment", "Kernel", "MutableIndex", "Number"),
        *(
            "KernelReport",
            "Packed",
            "RearrangedWeights",
            "PreparedLaunch",
            "Report",
            "Scalar",
            "Tensor",
            "Tile",
            "hopper.BarrierStage",
        ),
        "hopper.Barriers",
        *(f"ir.{name}" for name in tw.ir.__all__ if name[0].isupper()),
        "ir.violations",
    },
    "kernels run, which take long": {
        *(f"testing.{name}" for name in ("Trial", "do_bench", "run_attention", "run_gemm")),
        "kernel_report",
    },
    "answers of a check": {"ck.Check", "ck.Checks"},
    "asks the command line": {"testing.parse_args"},
    "reads a folder": {"load_kernel"},
}


def text_of_all() -> str:
    return "\n".join([*OUTSIDE, *INSIDE, *FLOWS])


def test_everything_public_is_called() -> None:
    names = {
        ast.unparse(node).removeprefix("tw.")
        for line in [*OUTSIDE, *INSIDE, *FLOWS]
        for node in ast.walk(ast.parse(line.replace("\\n", "\n")))
        if isinstance(node, ast.Attribute)
    }
    left_out = set().union(*NOT_CALLED.values())
    assert NAMES - names - left_out == set()
    assert left_out <= NAMES
    drawing = [name for name in tw.draw.__all__ if inspect.isfunction(getattr(tw.draw, name))]
    assert [
        name for name in drawing if f"tw.draw.{name}(" not in text_of_all() and name != "draw_timeline"
    ] == []


@pytest.mark.parametrize("line", OUTSIDE[:-3], ids=lambda line: line.split("(")[0])
def test_what_is_damaged_is_right_outside_of_kernels(line: str) -> None:
    assert succeeded(Call(line))


@pytest.mark.parametrize("line", INSIDE, ids=lambda line: line.split("(")[0])
def test_what_is_damaged_is_right_inside_of_a_kernel(line: str) -> None:
    assert succeeded(Call(line.replace("\\n", "\n"), "in a kernel"))


@pytest.mark.parametrize("line", FLOWS)
def test_what_is_damaged_is_right_as_a_dataflow_kernel(line: str) -> None:
    assert succeeded(Call(line, "a dataflow kernel"))


def succeeded(call: Call) -> bool:
    perform(call)
    return True


@pytest.mark.parametrize("part", range(4))
def test_wrong_calls_end_in_an_answer_or_a_readable_error(part: int, fuzz_seed: int) -> None:
    rng = Random(4 * fuzz_seed + part)
    for _ in range(CALLS):
        found = failure_of(drawn(rng))
        assert found is None, told(found, fuzz_seed)


FOUND = (
    Call("tw.gram(tw.Layout)"),
    Call("tw.row_major(b)"),
    Call("tw.reduced_matmul(a, a, ('max', b), -2)"),
    Call("tw.testing.residues(scale, w, 2.0, tile=32, seed=-1)"),
    Call(
        "tw.draw.draw_ranks(tw.testing.ranks([[tw.testing.send(w, w.copy())]]), "
        "tw.draw.Costs(400.0, 1.0, blocks=10**18))"
    ),
    Call("nested & n * 2**40", "in a kernel"),
    Call("nested ** n", "in a kernel"),
    Call(
        "for m in tw.tiles(v):\n    s = tw.zeros((m,), tw.f32)\n    for k in tw.steps(K, state=s, merge=int):"
        "\n        s.assign(tw.maximum(s, A[m, k].max(axis=1)))\n    v[m] = s",
        "a dataflow kernel",
    ),
    Call(
        "for m in tw.tiles(K):\n    C[m] = tw.where(tw.positions(A[m], axis=1) < n0, A[4, 8], 0.5)",
        "a dataflow kernel",
    ),
)


@pytest.mark.parametrize("call", FOUND, ids=str)
def test_calls_that_once_ended_badly(call: Call) -> None:
    assert failure_of(call) is None


def told(found: Failure, seed: int) -> str:
    return (
        f"{found.what} at {found.where}\n    {found.call}\n{found.report}\n"
        f"again: pytest tests/calls/test_fuzz.py --fuzz-seed={seed}"
    )


FAILING = {
    "a raw error": ("rows.broken()", "raises AttributeError"),
    "an endless call": ("rows.endless()", "takes more than"),
    "an argument that is changed": ("rows.change(given)", "it changed given"),
    "a message about nothing": ("rows.mumble()", "LayoutError names nothing of the call: no"),
}


@pytest.mark.parametrize("name", FAILING)
def test_what_is_wrong_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = compile(
        "def broken(self):\n    return None.x\n"
        "def endless(self):\n    while True: pass\n"
        "def change(self, given):\n    given.append(1)\n"
        "def mumble(self):\n    raise LayoutError('no')\n",
        tw.calls.PACKAGE + "made_up.py",
        "exec",
    )
    made = {"LayoutError": tw.LayoutError}
    exec(code, made)
    for method in ("broken", "endless", "change", "mumble"):
        monkeypatch.setattr(tw.Distribution, method, made[method], raising=False)
    monkeypatch.setattr(performed, "SECONDS", 0.2)
    text, what = FAILING[name]
    found = failure_of(Call(text))
    assert found is not None
    assert found.what.startswith(what)


def test_calls_are_the_same_for_a_seed_and_others_for_another() -> None:
    first, again, other = ([str(drawn(rng)) for _ in range(50)] for rng in map(Random, (7, 7, 8)))
    assert first == again != other
    for present in (TRACED, RECORDED):
        assert len({*VALUES, *present}) == len(VALUES) + len(present)
