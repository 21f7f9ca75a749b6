"""The finished tuned instance for gfx1151: its symbols, its machine code, its numbers, its main loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.targets.hip.machine import listings

import tilewright as tw
from tilewright.amdgcn import read_listing
from tilewright.inspect.isa import Gates, IsaKind, broken, execute_listing, read_isa
from tilewright.ops.products import plain as plain_product
from tilewright.runtime.amdgcn import assemble, find_toolchain

from .ablated import given
from .amd import ARCH, INSTANCES, both, compiled
from .machine_code import compiler_version, disassembled, disassembler, encoded, functions, plain, without

pytestmark = pytest.mark.in_turns(3)

SIZES = {"Default": (256, 512, 128), "MNKPadding": (200, 304, 136)}
"""Two tiles each way; whole ones, and ragged ones whose rows are whole vectors."""


@pytest.fixture(scope="module")
def code_object() -> bytes:
    return assemble(both(), ARCH)


@pytest.mark.parametrize("name", INSTANCES)
def test_the_listing_computes_each_element_within_its_bound(name: str) -> None:
    """Sums of K products in f32 with one rounding each; then a product, a sum, and a rounding to f16."""
    arrays, made = given(*SIZES[name]), compiled(name)
    run = execute_listing(made, arrays, {"alpha": 1.0})
    wide = {key: value.astype(np.float64) for key, value in arrays.items()}
    sums = wide["A"] @ wide["B"] * wide["scale_b"]
    of_sums = np.abs(wide["A"]) @ np.abs(wide["B"]) * wide["scale_b"]
    exact, depth = sums + wide["bias"], SIZES[name][2]
    slack = (depth + 2) * 2.0**-24 * of_sums + 3 * 2.0**-24 * (np.abs(sums) + np.abs(wide["bias"]))
    assert np.all(np.abs(arrays["D"] - exact) <= 1.01 * (slack + 2.0**-11 * np.abs(exact) + 2.0**-24))
    assert run.mnemonics["v_wmma_f32_16x16x16_f16"] == 64 * 8 * 4 * -(-depth // 64)


def test_a_weight_that_is_not_a_number_makes_its_column_none() -> None:
    """Packed arithmetic widens 8-bit numbers, and has no bit pattern for NaN."""
    arrays = given(128, 256, 64)
    arrays["B"][3, 7], arrays["B"][60, 100] = np.nan, -0.0
    execute_listing(compiled("Default"), arrays, {"alpha": 1.0})
    assert np.isnan(arrays["D"][:, 7]).all()
    assert np.isnan(arrays["D"]).sum() == 128


def test_extents_that_are_no_whole_tiles_are_refused() -> None:
    with pytest.raises(tw.LaunchError, match="m must be a multiple of 128: the schedule has whole='mnk'"):
        execute_listing(compiled("Default"), given(*SIZES["MNKPadding"]), {"alpha": 1.0})


@pytest.mark.parametrize("name", INSTANCES)
def test_the_main_loop_passes_its_gates(name: str) -> None:
    """Half of each iteration's instructions multiply or load operands; B is read 16 bytes at once."""
    # LLVM 19 waits for the next tile before the last four products of a turn, later ones behind them.
    gates = Gates(matrix_per_load=8, loads=8, shared_store_bytes=8, waits_for_loads=1, warps=4)
    found = [read_isa(both(), INSTANCES[name].symbol), *map(read_isa, listings(compiled(name)))]
    for isa in found:
        assert broken(isa, gates) == ()
        assert isa.resources["shared_bytes"] < INSTANCES[name].lds_bytes == 49376
        assert isa.resources["registers"] <= 256
        assert isa.resources["spilled_scalar_registers"] == isa.resources["stack_bytes"] == 0
        assert isa.main.widths(IsaKind.GLOBAL_LOAD) == {16: 8}
        assert isa.main.widths(IsaKind.SHARED_STORE) == {16: 4, 8: 16}
        assert isa.main.widths(IsaKind.SHARED_LOAD) == {16: 64}
        assert isa.main.mix[IsaKind.MATRIX] == 64


def test_the_code_object_names_both_specializations(code_object: bytes) -> None:
    names = {f"DeviceGemmWmma_CShuffle_{name}_256_128_256_64_8_16_16_4_4" for name in INSTANCES}
    assert {*functions(code_object)} == names == {one.symbol for one in INSTANCES.values()}


def test_its_machine_code_is_that_of_the_listing(code_object: bytes, tmp_path: Path) -> None:
    """The bytes are equal: the assembler encodes each instruction of the listing."""
    code, distances = encoded(both(), ARCH, find_toolchain(), tmp_path)
    found = functions(code_object)
    assert {*found} <= {*code}
    for name, data in found.items():
        assert len(data) > 8000
        assert without(data, distances[name]) == code[name][: len(data)]
    changed = both().replace("v_wmma_f32_16x16x16_f16", "v_wmma_f32_16x16x16_bf16", 1)
    assert encoded(changed, ARCH, find_toolchain(), tmp_path)[0] != code


@pytest.mark.disassembler
@pytest.mark.parametrize("arch", [ARCH, "gfx90a"])
def test_a_disassembler_writes_the_listing(arch: str, tmp_path: Path) -> None:
    """This needs a disassembler as new as the compiler; for gfx90a any since LLVM 14."""
    if arch == ARCH:
        assembly, least = both(), compiler_version(find_toolchain())
    else:
        rows = tw.TensorSpec(tw.f16, 2, 1, (16, 16), (16, 1), 16, False)
        made = plain_product(0).compile(rows, rows, rows, precision="exact", target="hip", arch=arch)
        assembly, least = made.assembly, 14
    data = assemble(assembly, arch)
    found, read = disassembled(data, arch, disassembler(least), tmp_path), read_listing(assembly)
    assert {*functions(data)} <= {*found}
    for name in functions(data):
        listed = [plain(one.text) for one in read.kernel(name).instructions]
        assert len(listed) > 500
        shown = zip(found[name], listed, strict=False)
        assert [one.split()[0] if "@rel32@" in known else one for one, known in shown] == [
            known.split()[0] if "@rel32@" in known else known for known in listed
        ]
        assert {*found[name][len(listed) :]} <= {"s_code_end", "s_nop 0"}
