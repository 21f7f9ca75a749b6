"""A target's name is in one place, the parts of a record exist, and each record is complete."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.arch import Arch
from tilewright.cli.doctor import TOOLS, ToolCheck
from tilewright.runtime.backends import BACKENDS, backend_named
from tilewright.runtime.drivers import driver_for, driver_of
from tilewright.schedule.choice import CHOOSERS
from tilewright.targets import cuda
from tilewright.targets.atoms import WGMMA
from tilewright.targets.matrix_cores import MATRIX_CORES as AMD_ATOMS
from tilewright.targets.target import CUDA, HOST, MEANT, TARGETS, Target, serving, target_named

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "src" / "tilewright" / "targets" / "target.py"
QUOTED = re.compile(rf"^({'|'.join(TARGETS)})$|=['\"]({'|'.join(TARGETS)})['\"]")


SOURCES = ROOT / "src" / "tilewright"
SPELLED = re.compile(r"cuda|nvidia|\bptx\b|(thread|block)Idx|\bsm_\d|\basm\b|__[a-z]+|amdgcn", re.IGNORECASE)
FREE = ("ir", "lang", "passes", "symbolic", "layout", "views", "threads", "targets/simt")
"""Where no word of a vendor's C++ stands; names of verbs are the author's words."""


def literal_names(tree: ast.AST, pattern: re.Pattern[str] = QUOTED) -> Iterator[str]:
    """Return a program's strings, except docstrings, that are or contain a target's name."""
    documents = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }  # of a module, a class, a function or a constant
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in documents:
            continue
        if pattern.search(node.value):
            yield f"{node.lineno}: {node.value!r}"


def test_no_word_of_a_vendor_stands_where_all_targets_come_by() -> None:
    assert list(literal_names(ast.parse('"""threadIdx"""; f("__syncthreads")'), SPELLED)) == [
        "1: '__syncthreads'"
    ]
    found = [
        f"{path.relative_to(SOURCES)}:{word}"
        for room in FREE
        for path in sorted((SOURCES / room).rglob("*.py"))
        for word in literal_names(ast.parse(path.read_text()), SPELLED)
        if not re.search(r": '__\w+__'$", word)  # a name of Python's
    ]
    assert not found, "a dialect or an architecture has a field for it:\n" + "\n".join(found)


ARCHITECTURE = re.compile(r"^(sm_\d+a?|gfx\d\w*)$")
RECORDED = ("targets", "amdgcn")
"""Rooms that may name architectures: the records of machines, and the instruction sets of AMD's listings."""


def test_capabilities_are_asked_of_the_architecture_record() -> None:
    """Code outside the records tests a feature such as ``"wgmma"``, never the name of an architecture."""
    assert list(literal_names(ast.parse('if "sm_90a" in arch.features: ...'), ARCHITECTURE))
    rooms = [path for path in SOURCES.rglob("*.py") if path.relative_to(SOURCES).parts[0] not in RECORDED]
    found = [
        f"{path.relative_to(SOURCES)}:{name}"
        for path in rooms
        for name in literal_names(ast.parse(path.read_text()), ARCHITECTURE)
    ]
    found += [
        f"{path.relative_to(SOURCES)}:{name}"
        for room in ("ops", "schedule")
        for path in (SOURCES / room).rglob("*.py")
        for name in literal_names(ast.parse(path.read_text()), re.compile(r"\b(sm_|gfx)\d"))
    ]
    assert not found, "ask `Arch.features`, or add a field to `Arch`:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "arch", [arch for target in TARGETS.values() for arch in target.architectures.values()]
)
def test_a_machine_with_an_instruction_set_has_its_capabilities(arch: Arch) -> None:
    """A machine executes an atom of ``wgmma``, ``mfma`` or ``wmma`` exactly if it has that feature."""
    known = [*AMD_ATOMS.values(), *(tw.atoms.wgmma(row.a, 64, row.b, row.c) for row in WGMMA)]
    for instruction in ("wgmma", "mfma", "wmma"):
        atoms = [atom for atom in known if atom.instruction == instruction]
        is_executed = any(atom.feature in arch.features for atom in atoms)
        assert is_executed == (instruction in arch.features), (arch.name, instruction)


@pytest.mark.parametrize(
    ("arch", "board", "dtype", "flops"),
    [
        ("sm_80", "A100 SXM 80GB", "f16", 312e12),
        ("sm_80", "A100 SXM 80GB", "f64", 19.5e12),
        ("sm_86", "RTX A6000", "f16", 154.8e12),
        ("sm_89", "L40S", "f8e4m3", 733e12),
        ("sm_90a", "H200 SXM", "bf16", 989e12),
        ("sm_90a", "H200 SXM", "tf32", 494e12),
        ("sm_90a", "H200 SXM", "i8", 1979e12),
    ],
)
def test_rates_agree_with_datasheets(arch: str, board: str, dtype: str, flops: float) -> None:
    """They agree within a tenth: datasheets assume a clock below the highest one."""
    rates = CUDA.architectures[arch].rates
    assert rates is not None
    [found] = [one for one in rates.boards if one.name == board]
    computed = rates.tensor_flops[dtype] * found.multiprocessors * found.clock_mhz * 1e6
    assert math.isclose(computed, flops, rel_tol=0.1)


@tw.kernel(X="M N", Y="M N")
def moved(X, Y, *, rows):
    s = tw.shared((rows, 64), X.dtype)
    tw.copy(X.tile((rows, 64), (0, 0)), s, threads=96)
    tw.barrier()
    tw.copy(s, Y.tile((rows, 64), (0, 0)), threads=96)


def test_an_architecture_is_a_record_and_nothing_more() -> None:
    """A record that is in no table works for traces, checks and compilation."""
    made = replace(CUDA.architectures["sm_86"], name="sm_87x", lanes=16, shared_bytes=5000)
    specs = dict.fromkeys("XY", tw.TensorSpec(tw.f32, 2, 1, (1, 64), (64, 1), 16, False))
    small, large = (moved.program.trace(specs, {"rows": rows}, made) for rows in (6, 24))
    assert (small.lanes, small.threads) == (16, 96)
    assert cuda.violations(small, made) == []
    [found] = cuda.violations(large, made)
    assert "6144 bytes of shared memory" in found.message
    assert "sm_87x has 5000" in found.message
    assert "__launch_bounds__(96)" in cuda.emit(small, made).text


def test_a_name_of_a_target_stands_in_its_record_alone() -> None:
    assert list(literal_names(ast.parse('"""cuda"""\nif t == "cuda": f(f"target=\'cpu\'")'))) == [
        "2: 'cuda'",
        "2: \"target='cpu'\"",
    ]
    sources = [path for path in (ROOT / "src").rglob("*.py") if path != RECORDS]
    found = [
        f"{path.relative_to(ROOT)}:{name}"
        for path in sources
        for name in literal_names(ast.parse(path.read_text()))
    ]
    assert not found, f"ask its record in {RECORDS.relative_to(ROOT)}:\n" + "\n".join(found)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_target_has_its_parts_and_a_whole_record(target: Target) -> None:
    """Each room's table has a row for the target; a GPU has a driver, too."""
    assert BACKENDS[target.name].name == target.name
    assert bool(backend_named(target.name).passes) == target.machine_code
    assert callable(CHOOSERS[target.name])
    assert all(isinstance(check, ToolCheck) for check in TOOLS[target.name]())
    driver = driver_for(target.name)
    assert (driver is None) == (target.memory == HOST)
    assert driver is None or (driver.symbols.target, driver_of(target.memory)) == (target, driver)
    assert target.architectures
    assert not target.arch or target.arch in target.architectures
    for name, arch in target.architectures.items():
        assert isinstance(arch, Arch)
        assert arch.name == name
        assert target.architecture(name) is target.architecture(arch) is arch
        assert arch.lanes not in arch.other_lanes
    assert all(MEANT[other] == target.name for other in target.called)
    assert serving(target.memory).memory == target.memory
    assert target_named(target.name) is target
