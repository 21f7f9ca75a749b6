"""Arrays of every installed framework, on the GPU and on the caller's stream."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from tests.canaries import Canaries
from tests.eight_lines import product as gemm

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.ops.matmul import matmul

pytestmark = pytest.mark.gpu

SHAPE = (150, 200, 70)


def torch_array(host: np.ndarray[Any, Any]) -> Any:
    return import_module("torch").from_numpy(host).cuda()


def torch_host(array: Any) -> Any:
    return array.cpu().numpy()


def cupy_array(host: np.ndarray[Any, Any]) -> Any:
    return import_module("cupy").asarray(host)


def cupy_host(array: Any) -> Any:
    return import_module("cupy").asnumpy(array)


def torch_out(canaries: Canaries, host: np.ndarray[Any, Any]) -> Any:
    return canaries.torch(host)


def cupy_out(canaries: Canaries, host: np.ndarray[Any, Any]) -> Any:
    return canaries.cupy(host)


class OnlyDLPack:
    """A tensor that shows only its DLPack interface."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **asked: Any) -> Any:
        return self.tensor.__dlpack__(**asked)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()

    @property
    def shape(self) -> Any:
        return self.tensor.shape

    @property
    def T(self) -> OnlyDLPack:  # noqa: N802
        return OnlyDLPack(self.tensor.T)


def dlpack_array(host: np.ndarray[Any, Any]) -> Any:
    return OnlyDLPack(torch_array(host))


def dlpack_out(canaries: Canaries, host: np.ndarray[Any, Any]) -> Any:
    return OnlyDLPack(canaries.torch(host))


def dlpack_host(array: Any) -> Any:
    return torch_host(array.tensor)


MAKERS: dict[str, tuple[str, Callable[..., Any], Callable[..., Any], Callable[[Any], Any]]] = {
    "torch": ("torch", torch_array, torch_out, torch_host),
    "cupy": ("cupy", cupy_array, cupy_out, cupy_host),
    "dlpack": ("torch", dlpack_array, dlpack_out, dlpack_host),
}
"""Framework -> its package, and how to make an input, an output with canaries, and a copy on the host."""
INSTALLED = [name for name, (package, *_) in MAKERS.items() if find_spec(package)]
OWN_OUTPUT = "matmul makes its output by the framework"


def atom_of(dtype: tw.DType) -> tw.MmaAtom:
    """Return the parts of `matmul`'s instruction that decide how sums are rounded."""
    return tw.atoms.MMA_F16 if dtype == tw.f16 else tw.atoms.fma(dtype)


def made(dtype: Any = np.float32) -> tuple[Any, Any, Any]:
    m, n, k = SHAPE
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    return a, b, np.full((m, n), np.nan, dtype)


def test_a_framework_is_installed() -> None:
    assert "torch" in INSTALLED, "PyTorch is needed to test this target"


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("framework", INSTALLED)
def test_matmul_into_the_callers_array(framework: str, dtype: Any, canaries: Canaries) -> None:
    _, to_device, make_out, to_host = MAKERS[framework]
    a, b, out = made(dtype)
    device_out = make_out(canaries, out)
    returned = matmul(to_device(a), to_device(b), device_out)
    assert returned is device_out
    assert compare_gemm(a, b, to_host(device_out), Accumulation.of(atom_of(tw.dtype(dtype)))).ok


@pytest.mark.parametrize("framework", [name for name in INSTALLED if name != "dlpack"])
def test_a_new_output_is_of_the_same_framework(framework: str, canaries: Canaries) -> None:
    _, to_device, _, to_host = MAKERS[framework]
    a, b, _ = made()
    with canaries.unguarded(OWN_OUTPUT):
        out = matmul(to_device(a), to_device(b))
    assert type(out) is type(to_device(a))
    assert compare_gemm(a, b, to_host(out)).ok


@pytest.mark.parametrize("package", [name for name in ("jax",) if find_spec(name)])
def test_jax_inputs(package: str, canaries: Canaries) -> None:
    numpy = import_module("jax.numpy")
    a, b, out = made()
    ours = canaries.torch(out)
    left, right = numpy.asarray(a), numpy.asarray(b)
    bound = gemm.bind()
    assert bound(left, right.T, ours).target == "cuda"
    assert compare_gemm(a, b, torch_host(ours)).ok


def test_work_is_ordered_on_the_current_stream(canaries: Canaries) -> None:
    torch = import_module("torch")
    a, b, out = made()
    stream = torch.cuda.Stream()
    device_a, device_b, device_out = torch_array(a), torch_array(b), canaries.torch(out)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for loaded in (False, True):  # the first time, code is compiled and loaded, which may wait
            # The product must wait for this, which takes longer than starting a kernel.
            torch.cuda._sleep(50_000_000)
            device_a.mul_(2)
            matmul(device_a, device_b, device_out)
            assert not (loaded and stream.query()), "the launch waited for the device"
            stream.synchronize()
    assert compare_gemm(4 * a, b, torch_host(device_out)).ok


def test_a_stream_that_the_caller_names(canaries: Canaries) -> None:
    torch = import_module("torch")
    a, b, out = made()
    stream = torch.cuda.Stream()
    device_a, device_b, device_out = torch_array(a), torch_array(b), canaries.torch(out)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        device_a.mul_(2)
    for given in (stream, stream.cuda_stream):
        device_out.fill_(float("nan"))
        torch.cuda.current_stream().synchronize()
        matmul(device_a, device_b, device_out, stream=given)
        stream.synchronize()
        assert compare_gemm(2 * a, b, torch_host(device_out)).ok


def test_arrays_on_host_and_device_are_refused() -> None:
    a, b, _ = made()
    with pytest.raises(tw.LaunchError, match="different devices"):
        matmul(torch_array(a), b)


def test_a_view_of_a_tensor(canaries: Canaries) -> None:
    a, b, _ = made()
    wide = torch_array(np.concatenate([a, a], axis=1))
    out = canaries.torch(np.full((300, 400), np.nan, np.float32))
    matmul(wide[:, : a.shape[1]], torch_array(b), out[:150, :200])
    assert compare_gemm(a, b, torch_host(out[:150, :200])).ok
    assert bool(out[150:].isnan().all()) and bool(out[:, 200:].isnan().all())  # noqa: PT018


def test_a_tensor_that_requires_a_gradient(canaries: Canaries) -> None:
    """Its product would have no gradient: it is refused while gradients are recorded, otherwise served."""
    torch = import_module("torch")
    a, b, out = made()
    device_b, device_out = torch_array(b), canaries.torch(out)
    weights = torch.nn.Parameter(torch_array(a))
    grown = torch_array(a)
    again = gemm.bind().prepare(grown, device_b.T, device_out)
    again()
    with pytest.raises(tw.LaunchError, match="requires a gradient"):
        matmul(weights, device_b)
    with pytest.raises(tw.LaunchError, match="requires a gradient"):
        matmul(weights, device_b, device_out)
    grown.requires_grad_()
    with pytest.raises(tw.LaunchError, match="requires a gradient"):
        again()
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            with canaries.unguarded(OWN_OUTPUT):
                assert compare_gemm(a, b, torch_host(matmul(weights, device_b))).ok
            device_out.fill_(float("nan"))
            assert matmul(weights, device_b, device_out) is device_out
            assert compare_gemm(a, b, torch_host(device_out)).ok
            again()
    with canaries.unguarded(OWN_OUTPUT):
        assert compare_gemm(a, b, torch_host(matmul(weights.detach(), device_b))).ok


def test_subclasses_of_tensors_are_read_by_their_memory(canaries: Canaries) -> None:
    torch = import_module("torch")

    class Lying(torch.Tensor):  # type: ignore[misc, name-defined]
        shape = property(lambda self: torch.Size((4000, 4000)))

        def stride(self) -> tuple[int, ...]:
            return (1, 1)

    a, b, out = made()
    device_out = canaries.torch(out)
    matmul(torch_array(a).as_subclass(Lying), torch_array(b), device_out)
    assert compare_gemm(a, b, torch_host(device_out)).ok


def test_conjugates_and_negations_that_are_not_carried_out() -> None:
    torch = import_module("torch")
    c = torch.randn(8, 8, dtype=torch.complex64, device="cuda")
    for tensor in (c.conj().imag, torch._neg_view(c), torch._neg_view(c.real)):
        with pytest.raises(tw.LaunchError, match="is a lazy"):
            matmul(tensor, tensor)


@pytest.mark.parametrize("package", [name for name in ("jax",) if find_spec(name)])
def test_a_jax_tracer_is_refused(package: str) -> None:
    jax = import_module(package)
    a, _, _ = made()
    for transform in (jax.jit, jax.vmap, jax.grad):
        with pytest.raises(tw.LaunchError, match="a JAX tracer has no memory"):
            transform(lambda x: matmul(x, x))(a[:70, :70])
