"""Atoms of matrix cores: their numbers on the reference, and their instructions in compiled text."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from tests.targets.products import Product

import tilewright as tw
from tilewright.amdgcn import UnknownInstructionError
from tilewright.amdgcn.decode import FAMILIES
from tilewright.arch import Arch
from tilewright.errors import LegalityError
from tilewright.inspect.isa import execute_listing
from tilewright.ir.mma import MmaAtom
from tilewright.ops.planning import widened_on
from tilewright.ops.products import combined, plain
from tilewright.runtime import amdgcn
from tilewright.targets.amd import ARCHITECTURES
from tilewright.targets.atoms import is_listed, spelled
from tilewright.targets.hip.instructions import builtins, function
from tilewright.targets.hip.prelude import DIALECT
from tilewright.targets.matrix_cores import MATRIX_CORES, nearest

from .machine import listings


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("atom", MATRIX_CORES.values(), ids=MATRIX_CORES)
def test_every_row_is_right_on_the_reference(atom: MmaAtom) -> None:
    """Waves have 64 lanes, some lanes hold copies, and a lane has 16 bytes of K."""
    made = Product(atom, from_registers=False)
    a, b, c = made.arrays((70, 72, 160 // atom.a_dtype.bytes))
    assert made.bound(a, b, c, target="reference").target == "reference"
    made.compare(a, b, c).raise_if_wrong()


@pytest.mark.parametrize(("name", "atom"), MATRIX_CORES.items(), ids=MATRIX_CORES)
def test_every_row_is_one_that_authors_can_write(name: str, atom: MmaAtom) -> None:
    assert getattr(tw.atoms, name) is atom
    assert is_listed(atom)
    assert eval(spelled(atom)) == atom
    lanes = 64 if atom.instruction == "mfma" else 32
    assert atom.lanes == lanes
    elements = atom.shape[0] * atom.shape[1]
    assert atom.c.size_values * lanes == elements, "each sum is in one lane"
    copies = 2 if atom.feature == "gfx11" else 1
    assert (atom.a.copies, atom.b.copies, atom.c.copies) == (copies, copies, 1)


def executing(arch: Arch) -> list[MmaAtom]:
    return [atom for atom in MATRIX_CORES.values() if atom.feature in arch.features]


@pytest.mark.parametrize("arch", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_every_row_is_the_instruction_of_its_builtin(arch: Arch) -> None:
    """For each architecture, one kernel calls the function of each of its atoms."""
    functions = [made for atom in executing(arch) if (made := function(atom)) is not None]
    assert len({made.name for made in functions}) == len(executing(arch)) >= 4
    text = "\n".join(DIALECT.qualified(made.text) for made in functions)
    kernels = "\n".join(
        f'extern "C" __attribute__((global)) void of_{made.name}({sums}* c, const void* a, const void* b) '
        f"{{ {made.name}(c + 64*__builtin_amdgcn_workitem_id_x(), a, b); }}"
        for made in functions
        for sums in re.findall(r"void \w+\((\w+)\*", made.text)
    )
    listing = amdgcn.compile_text(f"{text}\n{kernels}\n", arch.name, "atoms")
    bodies = dict(re.findall(r"^of_(\w+):(.*?)s_endpgm", listing, re.MULTILINE | re.DOTALL))
    for atom, made in zip(executing(arch), functions, strict=True):
        side, _, depth = atom.shape
        found = re.findall(r"^\tv_(?:mfma|wmma)_\w+", bodies[made.name], re.MULTILINE)
        ways = builtins(atom)
        steps = ways[0 if arch.name == "gfx950" else -1][0]
        assert len(found) == steps, made.name
        deep = depth // steps
        assert all(f"_{side}x{side}x{deep}" in one for one in found), (made.name, found)


def test_the_deepest_of_the_largest_is_chosen() -> None:
    found = {
        arch.name: {
            f"{a}": str(nearest(a, tw.f32 if a.is_float and a != tw.f64 else c, arch.features))
            for a, c in ((tw.f16, tw.f32), (tw.i8, tw.i32), (tw.f64, tw.f64), (tw.f8e4m3, tw.f32))
        }
        for arch in ARCHITECTURES.values()
    }
    assert found["gfx942"] == {
        "f16": "mfma.32x32x16.f32.f16",
        "i8": "mfma.32x32x32.i32.i8",
        "f64": "mfma.16x16x8.f64.f64",
        "f8e4m3": "None",
    }
    assert found["gfx1151"] == {
        "f16": "wmma.16x16x16.f32.f16",
        "i8": "wmma.16x16x16.i32.i8",
        "f64": "None",
        "f8e4m3": "None",
    }
    assert found["gfx90a"]["i8"] == "mfma.32x32x8.i32.i8"
    assert found["gfx950"]["f8e4m3"] == "mfma.32x32x32.f32.f8e4m3"
    assert found["gfx1201"]["f16"] == "wmma.gfx12.16x16x16.f32.f16"


@pytest.mark.parametrize(
    ("atom", "target", "arch", "instead"),
    [
        (tw.atoms.WMMA_F16, "hip", "gfx942", "mfma.32x32x16.f32.f16"),
        (tw.atoms.MMA_F16, "hip", "gfx1151", "wmma.16x16x16.f32.f16"),
        (tw.atoms.MFMA_E4M3, "hip", "gfx942", "fma(f8e4m3)"),
        (tw.atoms.MFMA_F16, "cuda", "sm_90a", "mma.m16n8k16.f32.f16"),
    ],
)
def test_an_atom_of_another_machine_is_refused_with_one_of_this_one(
    atom: MmaAtom, target: str, arch: str, instead: str
) -> None:
    made = Product(atom, from_registers=False)
    with pytest.raises(LegalityError) as caught:
        made.bound.compile(*made.specs(), target=target, arch=arch)
    [found] = [one for one in caught.value.violations if one.rule == "atom"]
    assert found.message == f"{arch} does not execute {atom}"
    assert found.nearest == instead


OTHERS = [arch for arch in ARCHITECTURES if arch not in ("gfx942", "gfx1151")]
"""Architectures beside the two whose listings all tests execute."""


@pytest.mark.parametrize("arch", OTHERS)
def test_a_product_for_every_architecture_is_executed_or_refused_by_name(arch: str) -> None:
    """Shapes are ragged with several tiles along each axis; both compilers' listings are executed."""
    random = np.random.default_rng(1)
    a, b = (random.standard_normal(shape).astype(np.float16) for shape in ((150, 70), (70, 140)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = 2.0**-11 * np.abs(exact) + 2.0**-20 * (
        np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    )
    c = np.full((150, 140), np.nan, np.float16)
    made = plain(0).bind(precision="exact").compile(a, b, c, target="hip", arch=arch)
    found = list(listings(made)) if arch != "gfx950" else [made.assembly]
    assert all(re.search(r"\tv_(mfma|wmma)_f32_", listing) for listing in found)
    for listing in found:
        c[:] = np.nan
        if arch not in FAMILIES:
            with pytest.raises(UnknownInstructionError, match=f"the instructions of '{arch}' are not known"):
                execute_listing(replace(made, assembly=listing), {"A": a, "B": b, "D": c}, {})
            continue
        execute_listing(replace(made, assembly=listing), {"A": a, "B": b, "D": c}, {})
        assert (np.abs(c - exact) <= bound).all()


@pytest.mark.parametrize("arch", ["gfx942", "gfx1151"])
@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2"])
def test_fp8_that_an_architecture_lacks_is_multiplied_by_matrix_cores_as_f16(name: str, arch: str) -> None:
    kind = widened_on(tw.dtype(name), ARCHITECTURES[arch].features)
    assert kind == (tw.f16,)
    size, asked = (4096, 4096), {"target": "hip", "arch": arch}
    a, out, row = tw.like(name, size), tw.like("f16", size), tw.like("f16", 4096)
    added = combined(0, tw.f32, *kind)
    added = added.bind(precision="exact", terms=frozenset({"alpha", "bias"}), activation="relu")
    for order in "CF":
        b = tw.like(name, size, order=order)
        for made in (
            plain(0, *kind).bind(precision="exact").compile(a, b, out, **asked),
            added.compile(a, b, out, row, out, out, 1.0, 1.0, **asked),
        ):
            assert made.assembly is not None
            assert re.search(r"v_mfma_f32_32x32x\d+_f16|v_wmma_f32_16x16x16_f16", made.assembly)
            assert not made.resources["spilled_registers"] + made.resources["spilled_scalar_registers"]
            assert not made.resources["stack_bytes"]
