"""Compiling for AMD GPUs on any machine: the listing first, resources of its metadata, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import CompileError, LaunchError, ToolchainError
from tilewright.inspect.report import resources
from tilewright.runtime import amdgcn
from tilewright.runtime.amdgcn_resources import resources_of
from tilewright.runtime.backends import backend_named
from tilewright.runtime.hip import code_object
from tilewright.targets.hip.arch import ARCHITECTURES, GFX942, GFX1151
from tilewright.targets.simt.occupancy import limits


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


@tw.kernel(X="N", Y="N")
def scaled(X, Y, *, tile):
    n = tw.block_index(tw.ceil_div(X.shape[0], tile))
    x = tw.load(X.tile((tile,), (n,)).partition((64,)))
    tw.copy(2 * x, Y.tile((tile,), (n,)))


def compiled(arch: str, **constants: Any) -> Any:
    vector = tw.like("f32", 1024)
    return scaled.compile(vector, vector, target="hip", arch=arch, **{"tile": 256, **constants})


@pytest.mark.parametrize("arch", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_a_kernel_compiles_for_every_architecture(arch: tw.ir.Arch) -> None:
    made = compiled(arch.name)
    assert (made.target, made.arch) == ("hip", arch.name)
    assert f'.amdgcn_target "amdgcn-amd-amdhsa--{arch.name}"' in made.assembly
    assert ".amdhsa_code_object_version 5" in made.assembly
    assert made.path is not None
    assert made.path.suffix == ".s"
    assert made.path.read_text() == made.assembly
    assert "#include" not in made.source
    assert made.resources["stack_bytes"] == made.resources["spilled_registers"] == 0
    assert 0 < made.resources["registers"] <= arch.thread_registers
    assert made.resources["warps_per_simd"] == arch.simd_warps
    _, again = (backend_named("hip").compile(made.kernel, arch.name) for _ in range(2))
    assert again.cached
    assert again.resources == made.resources


def test_inspect_says_what_the_metadata_says() -> None:
    said = resources(compiled("gfx942"))
    assert "hip gfx942" in said
    assert "warps per simd " in said
    assert "listing bytes" in said
    assert "predicted for each copy\n" in said, "nothing reads counters here"


def test_the_code_object_is_made_of_the_listing() -> None:
    made = compiled("gfx1151")
    data = code_object(made)
    assert data.startswith(b"\x7fELF")
    assert b"scaled.kd" in data
    assert code_object(made) == data


def test_the_default_architecture_needs_no_device() -> None:
    assert compiled("").arch == "gfx942"


def test_launching_says_what_is_missing() -> None:
    x = np.zeros(256, np.float32)
    with pytest.raises(LaunchError, match=r"kernel scaled: .*libamdhip64.*kernel\.compile\(.*no device"):
        scaled(x, x.copy(), tile=256, target="hip")
    with pytest.raises(LaunchError, match=r"unknown target 'amd'.*hip"):
        scaled(x, x.copy(), tile=256, target="amd")
    with pytest.raises(LaunchError, match=r"unknown architecture 'gfx1150'.*gfx1151"):
        compiled("gfx1150")


METADATA = """
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .offset:         0
        .size:           8
        .value_kind:     by_value
    .group_segment_fixed_size: 20480
    .max_flat_workgroup_size: 256
    .name:           one
    .private_segment_fixed_size: 16
    .sgpr_count:     24
    .sgpr_spill_count: 2
    .vgpr_count:     120
    .vgpr_spill_count: 3
amdhsa.target:   amdgcn-amd-amdhsa--gfx942
...
	.end_amdgpu_metadata
"""


def test_resources_are_read_from_metadata() -> None:
    assert resources_of(METADATA, GFX942) == {
        "registers": 120,
        "accumulation_registers": 0,
        "scalar_registers": 24,
        "spilled_registers": 3,
        "spilled_scalar_registers": 2,
        "stack_bytes": 16,
        "shared_bytes": 20480,
        "warps_per_simd": 3,
    }
    for wrong in ("s_endpgm", METADATA.replace(".vgpr_count", ".others")):
        with pytest.raises(ToolchainError, match="no metadata of one kernel"):
            resources_of(wrong, GFX942)


@pytest.mark.parametrize(
    ("arch", "taken", "expected"),
    [
        (GFX942, (120, 20480, 256), {"warps": 8, "registers": 4, "shared_bytes": 3}),
        (GFX942, (128, 16384, 512), {"warps": 8, "registers": 4, "shared_bytes": 8}),
        (GFX942, (129, 0, 64), {"warps": 8, "registers": 3, "shared_bytes": 8}),
        (GFX1151, (139, 20480, 256), {"warps": 16, "registers": 10, "shared_bytes": 12}),
        (GFX1151, (24, 65536, 64), {"warps": 16, "registers": 64, "shared_bytes": 1}),
    ],
)
def test_what_limits_the_warps_of_a_simd(arch: Any, taken: Any, expected: Any) -> None:
    assert limits(arch, *taken) == expected


# ---------------------------------------------------------------- toolchains

CLANG = """#!/bin/sh
case "$1" in
  --version) echo "{version}" ;;
  --print-targets) echo "  Registered Targets:"; echo "    {backend} - of GPUs" ;;
esac
"""


def pretended(folder: Path, name: str, version: str, backend: str = "amdgcn") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(CLANG.format(version=version, backend=backend))
    path.chmod(0o755)
    return path


def test_compilers_are_looked_for_in_order(tmp_path: Path) -> None:
    rocm, system = tmp_path / "rocm", tmp_path / "bin"
    pretended(rocm / "lib/llvm/bin", "amdclang++", "AMD clang version 20.0.0git (roc-7.1)")
    pretended(rocm / "lib/llvm/bin", "ld.lld", "")
    pretended(system, "clang++-19", "Debian clang version 19.1.7 (3)")
    pretended(system, "clang++-21", "Debian clang version 21.1.0")
    pretended(system, "clang++", "Apple clang version 17.0.0", backend="aarch64")
    pretended(system, "ld.lld-21", "")
    rocm_s, newer, older, *rest = amdgcn.find_toolchains(str(system), rocm)
    assert (rocm_s.name, rocm_s.version) == ("rocm", "20.0.0git")
    assert rocm_s.linker == (str(rocm / "lib/llvm/bin/ld.lld"),)
    assert (newer.version, older.version) == ("21.1.0", "19.1.7")
    assert newer.linker == (str(system / "ld.lld-21"),)
    assert older.linker == ()
    assert [one.name for one in rest] == ["zig"]
    assert all("contract=off" in one.identity and "version=5" in one.identity for one in (rocm_s, older))
    with pytest.raises(ToolchainError, match=r"no linker ld\.lld"):
        amdgcn.assemble("", "gfx942", toolchain=older)


def test_without_a_compiler_the_error_says_what_to_install() -> None:
    with pytest.raises(ToolchainError, match=r"clang for AMD GPUs.*pip install 'tilewright\[native\]'"):
        amdgcn.choose(())


def test_what_the_compiler_refuses_is_shown_with_its_line() -> None:
    with pytest.raises(CompileError, match=r"refused broken for gfx942") as caught:
        amdgcn.compile_text("int fine;\nint wrong = nothing;\n", "gfx942", "broken")
    assert "2 | int wrong = nothing;" in str(caught.value)
    assert "nothing" in caught.value.log
