"""The attributes of a launch, built with the driver's own classes, without a driver."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as bindings

import tilewright as tw
from tilewright.ir.kernel import Kernel
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.device import launch_attributes, with_attributes
from tilewright.runtime.gpu_launch import FixedLaunch

from .fake_gpu import Driver, said

SPEC = tw.TensorSpec(tw.f32, 1, 0, (64,), (1,), 16, False)


def traced(*, waits: bool, cluster: int | tuple[int, int] | None = None, begins: bool = False) -> Kernel:
    @tw.kernel(X="N")
    def author(X):
        tw.block_index((tw.ceil_div(X.shape[0], 64), 4))
        if cluster is not None:
            tw.hopper.cluster_index(cluster)
        if waits:
            tw.hopper.prior_grid_wait()
        if begins:
            tw.hopper.launch_dependents()

    return author.trace(SPEC)


def test_attributes_follow_from_the_operations() -> None:
    def of(**given: Any) -> dict[str, Any]:
        return said(launch_attributes(traced(**given), bindings))

    early = {"programmatic_stream_serialization": 1}
    assert of(waits=False) == {}
    assert of(waits=False, begins=True) == {}
    assert of(waits=True) == early
    assert of(waits=False, cluster=(2, 4)) == {"cluster_dimension": (2, 4, 1)}
    assert of(waits=True, cluster=2) == {"cluster_dimension": (2, 1, 1), **early}
    together = said(launch_attributes(traced(waits=True), bindings, together=True))
    assert together == {"cooperative": 1}


class Function:
    index, shared_bytes, handle = 0, 1024, 0


def test_a_launch_with_attributes_says_them_and_one_without_is_plain(gpu: Driver) -> None:
    for kernel in (traced(waits=True, cluster=2), traced(waits=False)):
        special = with_attributes(launch_attributes(kernel, bindings))
        launch = FixedLaunch(CUDA_DRIVER, Function(), (6, 4), 128, (0,), 8, special)  # type: ignore[arg-type]
        launch.run(7)
        launch.run(0)
    shape = (6, 4, 1, 128, 1, 1, 1024)
    attributes = {"cluster_dimension": (2, 1, 1), "programmatic_stream_serialization": 1}
    found = [(each.function, each.stream, each.shape, each.attributes) for each in gpu.launched]
    assert found == [
        ("cuLaunchKernelEx", 7, shape, attributes),
        ("cuLaunchKernelEx", 0, shape, attributes),
        ("cuLaunchKernel", 7, shape, {}),
        ("cuLaunchKernel", 0, shape, {}),
    ]
