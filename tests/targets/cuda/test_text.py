"""Every operation has a rule, and every text compiles for every architecture and has the expected lines."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from tilewright.ir import verify
from tilewright.ir.async_ops import ASYNC_OPS
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import KINDS, OPS
from tilewright.ir.parser import parse_kernel
from tilewright.ir.printer import print_kernel
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda, reference
from tilewright.targets.statements import COLUMNS

pytestmark = pytest.mark.in_turns(3)

GOLDEN = (
    "basic_gemm_f16",
    "padded_gemm_f32",
    "gemm_i8",
    "gemm_tf32",
    "pipelined_gemm_f16",
    "pipelined_gemm_f16_nn",
    "dependent",
    "rows",
)
Cases = dict[str, Callable[[], Kernel]]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind[0].name} {kind[1]}".strip())
def test_every_operation_has_a_rule(kind: tuple[type, str]) -> None:
    assert cuda.CUDA_RULES.find(*kind) is not None


def test_every_operation_occurs_in_a_case(cases: Cases) -> None:
    used = {
        type(op)
        for trace in cases.values()
        for op in cuda.lower(trace(), cuda.architecture("sm_90a"))[0].walk()
    }
    assert set(OPS) - set(ASYNC_OPS) - used == set()


@pytest.mark.in_turns(5)
def test_text_compiles_without_spills(case: str, kernel: Kernel, archs: Callable[[str], list[str]]) -> None:
    for arch in archs(case):
        assert cuda.violations(kernel, arch) == []
        binary = compile_text(cuda.emit(kernel, arch).text, arch, case)
        assert binary.resources["stack_bytes"] == 0, "a register array is indexed at run time"
        assert binary.resources["spill_store_bytes"] == 0
        assert "warning" not in binary.log


def test_text_is_self_contained_and_keeps_its_margin(kernel: Kernel) -> None:
    text = cuda.emit(kernel, "sm_90a").text
    assert "#include" not in text
    assert not re.search(r"/\w+/", re.sub(r'".*?"', "", text)), "a path of this machine"
    assert max(len(line) for line in text.splitlines()) <= COLUMNS + 20
    assert len(text.splitlines()) < 300


def test_lowered_kernels_print_parse_and_verify(kernel: Kernel) -> None:
    lowered = cuda.emit(kernel, "sm_90a").kernel
    text = print_kernel(lowered)
    assert print_kernel(parse_kernel(text)) == text
    assert [str(violation) for violation in verify.violations(lowered)] == []
    assert cuda.lower(lowered, cuda.architecture("sm_90a"))[0].params == lowered.params


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str, cases: Cases, golden: Callable[[str, str], None]) -> None:
    listing = cuda.emit(cases[name](), "sm_90a")
    notes = "".join(f"// {note}\n" for note in listing.notes)
    golden(notes + listing.text, f"{name}.cu")


def test_the_basic_gemm_uses_the_machine(cases: Cases) -> None:
    listing = cuda.emit(cases["basic_gemm_f16"](), "sm_90a")
    body = listing.text[listing.text.index('extern "C"') :]
    assert "ldmatrix.sync.aligned.m8n8.x4.shared.b16" in listing.text
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in listing.text
    assert body.count("*(const uint4*)(from") == 2, "16-byte loads of A and B"
    assert body.count("*(uint4*)(to") == 2, "16-byte stores to shared memory"
    assert "load_if" not in body, "whole tiles need no predicate"
    assert listing.shared_bytes == (256 + 128) * 32 * 2
    assert listing.notes == (
        "sA re-laid out: swizzle<2, 3, 3>",
        "sB re-laid out: swizzle<2, 3, 3>",
    )


@pytest.mark.parametrize("name", ["ragged_gemm_f16", "padded_gemm_f32", "pipelined_gemm_f16_nn", "gemm_i8"])
def test_lowering_keeps_the_meaning(name: str, cases: Cases) -> None:
    kernel = cases[name]()
    lowered, _ = cuda.lower(kernel, cuda.architecture("sm_90a"))
    rng = np.random.default_rng(0)
    extents = {"M": 64, "N": 64, "K": 128}
    arrays = {}
    for value in kernel.tensors:
        shape = [extents[extent.name] for extent in value.tensor.shape]
        unit_first = value.tensor.view.at((1, 0)) == 1
        numbers = rng.integers(-4, 5, shape).astype(value.dtype.numpy)
        arrays[value.name] = np.asfortranarray(numbers) if unit_first else numbers
    expected = {name: array.copy("K") for name, array in arrays.items()}
    report = reference.run(lowered, arrays)
    reference.run(kernel, expected, check=False)
    assert [str(finding) for finding in report.findings] == []
    np.testing.assert_array_equal(arrays["C"].astype(float), expected["C"].astype(float))


def test_names_of_the_language_are_altered(cases: Cases) -> None:
    text = print_kernel(cases["basic_gemm_f16"]())
    renamed = re.sub(r"\bacc\b", "float", re.sub(r"\bsA\b", "tid", re.sub(r"\bk\b", "load_if", text)))
    listing = cuda.emit(parse_kernel(renamed.replace("'basic_gemm'", "'double'")), "sm_90a")
    assert listing.entry == "double_1"
    for line in ("half_t* const tid_1 =", "float float_1[128]", "for (int load_if_1 = 0;"):
        assert line in listing.text
    assert compile_text(listing.text, "sm_90a").resources["spill_store_bytes"] == 0


def test_strides_of_64_bits_make_offsets_of_64_bits(cases: Cases) -> None:
    text = cuda.emit(cases["pipelined_gemm_f16_tt"](), "sm_90a").text
    assert "long long A_stride1" in text
    assert "A_stride1*" in text or "*A_stride1" in text


@pytest.mark.parametrize("form", ["", "_trans"])
@pytest.mark.parametrize("pair", ["f32_f16", "f32_bf16", "f16_f16"])
def test_fragments_are_stored_as_matrices_or_packed(pair: str, form: str, cases: Cases) -> None:
    kernel = cases[f"matrices_{pair}{form}"]()
    hopper, ampere = (cuda.emit(kernel, arch).text for arch in ("sm_90a", "sm_80"))
    assert f"stmatrix.sync.aligned.m8n8.x4{form.replace('_', '.')}.shared.b16" in hopper
    assert "stmatrix" not in ampere
    if not form:
        assert "*(unsigned*)(to" in ampere, "two 16-bit elements in one store of 32 bits"
