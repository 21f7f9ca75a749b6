"""Exported kernels for GPUs: the calls that the launch code makes to a driver that records them."""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cuda.bindings import driver
from tests.shipping.test_folder import KERNELS, compiler

import tilewright as tw
from tilewright.inspect.from_files import kernels_in, load
from tilewright.runtime.binding import bind
from tilewright.runtime.executable import argument_layout
from tilewright.runtime.frameworks import ArrayInfo
from tilewright.shipping.folder import Export, export
from tilewright.shipping.launch_text import MAP_TYPES, Exported

ARCHS = ("sm_90a", "sm_80", "gfx942")
GEMM: Any = kernels_in(load(KERNELS))["gemm"]
LINEAR: Any = kernels_in(load(KERNELS))["linear"]
PROGRAM = KERNELS.with_name("gemm_cuda.cpp")
FAKE = Path(__file__).with_name("fake_driver.cpp")
SPLIT = {
    "sm_80": tw.Schedule(
        tw.atoms.fma("f16", each=(4, 4)), (64, 64, 16), warps=(2, 2), split_k=4, reduction="turnstile"
    ),
    "gfx90a": tw.Schedule(
        tw.atoms.fma("f16", lanes=(8, 8), each=(4, 4)),
        (64, 64, 16),
        warps=(2, 2),
        split_k=4,
        reduction="turnstile",
    ),
}


def aligned(kind: str, m: int, n: int, k: int) -> list[Any]:
    return [tw.like(kind, m, k), tw.like(kind, k, n), tw.like(kind, m, n)]


class Made(NamedTuple):
    """An exported GEMM: aligned arrays, then ragged ones."""

    folder: Path
    manifest: dict[str, Any]
    rows: dict[str, dict[tuple[str, int], Exported]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder, problems = (
        tmp_path_factory.mktemp("gemm"),
        (aligned("bf16", 2048, 2048, 1024), aligned("bf16", 33, 77, 55)),
    )
    manifest = export(GEMM.bind(), problems, ARCHS, folder)
    of = Export("gemm", GEMM.bind(), problems, ARCHS)
    rows = {
        target: {(row.exported.executable.arch, row.number): row.exported for row in rows}
        for target, rows in of.rows.items()
    }
    return Made(folder, manifest, rows)


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return a fake driver with the function names that the launch code looks up."""
    folder, found = tmp_path_factory.mktemp("fake"), []
    for name in ("libcuda.so.1", "libamdhip64.so.7"):
        file = folder / name
        words = [
            *compiler(),
            "-std=c++17",
            "-shared",
            "-fPIC",
            f"-Wl,-soname,{name}",
            str(FAKE),
            "-o",
            str(file),
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(str(file))
    return found


def called(
    made: Made, fakes: list[str], function: str, given: dict[str, Any], **environment: Any
) -> list[str]:
    """Return the lines that the driver and the caller write."""
    words = json.dumps({"numbers": [], "status": "_".join(function.split("_")[:2]), **given})
    script = Path(__file__).with_name("call_exported.py")
    command = [sys.executable, str(script), str(made.folder / "libgemm.so"), function, words, *fakes]
    variables = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def lines(said: list[str], first: str) -> list[str]:
    return [line.removeprefix(first).strip() for line in said if line.split(" ")[0] == first]


def infos_for(extents: tuple[int, int, int], gap: int) -> dict[str, ArrayInfo]:
    m, n, k = extents
    found = {}
    for at, (name, shape) in enumerate({"A": (m, k), "B": (k, n), "C": (m, n)}.items()):
        found[name] = ArrayInfo((at + 1) << 40, shape, (shape[1] + gap, 1), tw.bf16, ("cuda", 0), False, None)
    return found


def given_as(infos: dict[str, ArrayInfo]) -> dict[str, Any]:
    return {"arrays": [[info.pointer, info.shape, info.strides] for info in infos.values()]}


def expected_buffer(
    one: Exported, infos: dict[str, ArrayInfo]
) -> tuple[bytes, tuple[int, ...], tuple[int, ...]]:
    """Return the library's own argument buffer up to tensor maps; offsets; the grid."""
    binding, layout = bind(one.kernel, infos, {}), argument_layout(one.kernel, one.parameters)
    buffer = ctypes.create_string_buffer(layout.size)
    layout.address_writer(buffer, 3)(*(info.pointer for info in infos.values()))
    assert layout.write_sizes(buffer, binding) == []
    end = layout.maps[0][1] if layout.maps else layout.size
    offsets = (*layout.offsets, *(offset for _, offset in layout.maps))
    return buffer.raw[:end], offsets, (*binding.grid, 1, 1)[:3]


CASES = [
    ("cuda", "sm_90a", 0, (2048, 2048, 1024), 0, {}),
    ("cuda", "sm_90a", 0, (1000, 520, 72), 8, {}),
    ("cuda", "sm_90a", 1, (999, 521, 71), 3, {}),
    ("cuda", "sm_80", 0, (136, 64, 8), 0, {"MAJOR": 8, "MINOR": 6}),
    ("cuda", "sm_80", 1, (5, 3, 1), 1, {"MAJOR": 8, "MINOR": 9}),
    ("hip", "gfx942", 0, (264, 128, 40), 0, {}),
    ("hip", "gfx942", 1, (77, 33, 129), 2, {}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]}-{case[3][0]}")
def test_a_launch_asks_the_driver_for_what_the_library_asks(made: Made, fakes: list[str], case: Any) -> None:
    target, arch, number, extents, gap, machine = case
    one, infos = made.rows[target][arch, number], infos_for(extents, gap)
    buffer, offsets, grid = expected_buffer(one, infos)
    sizes = {"BUFFER": len(buffer), "ARGUMENTS": len(offsets)}
    said = called(made, fakes, f"gemm_{target}", given_as(infos), **sizes, **machine)
    assert lines(said, "asked") == ["0 0 0"]
    assert [line.split()[:2] for line in lines(said, "done")] == [["0", "0"]], said
    assert lines(said, "entry") == [one.executable.listing.entry]
    image = (made.folder / f"{one.symbol}{'.cubin' if target == 'cuda' else '.hsaco'}").read_bytes()
    assert lines(said, "image") == [image[:64].hex()]
    layout, found = argument_layout(one.kernel, one.parameters), bytes.fromhex(lines(said, "buffer")[0])
    for code, offset in zip(layout.codes, layout.offsets, strict=True):  # bytes between them mean nothing
        size = struct.calcsize(code)
        assert found[offset : offset + size] == buffer[offset : offset + size]
    assert lines(said, "offsets")[0].split() == [str(offset - offsets[0]) for offset in offsets]
    shared = one.executable.listing.shared_bytes if target == "cuda" else 0
    shape = " ".join(map(str, (*grid, one.kernel.threads, 1, 1, shared)))
    assert lines(said, "launch") == [f"{shape} stream 77 kernel 8192"]
    assert lines(said, "cuKernelSetAttribute") == ([f"8 {shared} 0"] if shared > 49152 else [])
    maps = [map_line(one, tensor_map, infos[tensor_map.tensor]) for tensor_map in one.kernel.tensor_maps]
    assert lines(said, "map") == maps
    assert (len(maps) == 3) == (arch == "sm_90a" and number == 0)


def map_line(one: Exported, tensor_map: Any, info: ArrayInfo) -> str:
    """Return the line of an encoded map, dimensions from the innermost."""
    inwards = tensor_map.order[::-1]
    kind = driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
    words = [f"e{info.shape[dim]} b{tensor_map.box[dim]} s{tensor_map.steps[dim]}" for dim in inwards]
    words += [f"t{2 * info.strides[dim]}" for dim in inwards[1:]]
    swizzle = driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B if tensor_map.is_swizzled else 0
    promotion = driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B
    return f"{int(kind)} 2 {info.pointer} {' '.join(words)} 0 {int(swizzle)} {int(promotion)} 0"


def test_numbers_of_the_drivers_constants() -> None:
    """The launch code has the numbers of NVIDIA's header."""
    kinds = {"f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32", "f64": "FLOAT64", "i32": "INT32"}
    for name, called_there in kinds.items():
        kind = getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{called_there}")
        assert int(kind) == MAP_TYPES[name]
    assert int(driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8) == 0
    text = (Path(tw.__file__).parent / "shipping" / "text" / "cuda.cpp").read_text()
    dynamic = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    wanted = {
        "CUDA_CAPABILITY_MAJOR": driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        "CUDA_CAPABILITY_MINOR": driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        "CUDA_MULTIPROCESSORS": driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        "CUDA_MAX_DYNAMIC_SHARED": dynamic,
        "CUDA_COOPERATIVE": driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
        "CUDA_CLUSTER": driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        "CUDA_PROGRAMMATIC": driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
    }
    for name, value in wanted.items():
        found = re.search(rf"\b{name} = (\d+)", text)
        assert found is not None
        assert int(found[1]) == int(value), name


def test_an_empty_sum_reads_zeros_of_the_workspace(made: Made, fakes: list[str]) -> None:
    infos = infos_for((256, 128, 0), 0)
    infos["A"] = ArrayInfo(1 << 40, (256, 0), (8, 1), tw.bf16, ("cuda", 0), False, None)
    said = called(made, fakes, "gemm_cuda", given_as(infos))
    assert lines(said, "asked") == ["0 0 256"]
    error, _, start = lines(said, "done")[0].split()
    assert error == "0"
    assert lines(said, "fill") == ["128 0 0"]
    places = [line.split()[2] for line in lines(said, "map")]
    assert places[:2] == [start, start], "the maps of A and B"
    assert lines(said, "workspace")[0].startswith("00" * 128 + "11")


def test_a_kernel_is_loaded_once(made: Made, fakes: list[str]) -> None:
    said = called(made, fakes, "gemm_cuda", {**given_as(infos_for((512, 512, 64), 0)), "times": 3})
    assert len(lines(said, "launch")) == 3
    assert len(lines(said, "image")) == len(lines(said, "cuKernelSetAttribute")) == 1


@pytest.mark.parametrize(
    ("target", "machine", "wanted"),
    [
        ("cuda", {"MAJOR": 10}, "8 0"),
        ("cuda", {"MAJOR": 7, "MINOR": 5}, "8 0"),
        ("hip", {"GFX": "gfx90a:sramecc+"}, "8 0"),
        ("hip", {"GFX": "gfx9421"}, "8 0"),
    ],
)
def test_other_machines_are_refused(
    made: Made, fakes: list[str], target: str, machine: Any, wanted: str
) -> None:
    said = called(made, fakes, f"gemm_{target}", given_as(infos_for((512, 512, 64), 0)), **machine)
    assert lines(said, "asked")[0].startswith(wanted)
    assert lines(said, "launch") == lines(said, "image") == []


@pytest.mark.parametrize("target", ["cuda", "hip"])
def test_without_a_driver_nothing_is_launched(made: Made, target: str) -> None:
    said = called(made, [], f"gemm_{target}", given_as(infos_for((512, 512, 64), 0)))
    assert lines(said, "asked")[0].startswith("9 0")
    assert lines(said, "done")[0].startswith("9 0")


def test_what_the_driver_refuses_is_told(made: Made, fakes: list[str]) -> None:
    for function in ("cuLaunchKernelEx", "encode", "cuLibraryLoadData", "cuCtxGetDevice"):
        said = called(made, fakes, "gemm_cuda", given_as(infos_for((512, 512, 64), 0)), REFUSED=function)
        assert lines(said, "done")[0].startswith("9 0"), function
        assert lines(said, "status") == ["719"]


def test_wrong_arrays_are_refused_before_the_driver_loads_anything(made: Made, fakes: list[str]) -> None:
    infos = infos_for((512, 512, 64), 0)
    wrong = {
        "2 2": {"B": ArrayInfo(2 << 40, (65, 512), (512, 1), tw.bf16, ("cuda", 0), False, None)},
        "3 1": {"A": ArrayInfo(1 << 40, (512, 64), (1, 512), tw.bf16, ("cuda", 0), False, None)},
        "4 3": {"C": ArrayInfo((3 << 40) + 1, (512, 512), (512, 1), tw.bf16, ("cuda", 0), False, None)},
        "5 3": {"C": ArrayInfo((2 << 40) + 64, (512, 512), (512, 1), tw.bf16, ("cuda", 0), False, None)},
    }
    for target in ("cuda", "hip"):
        for error, other in wrong.items():
            said = called(made, fakes, f"gemm_{target}", given_as({**infos, **other}))
            assert lines(said, "asked")[0].startswith(error), (target, other)
            assert lines(said, "launch") == lines(said, "image") == []


@pytest.mark.parametrize(
    ("arch", "target", "machine"), [("sm_80", "cuda", {"MAJOR": 8}), ("gfx90a", "hip", {"GFX": "gfx90a"})]
)
def test_partial_sums_and_counters(
    arch: str, target: str, machine: dict[str, Any], tmp_path: Path, fakes: list[str]
) -> None:
    """The caller's workspace holds partial sums, and counters that are cleared before each launch."""
    arrays = aligned("f16", 128, 128, 512)
    manifest = export(GEMM.bind(schedule=SPLIT[arch]), [arrays], [arch], tmp_path)
    assert manifest["kernels"][0]["workspace_bytes"] > 0
    infos = {
        name: ArrayInfo((at + 1) << 40, one.shape, one.strides, tw.f16, ("cuda", 0), False, None)
        for at, (name, one) in enumerate(zip("ABC", arrays, strict=True))
    }
    case = Made(tmp_path, manifest, {})
    said = called(case, fakes, f"gemm_{target}", given_as(infos), RESIDENT=64, **machine)
    assert lines(said, "done")[0].startswith("0 0"), said
    cleared = sum(int(line.split()[0]) for line in lines(said, "fill"))
    assert cleared > 0
    assert "00" * cleared in lines(said, "workspace")[0]
    short = called(case, fakes, f"gemm_{target}", {**given_as(infos), "more": -1}, RESIDENT=64, **machine)
    assert lines(short, "done")[0].startswith("7 0")
    assert lines(short, "launch") == lines(short, "fill") == []


def test_the_program_for_cuda_is_built(made: Made, tmp_path: Path) -> None:
    """It needs no header of NVIDIA's; without a GPU it says so. A GPU test runs it."""
    words = [*compiler(), "-std=c++17", "-Wall", f"-I{made.folder}", str(PROGRAM), "-x", "none"]
    words += [str(made.folder / "libgemm.a"), "-lpthread", "-ldl", "-o", str(tmp_path / "program")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    ran = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (3, "no CUDA driver on this machine\n") or ran.returncode == 0
