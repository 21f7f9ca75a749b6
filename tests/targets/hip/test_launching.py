"""Launches on AMD GPUs end to end, against a stand-in of ROCm's runtime that executes listings in NumPy."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.targets import signals

import tilewright as tw
from tilewright.errors import LaunchError, ToolchainError
from tilewright.ops.products import plain
from tilewright.runtime import comgr, dlpack
from tilewright.runtime.arrays import current_stream, describe
from tilewright.runtime.backends import backend_named
from tilewright.runtime.driver import Started
from tilewright.runtime.gpu_launch import FixedLaunch
from tilewright.runtime.gpu_memory import DeviceArray, device_put, scratch, uploads
from tilewright.runtime.hip import code_object
from tilewright.runtime.hip_driver import HIP_DRIVER
from tilewright.targets.target import AMD_GPU
from tilewright.tune.clocks import clock_for
from tilewright.tune.trial import PlannedTrial

from .standin import FAILED, NO_DEVICE, OUT_OF_MEMORY, StandIn, library_bytes, standing_in

pytestmark = pytest.mark.in_turns(3)

ARCH = "gfx1151"
N = 300


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """One AMD GPU that no cache knows yet."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    with standing_in(tmp_path / "rocm", monkeypatch, StandIn(f"{ARCH}:xnack-")) as made:
        yield made


def author() -> Any:
    """Return a kernel that only this test compiles and launches."""

    @tw.kernel(X="N", Y="N", s=tw.f32)
    def scaled(X, Y, s):
        n = tw.block_index(tw.ceil_div(X.shape[0], 64))
        x = tw.load(X.tile((64,), (n,)).partition((64,)))
        tw.copy(s * x, Y.tile((64,), (n,)))

    return scaled


def vectors() -> tuple[DeviceArray, DeviceArray]:
    x = np.random.default_rng(7).standard_normal(N).astype(np.float32)
    return device_put(x, "hip"), device_put(np.full(N, np.nan, np.float32), "hip")


def test_a_kernel_runs_on_the_device_where_its_arrays_lie(gpu: StandIn) -> None:
    x, y = vectors()
    scaled = author()
    made = scaled(x, y, 2)
    assert (made.target, made.arch) == ("hip", ARCH)
    assert np.array_equal(y.host(), 2 * x.host())
    scaled(x, y, -0.5, stream=0xF00)
    assert np.array_equal(y.host(), -0.5 * x.host())
    first, second = gpu.of("hipModuleLaunchKernel")
    assert first[1:8] == (-(-N // 64), 1, 1, 64, 1, 1, 0)
    assert (first[8], second[8]) == (0, 0xF00)
    assert first[9] == second[9], "the same buffer of arguments, in which a number has changed"
    assert len(gpu.of("hipModuleLoadData")) == 1


def test_a_prepared_launch_starts_the_kernel_and_nothing_else(gpu: StandIn) -> None:
    x, y = vectors()
    prepared = author().bind().prepare(x, y, 3.0)
    asked = len(gpu.calls)
    prepared()
    prepared(stream=0xAB0)
    names = [name for name, _ in gpu.calls[asked:] if name != "hipStreamIsCapturing"]
    assert names == ["hipModuleLaunchKernel"] * 2
    assert [given[8] for given in gpu.of("hipModuleLaunchKernel")] == [0, 0xAB0]
    assert np.array_equal(y.host(), np.float32(3) * x.host())


def test_products_of_ragged_sizes_are_right_and_compiled_for_the_device(gpu: StandIn) -> None:
    trial = PlannedTrial(tw.testing.operands("random", tw.f16, (70, 50, 41)), "hip")
    made, _ = trial.run()
    assert made.arch == ARCH
    assert trial.verify().ok
    assert "v_wmma" in made.assembly
    assert gpu.executed == 1
    a, b = (device_put(one, "hip") for one in (trial.operands.a, trial.operands.b))
    product = tw.matmul(a, b)
    assert product.memory.address in gpu.memory, "the result lies where its operands do"
    assert np.array_equal(product.host(), trial.result())


def test_parts_of_k_have_a_workspace_for_each_stream(gpu: StandIn) -> None:
    """Sums of parts meet in a workspace that is cleared once; all blocks are resident."""
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((40, 96)).astype(np.float16), rng.standard_normal((96, 40)).astype(np.float16)
    there = [device_put(one, "hip") for one in (a, b, np.full((40, 40), np.nan, np.float32))]
    gemm = plain(0)
    whole = gemm.compile(*there, precision="exact", target="hip").schedule
    assert whole is not None
    bound = gemm.bind(precision="exact", schedule=replace(whole, split_k=2, reduction="turnstile"))
    wide = [one.astype(np.float64) for one in (a, b)]
    bounds = 98 * 2.0**-24 * (np.abs(wide[0]) @ np.abs(wide[1]))
    before = len(gpu.of("hipMalloc"))
    for stream in (0, 0, 0x50, 0x50):
        bound(*there, stream=stream)
        found = there[2].host()
        assert np.all(np.abs(found - wide[0] @ wide[1]) <= bounds)
    assert {given[3] for given in gpu.of("hipMemsetD8Async")} == {0, 0x50}
    assert len(gpu.of("hipMalloc")) - before == 4, "sums and counters, for each stream"
    assert len(gpu.of("hipModuleLaunchKernel")) == 4


def timed() -> None:
    """Launch twice with empty caches, and time one launch."""
    scaled, (x, y) = author(), vectors()
    scaled(x, y, 3.0)
    with clock_for("hip") as clock:
        assert clock.sample(lambda: scaled(x, y, 3.0), 1) == pytest.approx(1e-3)


def test_nothing_is_left_when_nobody_holds_it(gpu: StandIn) -> None:
    timed()
    assert len(gpu.of("hipModuleLaunchKernel")) == 2
    gc.collect()
    assert not gpu.memory
    assert not gpu.events
    assert len(gpu.modules) == 1, "its launches may run"
    HIP_DRIVER.synchronize()
    assert not gpu.modules


def test_tables_and_memory_between_kernels(gpu: StandIn) -> None:
    device, content = (AMD_GPU, 0), bytes(range(100))
    with uploads(device).table(content, 0x20) as address:
        assert ctypes.string_at(address, 100) == content
    with scratch(1000, device, 0x20) as first:
        assert first in gpu.memory
    with scratch(1000, device, 0x20) as second:
        assert second == first
    with scratch(1000, device, 0x30) as third:
        assert third != first
    assert gpu.of("hipMemcpyHtoDAsync")[0][3] == gpu.of("hipEventRecord")[0][1] == 0x20


def test_each_device_has_its_code_and_what_was_current_stays_so(gpu: StandIn) -> None:
    gpu.devices = 2
    x = np.random.default_rng(2).standard_normal(N).astype(np.float32)
    scaled = author()
    for index in (1, 0, 1):
        there, out = (DeviceArray.of(one, index, HIP_DRIVER) for one in (x, np.full_like(x, np.nan)))
        assert describe(there).device == (AMD_GPU, index)
        scaled(there, out, 2.0)
        assert gpu.current == 0
        assert np.array_equal(out.host(), 2 * x)
    assert sorted(gpu.devices_of.values()) == [0, 1], "loaded once on each"


def test_blocks_that_wait_for_each_other_are_launched_together_or_not_at_all(gpu: StandIn) -> None:
    x, y = (np.arange(64 * 9, dtype=np.float32), np.zeros(64 * 9, np.float32))
    there = [device_put(one[: 64 * 8], "hip") for one in (x, y)]
    signals.around.bind(blocks=8)(*there)
    assert [given[1:4] for given in gpu.of("hipModuleLaunchCooperativeKernel")] == [(8, 1, 1)]
    assert not gpu.of("hipModuleLaunchKernel")
    parts = x[: 64 * 8].reshape(8, 64)
    assert np.array_equal(there[1].host().reshape(8, 64), parts + np.roll(parts, -1, axis=0))
    with pytest.raises(
        LaunchError, match=r"its 9 blocks wait for each other, and device 0 runs only 8 of them"
    ):
        signals.around.bind(blocks=9)(*(device_put(one, "hip") for one in (x, y)))


def test_a_forked_child_is_told_to_be_spawned(gpu: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Started()
    made.bindings = HIP_DRIVER.bindings()
    made.renew()  # what happens in a child
    monkeypatch.setattr(HIP_DRIVER, "_process", made)
    assert HIP_DRIVER.device_count() == 0
    with pytest.raises(LaunchError, match=r"forked this one.*get_context\('spawn'\)"):
        HIP_DRIVER.call("hipGetDeviceCount")


def test_a_graph_has_memory_of_its_own(gpu: StandIn) -> None:
    gpu.capturing.add(0x40)
    with scratch(1000, (AMD_GPU, 0), 0x40) as first, scratch(1000, (AMD_GPU, 0), 0x40) as second:
        assert first != second
    assert gpu.mode == 0, "what may be captured is as it was"


# ---------------------------------------------------------------- other frameworks' arrays


class Rocm:
    """An array that is on ROCm device 0 according to DLPack; its memory is the host's."""

    def __init__(self, array: np.ndarray[Any, Any], kind: int = dlpack.ROCM) -> None:
        self.array, self.kind = array, kind
        self.streams: list[int] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0

    def __dlpack__(self, *, stream: int, max_version: Any = None) -> Any:
        self.streams.append(stream)
        capsule = self.array.__dlpack__()
        address = dlpack._get_pointer(capsule, b"dltensor")
        dlpack._Managed.from_address(address).tensor.device_type = self.kind
        return capsule


def test_arrays_of_rocm_by_dlpack(gpu: StandIn) -> None:
    x, y = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    for one in (x, y):
        gpu.adopt(one)
    there = Rocm(x), Rocm(y)
    assert describe(there[0]).device == (AMD_GPU, 0)
    made = author()(*there, 4.0)
    assert made.target == "hip"
    assert np.array_equal(y, 4 * x)
    assert {*there[0].streams} == {0}, "of ROCm the default stream is 0"


def test_arrays_of_pytorch_and_cupy_built_for_rocm(gpu: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.runtime.test_frameworks import CupyArray, Tensor, Torch

    torch: Any = Torch("torch")
    torch.version = SimpleNamespace(hip="6.2")
    torch._C._cuda_getCurrentRawStream = staticmethod(lambda index: 0x77 + index)
    monkeypatch.setitem(sys.modules, "torch", torch)
    tensor = Tensor(device=("cuda", 1))
    assert describe(tensor).device == (AMD_GPU, 1)
    assert current_stream((AMD_GPU, 1), [tensor]) == 0x78
    torch.version.hip = None
    assert describe(Tensor(device=("cuda", 1))).device == ("cuda", 1)

    cupy: Any = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(
        runtime=SimpleNamespace(is_hip=True), get_current_stream=lambda: SimpleNamespace(ptr=0x99)
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    x, y = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    for one in (x, y):
        gpu.adopt(one)
    assert author()(CupyArray(x), CupyArray(y), 3.0).target == "hip"
    assert np.array_equal(y, 3 * x)
    assert gpu.of("hipModuleLaunchKernel")[0][8] == 0x99
    assert current_stream((AMD_GPU, 0), [Rocm(x)]) == 0


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("function", "status", "said"),
    [
        ("hipMalloc", OUT_OF_MEMORY, r"hipMalloc failed with hipErrorOutOfMemory \(2\): out of memory"),
        ("hipModuleGetFunction", 98, r"hipModuleGetFunction failed with hipErrorInvalidDeviceFunction"),
        ("hipModuleLoadData", 209, r"hipModuleLoadData failed with hipErrorNoBinaryForGpu"),
        ("hipModuleLaunchKernel", FAILED, r"the launch failed with hipErrorLaunchFailure"),
        ("hipMemcpyDtoH", 1, r"hipMemcpyDtoH failed with hipErrorInvalidValue"),
        ("hipDeviceSynchronize", FAILED, r"hipDeviceSynchronize failed with hipErrorLaunchFailure"),
    ],
)
def test_errors_of_the_runtime_are_named(gpu: StandIn, function: str, status: int, said: str) -> None:
    gpu.fails[function] = status

    def doubled() -> tuple[Any, Any]:
        x, y = vectors()
        author()(x, y, 2.0)
        return x.host(), y.host()

    with pytest.raises(LaunchError, match=said):
        doubled()
    gpu.fails.clear()
    x, y = doubled()
    assert np.array_equal(y, 2 * x), "it goes on afterwards"


def test_a_grid_that_no_gpu_launches_is_refused(gpu: StandIn) -> None:
    function = SimpleNamespace(index=0, shared_bytes=0, handle=0)
    for grid, said in (((2**26, 1, 1), r"axis x.*at most 67108863"), ((1, 2**16, 1), "axis y.*65535")):
        with pytest.raises(LaunchError, match=said):
            FixedLaunch(HIP_DRIVER, function, grid, 64, (0,), 8)


def test_a_kernel_for_another_architecture_is_refused(gpu: StandIn) -> None:
    x, y = vectors()
    author()(x, y, 1.0)
    gpu.arch = "gfx942"
    HIP_DRIVER.device.cache_clear()
    assert author()(x, y, 1.0).arch == "gfx942"
    gpu.arch = "gfx906:sramecc+"
    HIP_DRIVER.device.cache_clear()
    with pytest.raises(LaunchError, match=r"unknown architecture 'gfx906' of target hip; known: .*gfx942"):
        author()(x, y, 1.0)


def test_without_devices_nothing_is_launched(gpu: StandIn) -> None:
    gpu.devices = 0
    assert HIP_DRIVER.device_count() == 0
    assert backend_named("hip").arch_name() == "gfx942"
    gpu.fails["hipGetDeviceCount"] = NO_DEVICE
    x = np.zeros(N, np.float32)
    with pytest.raises(LaunchError, match=r"hipErrorNoDevice \(100\): no ROCm-capable.*kernel\.compile"):
        author()(x, x.copy(), 1.0, target="hip")
    gpu.fails.clear()
    gpu.devices = 1
    with pytest.raises(LaunchError, match=r"target 'hip' cannot reach arrays in host memory"):
        author()(x, x.copy(), 1.0, target="hip")


def test_a_code_object_lives_as_long_as_its_module(gpu: StandIn) -> None:
    """The runtime reads it until the module is unloaded, which happens after a wait for the device."""
    gone: list[str] = []

    class Image(bytes):
        def __del__(self) -> None:
            gone.append("image")

    _, y = vectors()
    made = author().compile(y, y, np.float32(2), target="hip", arch=ARCH)
    function = HIP_DRIVER.load(Image(code_object(made)), "scaled", 0, 0)
    gc.collect()
    assert gone == [], "the module is loaded"
    del function
    gc.collect()
    assert gone == [], "its launches may still run"
    HIP_DRIVER.synchronize(0)
    assert gone == ["image"]


# ---------------------------------------------------------------- the library


def test_a_library_that_is_loaded_is_taken_before_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, rocm = (tmp_path / name / "lib" / "libamdhip64.so" for name in ("mine", "rocm"))
    (tmp_path / "stand_in.so").write_bytes(library_bytes())
    for path in (mine, rocm):
        path.parent.mkdir(parents=True)
        path.symlink_to(tmp_path / "stand_in.so")
    maps = tmp_path / "maps"
    monkeypatch.setattr(comgr, "MAPPED", maps)

    def found(listed: str) -> str:
        maps.write_text(listed)
        signatures = {"hipGetDevice": "*i", "hipStreamGetId": "p *U"}
        return comgr.SharedObject("libamdhip64.so", (7,), signatures, tmp_path / "rocm").path

    line = "7f00-7f01 r-xp 00000000 08:01 123    {}\n"
    assert found(line.format("/usr/lib/libc.so.6")) == str(rocm)
    versioned = mine.with_name("libamdhip64.so.6")
    mine.rename(versioned)
    assert found(2 * line.format(versioned)) == str(versioned)
    assert found(line.format(tmp_path / "libamdhip64.so.6 (deleted)")) == str(rocm)


def test_a_function_that_this_version_has_not(gpu: StandIn) -> None:
    assert not HIP_DRIVER.bindings().has("hipStreamGetId")
    assert HIP_DRIVER.stream_number(0x55) == 0x55
    with pytest.raises(ToolchainError, match=r"has no function hipStreamGetId; nearest: a newer ROCm"):
        HIP_DRIVER.call("hipStreamGetId", 5)


def test_without_the_library_it_is_said_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(
        ToolchainError, match=r"libnothere\.so is not loaded.*neither .*lib nor the loader's path has it"
    ) as caught:
        comgr.SharedObject("libnothere.so", (1,), {}, tmp_path)
    assert str(tmp_path / "lib") in str(caught.value)
