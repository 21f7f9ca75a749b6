"""Compilation for AMD GPUs on any machine: the listing first, resources from its metadata, errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.cli.doctor import hip_tools
from tilewright.errors import CompileError, LaunchError, ToolchainError
from tilewright.inspect.report import resources
from tilewright.runtime import amdgcn
from tilewright.runtime.backends import backend_named
from tilewright.runtime.hip import code_object, resources_of
from tilewright.targets.amd import ARCHITECTURES, GFX942, GFX1151, limits
from tilewright.targets.hip.prelude import probe_text

from .machine import toolchain


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
    with pytest.raises(LaunchError, match=r"unknown architecture 'gfx1250'.*gfx1150"):
        compiled("gfx1250")


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
echo "$@" >> '{asked}'
case "$1" in
  --version) echo "{version}" ;;
  *) {compiles} ;;
esac
"""

ZIG = next((one for one in amdgcn.find_toolchains() if one.name == "zig"), None)
TOO_OLD = (
    """echo "kernel.hip:4:3: error: too many arguments to function call, expected 2, have 3" >&2; exit 1"""
)
"""What clang 14 to 18 say of a fence that orders shared memory alone."""


def pretended(folder: Path, name: str, version: str, compiles: str = "") -> Path:
    """Write a program that claims to be a clang; it compiles like the PyPI compiler, or as it is told."""
    assert ZIG is not None
    folder.mkdir(parents=True, exist_ok=True)
    path, compiles = folder / name, compiles or f"""exec {" ".join(ZIG.compiler)} "$@" """
    path.write_text(CLANG.format(version=version, compiles=compiles, asked=folder / "asked"))
    path.chmod(0o755)
    return path


def compilations(folder: Path) -> list[str]:
    """Return what the programs in a folder were asked to compile."""
    return [line for line in (folder / "asked").read_text().splitlines() if "kernel.hip" in line]


def test_compilers_are_looked_for_in_order(tmp_path: Path) -> None:
    rocm, system = tmp_path / "rocm", tmp_path / "bin"
    pretended(rocm / "lib/llvm/bin", "amdclang++", "AMD clang version 20.0.0git (roc-7.1)")
    pretended(rocm / "lib/llvm/bin", "ld.lld", "")
    pretended(system, "clang++-19", "Debian clang version 19.1.7 (3)")
    pretended(system, "clang++-21", "Debian clang version 21.1.0")
    pretended(system, "clang++", "Apple clang version 17.0.0", "echo no AMD GPUs >&2; exit 1")
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


def test_a_compiler_that_cannot_compile_the_prelude_is_passed_over(tmp_path: Path) -> None:
    """The search finds ROCm before LLVM 19 and a distribution's compiler first, and takes the next one."""
    rocm, system = tmp_path / "rocm", tmp_path / "bin"
    pretended(rocm / "llvm/bin", "clang++", "AMD clang version 17.0.0 (roc-6.0)", TOO_OLD)
    pretended(system, "clang++-22", "", "exit 1")
    pretended(system, "clang++-20", "clang version 20.1.0", "kill -9 $$")
    pretended(system, "clang++", "Debian clang version 14.0.6", TOO_OLD)
    trials = list(amdgcn.try_toolchains(str(system), rocm))
    said = {trial.what: trial.reason for trial in trials}
    too_old = "error: too many arguments to function call, expected 2, have 3"
    assert said.pop(f"rocm 17.0.0 at {rocm}/llvm/bin/clang++") == too_old
    assert said.pop(f"clang 14.0.6 at {system}/clang++") == too_old
    assert said.pop(f"{system}/clang++-22") == "its version text does not name clang"
    assert "signal 9" in said.pop(f"clang 20.1.0 at {system}/clang++-20")
    assert list(said.values()) == [""], "the one inside the ziglang package compiles"
    assert amdgcn.choose(trials).name == "zig"
    with pytest.raises(
        ToolchainError, match=rf"clang 14\.0\.6 at {system}/clang\+\+: {too_old}.*pip install"
    ):
        amdgcn.choose(trial for trial in trials if not trial.usable)


def test_a_compiler_without_a_linker_is_used_only_if_no_other_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A distribution has lld in a separate package."""
    pretended(tmp_path / "bin", "clang++", "Debian clang version 20.1.0")
    unlinked, zig = amdgcn.try_toolchains(str(tmp_path / "bin"), tmp_path / "rocm")
    assert amdgcn.choose([unlinked, zig]).name == "zig"
    assert amdgcn.choose([unlinked]).name == "clang"
    monkeypatch.setattr(amdgcn, "rocm_folder", lambda: tmp_path / "rocm")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    first, second, *_ = map(str, hip_tools())
    assert first.endswith(": used only if no other compiles, as it has no linker ld.lld")
    assert second.endswith(", which target hip uses: needs no GPU")


def test_the_answer_of_a_compiler_is_kept_until_it_changes(tmp_path: Path) -> None:
    none, system = tmp_path / "rocm", tmp_path / "bin"
    pretended(system, "clang++-20", "clang version 20.1.0")
    old = pretended(system, "clang++", "clang version 18.1.0", TOO_OLD)
    for _ in range(2):
        assert amdgcn.find_toolchains(str(system), none)[0].version == "20.1.0"
        assert len(compilations(system)) == 2, "one probe of each, once"
    pretended(system, "clang++", "clang version 18.1.0")
    os.utime(old, ns=(1, 1))
    assert "18.1.0" in [found.version for found in amdgcn.find_toolchains(str(system), none)]
    assert len(compilations(system)) == 3, "that of the one that changed"


@pytest.mark.parametrize(
    "ends",
    ["kill -9 $$", "echo \"error: unable to open output file: 'No space left on device'\" >&2; exit 1"],
    ids=["killed", "no room"],
)
def test_what_keeps_a_compiler_from_running_is_asked_again(ends: str, tmp_path: Path) -> None:
    none, system = tmp_path / "rocm", tmp_path / "bin"
    crowded = tmp_path / "crowded"
    crowded.touch()
    pretended(
        system,
        "clang++",
        "clang version 20.1.0",
        f'[ -e {crowded} ] && {{ {ends}; }}; exec {" ".join(ZIG.compiler)} "$@"',
    )
    assert [found.name for found in amdgcn.find_toolchains(str(system), none)] == ["zig"]
    crowded.unlink()
    assert [found.name for found in amdgcn.find_toolchains(str(system), none)] == ["clang", "zig"]


def test_a_compiler_that_does_not_end_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amdgcn, "_SECONDS", 0.5)
    pretended(tmp_path / "bin", "clang++", "clang version 20.1.0", "exec sleep 60")
    first = next(iter(amdgcn.try_toolchains(str(tmp_path / "bin"), tmp_path / "rocm")))
    assert first.usable is None
    assert first.reason == "clang++ did not compile the prelude for gfx942 in 0.5 s"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_prelude_of_every_architecture_compiles(arch: str) -> None:
    """The prelude has the function of every atom; LLVM 19 knows all architectures except gfx950."""
    older = toolchain("older")
    reasons = [trial.reason for trial in amdgcn.try_toolchains(arch=arch) if trial.toolchain == ZIG]
    assert reasons == [""]
    text = probe_text(ARCHITECTURES[arch])
    if arch == "gfx950":
        with pytest.raises(CompileError, match="refused") as refused:
            amdgcn.compile_text(text, arch, toolchain=older)
        assert "invalid target ID 'gfx950'" in refused.value.log
    else:
        assert "s_barrier" in amdgcn.compile_text(text, arch, toolchain=older)


def test_without_a_compiler_the_error_says_what_to_install() -> None:
    with pytest.raises(ToolchainError, match=r"clang for AMD GPUs.*pip install 'tilewright\[native\]'"):
        amdgcn.choose(())


def test_doctor_says_which_compilers_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretended(tmp_path / "llvm/bin", "clang++", "AMD clang version 17.0.0 (roc-6.0)", TOO_OLD)
    monkeypatch.setattr(amdgcn, "rocm_folder", lambda: tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    first, second, *_ = map(str, hip_tools())
    assert first.startswith(
        f"unused   HIP compiler rocm 17.0.0 at {tmp_path}/llvm/bin/clang++: passed over: error: too"
    )
    assert second.startswith("ok       HIP compiler zig")
    assert second.endswith(", which target hip uses: needs no GPU")


def test_what_the_compiler_refuses_is_shown_with_its_line() -> None:
    with pytest.raises(CompileError, match=r"refused broken for gfx942") as caught:
        amdgcn.compile_text("int fine;\nint wrong = nothing;\n", "gfx942", "broken")
    assert "2 | int wrong = nothing;" in str(caught.value)
    assert "nothing" in caught.value.log
