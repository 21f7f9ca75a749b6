"""CUDA text becomes machine code without a GPU; errors name the line."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import tilewright as tw
from tilewright.errors import CompileError, ToolchainError
from tilewright.runtime import nvrtc

DOUBLE = """
extern "C" __global__ void twice(float* x) {
  x[threadIdx.x] = 2.0f * x[threadIdx.x];
}
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a"])
def test_text_becomes_an_elf_image(arch: str) -> None:
    binary = nvrtc.compile_text(DOUBLE, arch, "twice")
    assert binary.cubin.startswith(b"\x7fELF")
    assert b"twice" in binary.cubin
    assert binary.resources["registers"] > 0
    assert {
        name: binary.resources[name] for name in ("stack_bytes", "spill_store_bytes", "spill_load_bytes")
    } == {
        "stack_bytes": 0,
        "spill_store_bytes": 0,
        "spill_load_bytes": 0,
    }


def test_a_register_array_indexed_at_run_time_is_seen() -> None:
    text = DOUBLE.replace(
        "x[threadIdx.x] = 2.0f * x[threadIdx.x];",
        """
  float kept[512];
  for (int i = 0; i < 512; ++i) kept[i * (int)x[7] % 512] = x[i];
  x[0] = kept[(int)x[threadIdx.x] % 512];""",
    )
    assert nvrtc.compile_text(text, "sm_80").resources["stack_bytes"] >= 2048


def test_errors_show_the_line() -> None:
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_text(DOUBLE.replace("2.0f", "two"), "sm_80", "twice")
    assert "NVRTC refused twice for sm_80" in str(caught.value)
    assert 'identifier "two" is undefined' in caught.value.log
    assert "x[threadIdx.x] = two * x[threadIdx.x];" in str(caught.value)
    assert "two" in caught.value.source


def test_an_unknown_architecture_is_an_error() -> None:
    with pytest.raises(CompileError, match="sm_1"):
        nvrtc.compile_text(DOUBLE, "sm_1")


def test_no_operation_is_contracted() -> None:
    text = DOUBLE.replace("2.0f * x[threadIdx.x]", "x[1] * x[2] + x[3]")
    fused = text.replace("x[1] * x[2] + x[3]", "fmaf(x[1], x[2], x[3])")
    assert nvrtc.compile_text(text, "sm_80").cubin != nvrtc.compile_text(fused, "sm_80").cubin


def test_the_same_text_gives_the_same_bytes() -> None:
    assert nvrtc.compile_text(DOUBLE, "sm_90a").cubin == nvrtc.compile_text(DOUBLE, "sm_90a").cubin


def test_the_toolchain_names_version_options_and_what_is_kept() -> None:
    major, minor = nvrtc.version()
    options = "--std=c++17 --fmad=false --ptxas-options=-v --no-cache"
    kept = "C7508 C7510 C7511 C7517 registers stack_bytes spill_store_bytes spill_load_bytes"
    assert nvrtc.toolchain_id().startswith(f"nvrtc {major}.{minor} {options} {kept}")


def test_texts_that_old_versions_translate_wrongly_get_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of f64 by tensor cores; `DOUBLE` has none."""
    asked = list[list[str]]()
    compile_program = nvrtc._nvrtc().nvrtcCompileProgram

    class Recording:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def nvrtcCompileProgram(self, program: Any, count: int, options: list[bytes]) -> Any:  # noqa: N802
            asked.append([option.decode() for option in options])
            return compile_program(program, count, options)

    real = nvrtc._nvrtc()
    monkeypatch.setattr(nvrtc, "_nvrtc", Recording)
    schedule = tw.Schedule(tw.atoms.MMA_F64_M16K4, (32, 32, 16), warps=(2, 2))
    product = gemm(schedule)
    assert "mma" in product
    for version, helped in (((13, 0), True), ((13, 1), False)):
        monkeypatch.setattr(nvrtc, "version", lambda version=version: version)
        assert ("f64.f64.f64.f64: --ptxas-options=-O2" in nvrtc.toolchain_id()) is helped
        for text, is_product in ((product, True), (DOUBLE, False)):
            nvrtc.compile_text(text, "sm_90a")
            assert ("--ptxas-options=-O2" in asked.pop()) is (helped and is_product)


def gemm(schedule: tw.Schedule) -> str:
    """The text of a product of f64."""

    @tw.kernel(A="M K", B="K N", C="M N")
    def product(A: Any, B: Any, C: Any) -> None:
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[k, n]
            C[m, n] = acc

    arrays = [tw.like("f64", *shape) for shape in ((64, 48), (48, 80), (64, 80))]
    return (
        product.bind(schedule=schedule).as_text(*arrays, target="cuda", arch="sm_90a", name="product").source
    )


def test_multiplications_that_wait_are_told_and_not_refused() -> None:
    log = "(C7520) Potential Performance Loss: wgmma.mma_async instructions are serialized due to"
    assert nvrtc._resources(log) == {"serialized_wgmma": 1}
    assert nvrtc._resources("Used 7 registers") == {"registers": 7}


def test_fatal_warnings_fail_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "FATAL", ("Compiling entry",))
    with pytest.raises(CompileError, match="warned of Compiling entry in twice for sm_80"):
        nvrtc.compile_text(DOUBLE, "sm_80", "twice")


def test_without_the_package_the_error_says_what_to_install() -> None:
    program = """
import sys
sys.modules["cuda"] = None
from tilewright.errors import ToolchainError
from tilewright.runtime import nvrtc
try:
    nvrtc.compile_text("", "sm_80")
except ToolchainError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'tilewright[cuda]'" in result.stdout
    assert issubclass(ToolchainError, Exception)


def test_a_silent_compilation_leaves_shared_objects_alone() -> None:
    before = [bytes([value]) for value in range(256)]
    text = 'extern "C" __global__ void silent() {}'
    for _ in range(2):
        nvrtc.compile_text(text, "sm_90a")
    with pytest.raises(CompileError):
        nvrtc.compile_text("not C", "sm_90a")
    assert [bytes([value])[0] for value in range(256)] == list(range(256))
    assert b"".join(before) == bytes(range(256))
