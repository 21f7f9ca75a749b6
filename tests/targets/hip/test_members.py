"""Every operation of the library and the examples on AMD GPUs: their listings, executed on ragged sizes.

What the newer of two compilers makes of each kernel is executed; the older one, and the system's where there
is one, compile it too.  Of one case of each operation and each example, drawn by the commit, what the older
compiler makes is executed as well, and the reference executes the kernel itself with waves of 64 lanes.

``pytest --every-compiler tests/targets/hip/test_members.py`` does both with every case, and writes those that
went well into `every_case.txt`, each with the commit at which it was tried.
"""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.turns import seed_of

import tilewright as tw

from .lessons import LESSONS, TRAITS
from .machine import ARCHS, COMPILED, EXECUTED, OLDER_VERSION, machines, others, toolchain
from .members import DEEP, MEMBERS, Case

ROOT = Path(__file__).parents[3]

GROUPS = MEMBERS | LESSONS
EACH: dict[str, tuple[Case, str]] = {
    f"{arch}, {group}: {name}": (case, arch)
    for arch in ARCHS
    for group, cases in GROUPS.items()
    for name, case in cases.items()
}
EACH |= {f"gfx942, {name}": (case, "gfx942") for name, case in TRAITS.items()}
EACH |= {f"gfx1151, {name}": (case, "gfx1151") for name, case in DEEP.items()}

REFERENCE = "gfx942 reference"
SECOND = {
    f"{target}, {name.partition(', ')[2]}": (case, target)
    for name, (case, arch) in EACH.items()
    for target in (f"{arch} older", f"{arch} reference")
    if target in (REFERENCE, *(f"{arch} older" for arch in ARCHS))
}
"""What the older compiler makes of each case, and the reference with 64 lanes."""

RECORD = Path(__file__).with_name("every_case.txt")
"""Those of them that went well when all were tried, and when that was."""

PRODUCTS = ("matmul", "_mm", "einsum", "attention", "gemm_chain", "col2im")
"""What the names of operations of the family end in."""


@pytest.fixture(autouse=True)
def targets() -> Iterator[None]:
    with machines():
        yield


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(("case", "arch"), EACH.values(), ids=EACH)
def test_every_case(case: Case, arch: str) -> None:
    """Each element is within its bound."""
    EXECUTED.clear()
    case(arch)
    assert EXECUTED, "nothing was executed"


def drawn(seed: int) -> list[str]:
    """Return one case of each operation and example, for the older compiler and for the reference."""
    found = []
    for group, cases in GROUPS.items():
        name = [*cases][seed % len(cases)]
        found += [f"{target}, {group}: {name}" for target in (f"{ARCHS[seed // 7 % 2]} older", REFERENCE)]
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "again" in metafunc.fixturenames:
        every = metafunc.config.getoption("--every-compiler")
        metafunc.parametrize("again", [*SECOND] if every else drawn(seed_of(metafunc.config)))


def test_the_older_compiler_and_the_reference_with_64_lanes(
    again: str, request: pytest.FixtureRequest
) -> None:
    """Every element is within the newer compiler's bound; the reference finds no hazard."""
    case, target = SECOND[again]
    EXECUTED.clear()
    case(target)
    assert EXECUTED or target == REFERENCE, "nothing was executed"
    if request.config.getoption("--every-compiler"):
        remember(again)


def remember(name: str) -> None:
    """Note that a case succeeded, and remove cases that no longer exist."""
    command = ("git", "rev-parse", "--short", "HEAD")
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    with RECORD.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known = dict(line.split(" -> ") for line in file.read().splitlines()) | {name: commit}
        file.truncate(0)
        file.write("".join(f"{one} -> {known[one]}\n" for one in SECOND if one in known))


def test_all_were_tried_by_both() -> None:
    """A new case must be tried: ``pytest --every-compiler tests/targets/hip/test_members.py -k …``."""
    known = dict(line.split(" -> ") for line in RECORD.read_text(encoding="utf-8").splitlines())
    assert {*known} == {*SECOND}


def test_both_compilers_compile_what_the_newer_one_executes() -> None:
    COMPILED.clear()
    MEMBERS["matmul"]["batched"](ARCHS[0])
    assert all(COMPILED[other] == COMPILED["newer"] for other in others())
    versions = [toolchain(which).version for which in ("older", "newer")]
    assert versions[0] == OLDER_VERSION < versions[1]
    assert f"older_compiler={OLDER_VERSION}\n" in (ROOT / "dev").read_text()


def test_every_operation_of_the_family_has_cases() -> None:
    """A new operation of the library needs a case here."""
    offered = {name for name in tw.__all__ if name.endswith(PRODUCTS)}
    assert offered <= {*MEMBERS}, "operations without a case on AMD GPUs"
    assert {*MEMBERS} - offered == {"convolution"}
    dtypes = {"f16", "bf16", "f32", "f64", "i8", "fp8"}
    assert dtypes <= {*MEMBERS["matmul"]}
    numbers = {path.name[:2] for path in (ROOT / "examples").glob("0[24-9]_*.py")}
    assert {*LESSONS} == numbers
