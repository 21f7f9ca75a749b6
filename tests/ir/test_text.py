"""Printed kernels parse back to themselves, and contain everything that matters and nothing else."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.errors import ParseError
from tilewright.ir.copies import BULK_VERBS
from tilewright.ir.kernel import Guard, Kernel
from tilewright.ir.ops import OPS
from tilewright.ir.parser import parse_kernel
from tilewright.ir.printer import VERSION, print_kernel
from tilewright.ir.verify import broken_rules, violations
from tilewright.passes.packed import copy_bytes
from tilewright.symbolic.expr import less

from . import asynchronous
from .kernels import EACH, kernels, launch, trace

pytestmark = pytest.mark.in_turns(3)

LOWERED = {"as_bytes", "pack", "unpack"}
"""Operations that no author says."""


def reparsed(kernel: Kernel) -> str:
    text = print_kernel(kernel)
    again = print_kernel(parse_kernel(text))
    assert again == text
    return text


# ---------------------------------------------------------------- every operation


def test_every_operation_has_a_kernel_here() -> None:
    said = EACH.keys() | asynchronous.EACH.keys()
    assert said == {op.name for op in OPS} - LOWERED | {"copy_async", *BULK_VERBS}


def test_values_named_after_words_of_python_read_back() -> None:
    """Masks are computed by functions of the names ``and`` and ``or``."""

    @tw.kernel(X="lambda", Y="lambda")
    def masked(X, Y):
        for n in tw.tiles(X.shape[0]):
            x = X[n]
            Y[n] = tw.where(((x > 0) & (x < 3)) | (x > 7), x, 0)

    x, y = np.arange(-2, 10, dtype=np.float32), np.zeros(12, np.float32)
    ran = masked(x, y, target="reference")
    assert y.tolist() == [0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 8, 9]
    text = reparsed(ran.kernel)
    assert "and_ = elementwise((less, less_1,), function='and')" in text
    flow = tw.ir.print_flow(ran.flow)
    assert "or_(" in flow
    assert tw.ir.parse_flow(flow) == ran.flow


def test_blocks_that_run_at_once_read_back() -> None:
    def nothing(A, C, n, alpha):
        tw.barrier()

    kernel = replace(trace(nothing), resident=3)
    text = reparsed(kernel)
    assert "resident=3" in text.splitlines()[1]
    assert parse_kernel(text).resident == 3
    with pytest.raises(ParseError, match="resident blocks of a kernel are an integer, at least 0"):
        parse_kernel(text.replace("resident=3", "resident=-3"))


def test_operations_that_come_of_passes_read_back() -> None:
    def moves_numbers_of_four_bits(A, C, n, alpha):
        held = tw.shared((16, 8), tw.i4)
        x = tw.load(A.tile((16, 8), (n, 0)).partition((16, 2)))
        tw.copy(x, held)
        tw.copy(held, x)

    kernel = copy_bytes(trace(moves_numbers_of_four_bits))
    assert [str(violation) for violation in violations(kernel)] == []
    assert {op.name for op in kernel.walk()} >= LOWERED
    reparsed(kernel)


@pytest.mark.parametrize("name", [*EACH, *asynchronous.EACH])
def test_every_operation_is_said_by_the_language_and_reads_back(name: str) -> None:
    kernel = trace(EACH[name]) if name in EACH else asynchronous.trace(asynchronous.EACH[name])
    printed = next(op.name for op in kernel.walk() if op.verb == name)
    assert [str(violation) for violation in violations(kernel)] == []
    assert re.search(rf"^ *(\w+ = |with )?{printed}\b", reparsed(kernel), re.MULTILINE)


def test_launch_shape_reads_back() -> None:
    text = reparsed(trace(launch))
    assert "= grid(" in text
    assert "= cluster(0, 2)" in text
    assert "workspace(f32, " in text
    assert "Derived(" in text


def test_guards_read_back() -> None:
    kernel = trace(launch)
    sizes = {size.sym.name: size.sym for size in kernel.sizes}
    guard = Guard(less(3, sizes["n"]), 'n must be > 3, "really"')
    guarded = Kernel(kernel.name, kernel.params, kernel.grid, 32, kernel.body, kernel.cluster, 32, (guard,))
    assert parse_kernel(reparsed(guarded)).guards == (guard,)


@settings(max_examples=40)
@given(kernels())
def test_any_kernel_reads_back(kernel: Kernel) -> None:
    reparsed(kernel)


@settings(max_examples=20)
@given(kernels())
def test_reading_back_keeps_what_is_verified(kernel: Kernel) -> None:
    def rules(of: Kernel) -> list[tuple[str, str]]:
        return [(violation.rule, violation.message) for op in of.walk() for violation in broken_rules(op)]

    assert rules(parse_kernel(print_kernel(kernel))) == rules(kernel)


def test_locations_are_comments() -> None:
    kernel = trace(EACH["for"])
    assert print_kernel(parse_kernel(print_kernel(kernel, locations=True))) == print_kernel(kernel)


# ---------------------------------------------------------------- canonical


def test_no_paths_addresses_or_locations() -> None:
    for name in EACH:
        text = print_kernel(trace(EACH[name]))
        assert not re.search(r"0x[0-9a-f]{6}|/|\.py|object at|kernels", text.replace("//", "")), text


def test_text_is_the_same_in_every_process() -> None:
    script = (
        "from tests.ir.kernels import EACH, trace; import tilewright as tw;"
        "print(*(tw.ir.print_kernel(trace(kernel)) for kernel in EACH.values()))"
    )
    root = Path(__file__).parents[2]
    texts = set()
    for seed in ("0", "1", "4711"):
        env = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")]),
        }
        command = [sys.executable, "-c", script]
        texts.add(
            subprocess.run(command, env=env, check=True, capture_output=True, text=True, cwd=root).stdout
        )
    assert len(texts) == 1
    assert "mma(" in texts.pop()


def test_tracing_twice_gives_the_same_text() -> None:
    for kernel in EACH.values():
        assert print_kernel(trace(kernel)) == print_kernel(trace(kernel))


def gemm(
    *, tile=(32, 16), threads=(16, 2), vector=4, fill=0.0, stages=1, dtype=tw.f16, name="gemm", atom=None
):
    def author(A, C, n, alpha):
        sA = tw.shared((stages, *tile), dtype)
        acc = tw.fragment(tw.blocked(tile, threads, (1, 0)), tw.f32, fill)
        for k in tw.range(n):
            tw.copy(A.tile(tile, (0, k)), sA[0], threads=threads, vector=vector)
        if atom is not None:
            tw.accumulator(tw.TiledMma(atom))
        tw.copy(acc, C.tile(tile, (0, 0)))

    author.__name__ = name
    return print_kernel(trace(author))


@pytest.mark.parametrize(
    "change",
    [
        {"tile": (32, 32)},
        {"threads": (32, 1)},
        {"vector": 2},
        {"vector": None},
        {"fill": 1.0},
        {"fill": None},
        {"fill": 0},
        {"stages": 2},
        {"dtype": tw.bf16},
        {"name": "gemm2"},
        {"atom": tw.atoms.MMA_F16},
        {"atom": tw.atoms.MMA_BF16},
    ],
    ids=str,
)
def test_every_constant_changes_the_text(change: dict[str, Any]) -> None:
    assert gemm(**change) != gemm()


# ---------------------------------------------------------------- garbage

GOOD = print_kernel(trace(EACH["for"]))
NEXT = GOOD.count("\n") + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "starts with ''"),
        ("# tilewright ir 0\n", f"not with '# tilewright ir {VERSION}'"),
        (f"# tilewright ir {VERSION}\n", "line 2: expected kernel"),
        (f"# tilewright ir {VERSION}\nbarrier()\n", "line 2: expected kernel"),
        (f"# tilewright ir {VERSION}\nkernel('x', threads=1)\n", "line 2: expected kernel"),
        (f"# tilewright ir {VERSION}\nkernel('x'\n", "line 2: "),
        (GOOD + "barrier(\n", f"line {NEXT}: "),
        (GOOD + "barrier(1)\n", f"line {NEXT}: barrier"),
        (GOOD + "barrier(x=1)\n", f"line {NEXT}: barrier"),
        (GOOD + "nonsense()\n", f"line {NEXT}: not a statement of a kernel: nonsense()"),
        (GOOD + "x = nonsense()\n", f"line {NEXT}: unknown operation 'nonsense'"),
        (GOOD + "x = 3\n", f"line {NEXT}: not a statement"),
        (GOOD + "import os\n", f"line {NEXT}: not a statement"),
        (GOOD + "copy(A, q)\n", f"line {NEXT}: not a value: q"),
        (GOOD + "copy(A)\n", f"line {NEXT}: copy(A): ValueError"),
        (GOOD + "copy(A, 3)\n", f"line {NEXT}: copy(A, 3): TypeError: target of copy is not a value but 3"),
        (
            GOOD + "x = size(Extent(tensor='A', dim=0))\n",
            f"line {NEXT}: x = size(Extent(tensor='A', dim=0)): KeyError",
        ),
        (GOOD + "for i in range(3):\n    pass\n", f"line {NEXT}: for i in range(3): ValueError"),
        (
            GOOD + "for i in range(0, 4, 1):\n    barrier()\n    x = view(A)\n",
            f"line {NEXT + 2}: x = view(A): TypeError",
        ),
        (GOOD + "if __import__('os'):\n    pass\n", f"line {NEXT}: not a condition"),
        (GOOD + "x = fragment(dtype=f32, distribution=d9)\n", f"line {NEXT}: not a value: d9"),
        (GOOD + "var(3 // 0)\n", f"line {NEXT}: "),
        (GOOD + "\0", "line"),
        (GOOD + "-" * 100000 + "1\n", "line"),
    ],
    ids=lambda value: repr(value[-40:]) if len(value) < 2000 else "huge",
)
def test_garbage_is_an_error_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=re.escape(message)):
        parse_kernel(text)


@settings(max_examples=150)
@given(st.randoms(use_true_random=False), st.sampled_from(sorted(EACH)))
def test_damaged_text_is_a_parse_error_or_a_kernel(chance: random.Random, name: str) -> None:
    lines = print_kernel(trace(EACH[name])).split("\n")
    damage: list[Callable[[str], str]] = [
        lambda line: line[: chance.randrange(len(line) + 1)],
        lambda line: line.replace("(", "((", 1),
        lambda line: re.sub(r"\d+", lambda _: str(chance.choice([0, -1, 7, 10**20])), line, count=2),
        lambda line: re.sub(r"\b[A-Za-z]\w*", lambda _: chance.choice(["A", "n", "f16", "k"]), line, count=3),
        lambda line: "",
        lambda line: line.replace("=", ",", 1),
        lambda line: line.replace(", ", "", 1),
    ]
    at = chance.randrange(1, len(lines))
    lines[at] = chance.choice(damage)(lines[at])
    try:
        parse_kernel("\n".join(lines))
    except ParseError as error:
        said = str(error)
    else:
        said = "line 0: read"
    assert re.match(r"line \d+: ", said), said
