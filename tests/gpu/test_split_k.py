"""Products with split K, and of few rows, on a GPU: every element, equal bits, streams, threads, graphs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from tests.canaries import Canaries
from tests.gpu.schedules import Form
from tests.gpu.splits import LAYOUTS, SPLIT_FORMS
from tests.gpu.workspaces import Watched, poisoned

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.checking.flows import compare_flow
from tilewright.checking.sample import laid_out, normal
from tilewright.ops.ending import ACTIVATIONS
from tilewright.ops.products import combined
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.device import PreparedCuda
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.schedule.partition import MOST_SPLITS
from tilewright.schedule.question import IN_ORDER as IN_ONE_ORDER
from tilewright.schedule.schedule import Schedule

pytestmark = pytest.mark.gpu

Array = np.ndarray[Any, Any]

RUNS = 20
IN_ORDER = [
    name
    for name, form in SPLIT_FORMS.items()
    if form.schedule.reduction != "atomic"
    and (form.schedule.split_k in (7, 13, "stream", 1) or form.schedule.reduction == "reduce-scatter")
]
"""Forms whose bits must not differ from run to run."""

SHARED = [
    *("cooperative, 13 parts, workspace", "cooperative, auto parts, reduce-scatter"),
    *("cp_async, 7 parts, turnstile", "fma, stream parts, workspace"),
    "clusters of 2 x 1, auto parts, reduce-scatter",
]
"""Forms that several streams and threads launch at once; and one whose sums are added as they come."""
AS_THEY_COME = "cooperative, auto parts, atomic"

WAYS: dict[str, dict[str, Any]] = {
    "3": {"split_k": 3},
    "13": {"split_k": 13},
    "auto": {"split_k": "auto"},
    "stream": {"split_k": "stream"},
    "reduce-scatter": {"split_k": "auto", "reduction": "reduce-scatter"},
    "turnstile": {"split_k": 13, "reduction": "turnstile"},
    "atomic": {"split_k": 13, "reduction": "atomic"},
    "batch-invariant": {"batch_invariant": True},
    "batch-invariant, split": {"batch_invariant": True, "split_k": "auto"},
}
RAN = {name: asked["split_k"] for name, asked in WAYS.items() if "split_k" in asked}
RAN["batch-invariant, split"] = MOST_SPLITS
"""What the schedule says of K: where the order of addition must be the same, a part for each period."""
WAY = pytest.mark.parametrize("way", WAYS)
KINDS = pytest.mark.parametrize("kind", ["f16", "f32"])


@pytest.fixture(autouse=True)
def workspaces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Return workspaces with poison before every launch, and with counters checked to be 0 at the end."""
    with poisoned(monkeypatch) as made:
        yield made


@pytest.fixture
def schedules(monkeypatch: pytest.MonkeyPatch) -> list[Schedule]:
    """Return the schedules of all launches; each must run on the GPU."""
    made: list[Schedule] = []
    launch = PreparedCuda.launch

    def seen(self: PreparedCuda, *arguments: Any) -> None:
        assert self.executable.target == "cuda"
        assert self.executable.schedule is not None
        made.append(self.executable.schedule)
        launch(self, *arguments)

    monkeypatch.setattr(PreparedCuda, "launch", seen)
    return made


def accumulation(schedule: Schedule) -> Accumulation:
    return Accumulation.of(schedule.atom, schedule.promote * schedule.block_k or None)


def drawn(seed: int, shape: tuple[int, ...], kind: str, letter: str = "n") -> Array:
    return laid_out(normal(np.random.default_rng(seed), shape, tw.dtype(kind)), letter)


def blank(shape: tuple[int, int], kind: str, letter: str = "n") -> Array:
    return laid_out(np.full(shape, np.nan, tw.dtype(kind).numpy), letter)


@pytest.mark.parametrize("name", SPLIT_FORMS)
def test_every_form(name: str, workspaces: Watched) -> None:
    form = SPLIT_FORMS[name]
    (layout,) = form.layouts
    for number, shape in enumerate(form.shapes(2, layout)):
        before = form.arrays(shape, layout, number)
        ran, after = form.run(before)
        assert (ran.target, ran.schedule) == ("cuda", form.schedule)
        found = form.compare(before, after)
        assert found.ok, f"{shape}: {found}"
    meets_in_memory = form.schedule.split_k != 1 and form.schedule.reduction != "cluster"
    assert bool(workspaces.reset) == meets_in_memory
    assert bool(workspaces.poisoned) == (meets_in_memory and form.schedule.reduction != "atomic")


@pytest.mark.parametrize("name", IN_ORDER)
def test_the_same_bits_every_time(name: str) -> None:
    form = SPLIT_FORMS[name]
    (layout,) = form.layouts
    before = form.arrays(next(form.shapes(0, layout)), layout, 1)
    assert len({form.run(before)[1]["C"].tobytes() for _ in range(RUNS)}) == 1


def launch_on(form: Form, arrays: list[Any], streams: list[int], outs: list[Any], ended: list[int]) -> None:
    """Launch on two streams alternately, each time into another output."""
    bound, at = form.kernel.bind(schedule=form.schedule), form_output(form)
    for number, out in enumerate(outs):
        given = [*arrays[:at], out, *arrays[at + 1 :]]
        bound(*given, stream=streams[number % len(streams)])
    ended.append(len(outs))


def form_output(form: Form) -> int:
    """Return the index of the result among the parameters."""
    return [parameter.name for parameter in form.kernel.program.parameters].index("C")


@pytest.mark.parametrize("name", [*SHARED, AS_THEY_COME])
def test_two_threads_with_two_streams_each_at_once(name: str) -> None:
    form = SPLIT_FORMS[name]
    (layout,) = form.layouts
    m, n, k = next(form.shapes(0, layout))
    before = form.arrays((3 * m, 2 * n, k), layout, 2)
    want = form.run(before)[1]["C"]
    arrays = [DeviceArray.of(array) for array in before.values()]
    outs = [[DeviceArray.of(before["C"]) for _ in range(10)] for _ in range(2)]
    with CUDA_DRIVER.current(0):
        streams = [[int(CUDA_DRIVER.call("cuStreamCreate", 1)) for _ in range(2)] for _ in range(2)]
    ended: list[int] = []
    threads = [
        threading.Thread(target=launch_on, args=(form, arrays, mine, own, ended))
        for mine, own in zip(streams, outs, strict=True)
    ]
    CUDA_DRIVER.synchronize()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    CUDA_DRIVER.synchronize()
    assert ended == [10, 10]
    for out in (out for own in outs for out in own):
        if name != AS_THEY_COME:
            np.testing.assert_array_equal(out.host(), want)
        else:
            found = form.compare(before, before | {"C": out.host()})
            assert found.ok, found
    with CUDA_DRIVER.current(0):
        for stream in (stream for mine in streams for stream in mine):
            CUDA_DRIVER.call("cuStreamDestroy", stream)


@KINDS
@pytest.mark.parametrize("way", ["13", "auto", "stream", "reduce-scatter", "turnstile", "atomic"])
def test_the_first_call_inside_the_capture_of_a_graph_and_its_replays(
    way: str, kind: str, canaries: Canaries, no_known_products: None, schedules: list[Schedule]
) -> None:
    torch = import_module("torch")
    a, b = (torch.from_numpy(drawn(seed, (n, 3000), kind)).cuda() for seed, n in ((1, 70), (2, 96)))
    out = canaries.torch(blank((70, 96), kind))
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        tw.matmul(a, b.T, out, **WAYS[way])
    seen = set()
    for turn in range(4):
        a.copy_(torch.from_numpy(drawn(3 + turn // 2, (70, 3000), kind)))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        wide = a.cpu().numpy(), b.T.cpu().numpy()
        compare_gemm(*wide, out.cpu().numpy(), accumulation(schedules[0])).raise_if_wrong()
        seen.add(out.cpu().numpy().tobytes())
        # In between, the same kernel by itself, with workspaces of its own.
        by_itself = canaries.torch(blank((70, 96), kind))
        tw.matmul(a, b.T, by_itself, **WAYS[way])
        torch.cuda.synchronize()
        assert way == "atomic" or torch.equal(by_itself, out)
    assert way == "atomic" or len(seen) == 2


@KINDS
@WAY
def test_matmul_of_ragged_depth_into_any_strides(way: str, kind: str, schedules: list[Schedule]) -> None:
    for layout, letter, shape in zip(
        LAYOUTS, "ntnt", [(130, 93, 1203), (64, 128, 4096), (33, 47, 2999), (1, 5, 700)], strict=True
    ):
        m, n, k = shape
        a, b = drawn(1, (m, k), kind, layout[0]), drawn(2, (k, n), kind, layout[1])
        there = [DeviceArray.of(array) for array in (a, b, blank((m, n), kind, letter))]
        assert tw.matmul(*there, **WAYS[way]) is there[2]
        CUDA_DRIVER.synchronize()
        compare_gemm(a, b, there[2].host(), accumulation(schedules[-1])).raise_if_wrong()
        chosen, named = schedules[-1], WAYS[way].get("reduction")
        assert chosen.reduction == named if named else chosen.reduction in IN_ONE_ORDER
        # As many parts as fill the machine are a number where they are a cluster.
        assert way not in RAN or chosen.split_k == RAN[way] or (way, chosen.reduction) == ("auto", "cluster")


@pytest.mark.parametrize("shape", [(64, 64, 16384), (512, 512, 8192), (1, 4096, 4096), (300, 208, 5008)])
@pytest.mark.parametrize("split_k", ["auto", 7])
def test_the_reduction_that_is_chosen_has_the_same_bits_every_time(
    split_k: int | str, shape: tuple[int, int, int], schedules: list[Schedule]
) -> None:
    m, n, k = shape
    a, b = drawn(1, (m, k), "bf16"), drawn(2, (k, n), "bf16", "t")
    there, seen = [DeviceArray.of(array) for array in (a, b)], set()
    for _ in range(RUNS):
        out = DeviceArray.of(blank((m, n), "bf16"))
        tw.matmul(*there, out, split_k=split_k)
        CUDA_DRIVER.synchronize()
        seen.add(out.host().tobytes())
    compare_gemm(a, b, out.host(), accumulation(schedules[-1])).raise_if_wrong()
    assert len(seen) == 1
    assert schedules[-1].reduction in IN_ONE_ORDER


@pytest.mark.parametrize("kind", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_what_is_chosen_for_few_rows_and_for_few_tiles(
    kind: str, layout: str, schedules: list[Schedule]
) -> None:
    """Without a request, 16-bit products of 1 and 16 rows are transposed, and few tiles split K."""
    shapes = [(1, 1024, 4096), (16, 1032, 4104), (64, 1024, 4096), (40, 72, 16384), (136, 128, 16384)]
    for m, n, k in shapes:
        a, b = drawn(1, (m, k), kind, layout[0]), drawn(2, (k, n), kind, layout[1])
        there = [DeviceArray.of(array) for array in (a, b, blank((m, n), kind))]
        tw.matmul(*there)
        CUDA_DRIVER.synchronize()
        compare_gemm(a, b, there[2].host(), accumulation(schedules[-1])).raise_if_wrong()
        if kind != "f32" and k == 4096 and m <= 16:
            assert schedules[-1].swap_ab


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@WAY
def test_what_is_done_with_the_sums_is_done_once(
    way: str, activation: str, schedules: list[Schedule]
) -> None:
    """The terms are ``out`` itself, which is read and written, a bias, and a function of all of them."""
    assert activation in ACTIVATIONS
    m, n, k = 70, 93, 2999
    a, b, bias = drawn(1, (m, k), "f16"), drawn(2, (k, n), "f16"), 30 * drawn(3, (n,), "f16")
    c = 20 * drawn(4, (m, n), "f16")
    there = {name: DeviceArray.of(array) for name, array in (("a", a), ("b", b), ("bias", bias), ("out", c))}
    numbers = {"alpha": 0.5, "beta": -2.0}
    tw.matmul(
        *(there["a"], there["b"], there["out"]),
        bias=there["bias"],
        activation=activation,
        **numbers,
        **WAYS[way],
    )
    CUDA_DRIVER.synchronize()
    terms = frozenset({"alpha", "c", "bias", "activation"})
    flow = (
        combined(0, tw.f32)
        .bind(precision="exact", terms=terms, activation=activation)
        .flow(a, b, c, bias, c, c, *numbers.values())
    )
    given = {"A": a, "B": b, "C": c, "bias": bias, "R": c}
    found = compare_flow(flow, {"D": there["out"].host()}, given, numbers, accumulation(schedules[-1]))
    assert found.ok, found


@pytest.mark.parametrize("way", ["batch-invariant", "batch-invariant, split"])
def test_a_row_has_its_bits_among_any_rows(way: str, schedules: list[Schedule]) -> None:
    a, b = drawn(1, (130, 2104), "bf16"), drawn(2, (2104, 72), "bf16", "t")
    there = [DeviceArray.of(array) for array in (a, b)]
    whole = blank((130, 72), "bf16")
    out = DeviceArray.of(whole)
    tw.matmul(*there, out, **WAYS[way])
    CUDA_DRIVER.synchronize()
    whole = out.host()
    compare_gemm(a, b, whole, accumulation(schedules[-1])).raise_if_wrong()
    for rows in range(1, 130):
        some = DeviceArray.of(blank((rows, 72), "bf16"))
        tw.matmul(DeviceArray.of(a[:rows]), there[1], some, **WAYS[way])
        CUDA_DRIVER.synchronize()
        np.testing.assert_array_equal(some.host().view(np.uint16), whole[:rows].view(np.uint16), f"{rows}")
    assert {schedule.promote * schedule.block_k for schedule in schedules} == {512}


@pytest.mark.parametrize("way", ["batch-invariant", "batch-invariant, split"])
@pytest.mark.parametrize(("k", "letter"), [(4096, "n"), (4099, "n"), (4096, "t")])
def test_a_row_has_its_bits_whatever_the_number_of_tiles(
    way: str, k: int, letter: str, schedules: list[Schedule]
) -> None:
    a, b = drawn(1, (4096, k), "bf16", letter), drawn(2, (k, 1024), "bf16", "t")
    second = DeviceArray.of(b)
    found = []
    for rows in (4096, 1000, 256, 64, 3):
        out = DeviceArray.of(blank((rows, 1024), "bf16"))
        tw.matmul(DeviceArray.of(laid_out(a[:rows], letter)), second, out, **WAYS[way])
        CUDA_DRIVER.synchronize()
        found.append(out.host())
    part = compare_gemm(a[:40], b, found[0][:40], accumulation(schedules[0]))
    part.raise_if_wrong()
    for some in found[1:]:
        np.testing.assert_array_equal(some.view(np.uint16), found[0][: len(some)].view(np.uint16))
    assert len({(one.atom.instruction, one.promote * one.block_k) for one in schedules}) == 1
