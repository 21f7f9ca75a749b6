"""The text of expanded kernels, run on the host, finds elements beyond 2**31."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.far import far
from tests.schedule import small
from tests.schedule.small import CASES, Case

import tilewright as tw
from tilewright.ir.kernel import Kernel, SizeParam, Stride
from tilewright.runtime.arrays import describe
from tilewright.runtime.binding import spec_of
from tilewright.runtime.native import find_toolchains
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets import cuda, reference

from .test_emulated import arguments

EMULATED = (
    "direct",
    "registers",
    "registers, B past shared memory",
    "cp_async, batches",
    "cp_async, persistent batches",
    "cp_async, staged",
    "cp_async, two results",
    "cp_async, row sums",
    "fragments, persistent",
    "fragments, decoded",
    "swapped, cp_async, staged",
)
"""Forms whose instructions the emulator has, and whose blocks wait for no other one."""
TRANSPOSED = {
    "direct, transposed": replace(CASES["direct"], layout="tn"),
    "fragments, transposed": replace(CASES["fragments"], layout="tn"),
}
FORMS: dict[str, Case] = {name: CASES[name] for name in EMULATED} | TRANSPOSED
BULK = ("wgmma, cp_async", "cooperative, overlapped, residual", "ping-pong, residual")


def arrays(case: Case, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return a case's arrays: two steps deep, with at least 2**31 elements between first and last."""
    monkeypatch.setattr(small, "in_rows", far)
    made = case.arrays(case.shape(2))
    for name, array in made.items():
        assert spec_of(describe(array)).wide == (array.ndim > 1), name
    return made


def traced(case: Case, given: dict[str, Any]) -> Kernel:
    return case.bound.trace(*given.values(), target="cuda", arch="sm_90a")


@pytest.fixture(scope="module")
def emulator(emulation: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patched:
        kernels = {name: traced(case, arrays(case, patched)) for name, case in FORMS.items()}
    listings = {name: cuda.emit(kernel, "sm_90a") for name, kernel in kernels.items()}
    return emulation["Emulator"](listings, find_toolchains()[0], tmp_path_factory.mktemp("far"))


@pytest.mark.parametrize("name", FORMS)
def test_every_element_is_found(name: str, emulator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = FORMS[name]
    given = arrays(case, monkeypatch)
    lowered = cuda.lower(traced(case, given), cuda.architecture("sm_90a"))[0]
    assert all(p.bits == 64 for p in lowered.params if isinstance(p, SizeParam) and is_far(p, given))
    env = reference.bind_sizes(lowered, given, {})
    places = {name: SimpleNamespace(address=array.ctypes.data) for name, array in given.items()}
    packed, kept = arguments(lowered, places, env)
    emulator.run(name, [int(evaluate(axis.extent, env)) for axis in lowered.grid], lowered.threads, packed)
    del kept
    found = case.compare(given)
    assert found.ok, found


def is_far(size: SizeParam, given: dict[str, Any]) -> bool:
    """Return whether a size is a passed stride."""
    return isinstance(size.source, Stride) and given[size.source.tensor].ndim > 1


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", BULK)
def test_bulk_copies_take_strides_of_any_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bulk copies find elements by their coordinates; threads find other elements by offsets."""
    given = arrays(CASES[name], monkeypatch)
    made = CASES[name].bound.compile(*given.values(), target="cuda", arch="sm_90a")
    assert made.schedule == CASES[name].schedule
    # Unchecked, for the checker knows every byte between the first and the last.
    reference.run(CASES[name].bound.trace(*given.values()), given, {}, {}, check=False)
    found = CASES[name].compare(given)
    assert found.ok, found


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("layout", ["nt", "tn"])
@pytest.mark.parametrize("kernel", [small.residual, small.batched, small.two_results], ids=lambda k: k.name)
def test_processors_find_them(kernel: Any, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for schedule in (None, tw.Schedule(tw.atoms.fma("f16"), (32, 32, 16))):
        case = Case(schedule or CASES["direct"].schedule, kernel, layout)
        given = arrays(case, monkeypatch)
        ran = kernel.bind(schedule=schedule)(*given.values(), target="cpu")
        assert ran.target == "cpu"
        found = replace(case, schedule=ran.schedule).compare(given)
        assert found.ok, found


def test_matmul_finds_them() -> None:
    rng = np.random.default_rng(0)
    a, b, out = (
        far(shape, tw.f32, column) for shape, column in (((5, 7), False), ((7, 9), True), ((5, 9), 0))
    )
    a[...], b[...], out[...] = rng.standard_normal(a.shape), rng.standard_normal(b.shape), np.nan
    expected = a.astype(np.float64) @ b + 1
    assert tw.matmul(a, b, out, bias=np.ones(9, np.float32), target="cpu") is out
    assert (np.abs(out - expected) <= 16 * 2.0**-23 * (1 + np.abs(expected))).all()
