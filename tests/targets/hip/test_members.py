"""Every operation of the library and the examples on AMD GPUs: their listings, executed on ragged sizes.

What the newer of two compilers makes of each kernel is executed; the older one, and the system's where there
is one, compile it too.  Of one case of each operation and each example, another one each day, what the older
compiler makes is executed as well, and the reference executes the kernel itself with waves of 64 lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

import tilewright as tw

from .lessons import LESSONS, TRAITS
from .machine import ARCHS, COMPILED, EXECUTED, OLDER_VERSION, machines, others, toolchain
from .members import MEMBERS, Case

ROOT = Path(__file__).parents[3]

GROUPS = MEMBERS | LESSONS
EACH: dict[str, tuple[Case, str]] = {
    f"{arch}, {group}: {name}": (case, arch)
    for arch in ARCHS
    for group, cases in GROUPS.items()
    for name, case in cases.items()
}
EACH |= {f"gfx942, {name}": (case, "gfx942") for name, case in TRAITS.items()}

TODAY = date.today().toordinal()

ENDLESS = {"list"}
"""Cases that the reference takes a minute for: it looks through the memory that a list may lie in."""

PRODUCTS = ("matmul", "_mm", "einsum", "attention", "gemm_chain")
"""What the names of operations of the family end in."""


@pytest.fixture(autouse=True)
def targets() -> Iterator[None]:
    with machines():
        yield


@pytest.mark.parametrize(("case", "arch"), EACH.values(), ids=EACH)
def test_every_case(case: Case, arch: str) -> None:
    """Each element is within its bound."""
    EXECUTED.clear()
    case(arch)
    assert EXECUTED, "nothing was executed"


def of_today(group: str) -> Case:
    """One case of an operation or an example, another one each day."""
    cases = [case for name, case in GROUPS[group].items() if name not in ENDLESS]
    return cases[TODAY % len(cases)]


@pytest.mark.parametrize("group", GROUPS)
def test_what_the_older_compiler_makes(group: str) -> None:
    EXECUTED.clear()
    of_today(group)(f"{ARCHS[TODAY // 7 % 2]} older")
    assert EXECUTED, "nothing was executed"


@pytest.mark.parametrize("group", GROUPS)
def test_the_reference_with_64_lanes(group: str) -> None:
    """No hazard, and every element within the bound that the listing keeps."""
    of_today(group)("gfx942 reference")


def test_both_compilers_compile_what_the_newer_one_executes() -> None:
    COMPILED.clear()
    MEMBERS["matmul"]["batched"](ARCHS[0])
    assert all(COMPILED[other] == COMPILED["newer"] for other in others())
    versions = [toolchain(which).version for which in ("older", "newer")]
    assert versions[0] == OLDER_VERSION < versions[1]
    assert f"older_compiler={OLDER_VERSION}\n" in (ROOT / "dev").read_text()


def test_every_operation_of_the_family_has_cases() -> None:
    """What the library offers by name; a new operation needs a case here."""
    offered = {name for name in tw.__all__ if name.endswith(PRODUCTS)}
    assert offered <= {*MEMBERS}, "operations without a case on AMD GPUs"
    assert {*MEMBERS} - offered == {"convolution"}
    dtypes = {"f16", "bf16", "f32", "f64", "i8", "fp8"}
    assert dtypes <= {*MEMBERS["matmul"]}
    numbers = {path.name[:2] for path in (ROOT / "examples").glob("0[24-9]_*.py")}
    assert {*LESSONS} == numbers
