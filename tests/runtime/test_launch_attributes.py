"""The attributes of a launch, built with the driver's own classes; no driver is needed."""

from __future__ import annotations

from typing import Any

import pytest
from cuda.bindings import driver as bindings

import tilewright as tw
from tilewright.ir.kernel import Kernel
from tilewright.runtime import cuda
from tilewright.runtime.launch_attributes import launch_attributes

SPEC = tw.TensorSpec(tw.f32, 1, 0, (64,), (1,), 16, False)


def traced(*, waits: bool, cluster: int | tuple[int, int] | None = None, begins: bool = False) -> Kernel:
    @tw.kernel(X="N")
    def author(X):
        tw.block_index((tw.ceil_div(X.shape[0], 64), 4))
        if cluster is not None:
            tw.cluster_index(cluster)
        if waits:
            tw.prior_grid_wait()
        if begins:
            tw.launch_dependents()

    return author.trace(SPEC)


def said(attributes: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute in attributes:
        name = attribute.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_").lower()
        dims, value = attribute.value.clusterDim, attribute.value.programmaticStreamSerializationAllowed
        found[name] = (dims.x, dims.y, dims.z) if name == "cluster_dimension" else value
    return found


def test_attributes_follow_from_the_operations() -> None:
    def of(**given: Any) -> dict[str, Any]:
        return said(launch_attributes(traced(**given), bindings))

    early = {"programmatic_stream_serialization": 1}
    assert of(waits=False) == {}
    assert of(waits=False, begins=True) == {}
    assert of(waits=True) == early
    assert of(waits=False, cluster=(2, 4)) == {"cluster_dimension": (2, 4, 1)}
    assert of(waits=True, cluster=2) == {"cluster_dimension": (2, 1, 1), **early}


class Driver:
    """The driver's classes, and launches that are written down."""

    def __init__(self) -> None:
        self.launched: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(bindings, name)

    def cuLaunchKernel(self, handle: Any, *rest: Any) -> tuple[Any]:  # noqa: N802
        self.launched.append(("cuLaunchKernel", rest[:7]))
        return (bindings.CUresult.CUDA_SUCCESS,)

    def cuLaunchKernelEx(self, config: Any, *rest: Any) -> tuple[Any]:  # noqa: N802
        shape = (config.gridDimX, config.gridDimY, config.gridDimZ)
        shape += (config.blockDimX, config.blockDimY, config.blockDimZ, config.sharedMemBytes)
        self.launched.append(("cuLaunchKernelEx", (shape, int(config.hStream), said(config.attrs))))
        return (bindings.CUresult.CUDA_SUCCESS,)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(cuda, "driver", lambda: made)
    monkeypatch.setattr(cuda, "device_count", lambda: 1)
    return made


class Function:
    index, shared_bytes, handle = 0, 1024, 0


def test_a_launch_with_attributes_says_them_and_one_without_is_plain(driver: Driver) -> None:
    for kernel in (traced(waits=True, cluster=2), traced(waits=False)):
        launch = cuda.Launch(Function(), (6, 4), 128, (0,), 8, launch_attributes(kernel, bindings))  # type: ignore[arg-type]
        launch.run(7)
        launch.run(0)
    shape = (6, 4, 1, 128, 1, 1, 1024)
    attributes = {"cluster_dimension": (2, 1, 1), "programmatic_stream_serialization": 1}
    assert driver.launched == [
        ("cuLaunchKernelEx", (shape, 7, attributes)),
        ("cuLaunchKernelEx", (shape, 0, attributes)),
        ("cuLaunchKernel", shape),
        ("cuLaunchKernel", shape),
    ]
