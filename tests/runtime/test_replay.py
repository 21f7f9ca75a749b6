"""GPU calls like an earlier call are launched on their own arrays without further checks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops import (
    attention,
    attention_backward,
    col2im,
    complex_matmul,
    einsum,
    gated_matmul,
    gemm_chain,
    grouped,
    matmul,
    reduced_matmul,
    scaled,
)
from tilewright.runtime import gpu_memory, recent
from tilewright.runtime.binding import NumberSlot, NumberWriter
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.device import PreparedCuda
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.runtime.kernel import Bound

from .fake_gpu import Driver

pytestmark = pytest.mark.in_turns(3)

STREAM = 77
LIBRARY = str(Path(tw.__file__).parent)
OPERATIONS = (
    attention,
    attention_backward,
    col2im,
    complex_matmul,
    einsum,
    gated_matmul,
    gemm_chain,
    grouped,
    matmul,
    reduced_matmul,
    scaled,
)


class Case(NamedTuple):
    """An operation on arrays of some shapes.

    Args:
        call: takes the arrays, the result last, and named arguments.
        shapes: shapes of the arrays.
        element: dtype of all arrays.
        integers: indices of the arrays that are i32 instead.
        launches: number of launches.
        most: most functions that a known call may enter; a known call of `matmul` enters 18.
    """

    call: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    element: tw.DType = tw.f16
    integers: tuple[int, ...] = ()
    launches: int = 1
    most: int = 26


SQUARES = ((40, 40),) * 3
LARGE = ((1024, 1024),) * 3
FACTORS = ((40, 64), (64, 48), (48, 64), (40, 64))

CASES = {
    "matmul": Case(lambda a, b, out, **how: tw.matmul(a, b, out=out, **how), SQUARES, most=20),
    "activation": Case(
        lambda a, b, out, **how: tw.matmul(a, b, out=out, activation="relu", **how), SQUARES, most=22
    ),
    "halves": Case(
        lambda a, b, out, **how: tw.matmul(a, b, out=out, precision="f32", **how),
        LARGE,
        tw.f32,
        launches=2,
        most=41,
    ),
    "attention": Case(lambda q, k, v, out, **how: tw.attention(q, k, v, out=out, **how), ((40, 64),) * 4),
    "chain": Case(
        lambda a, b, c, out, **how: tw.gemm_chain(a, b, c, out=out, activation="relu", **how), FACTORS
    ),
    "chain in two": Case(
        lambda a, b, c, out, **how: tw.gemm_chain(a, b, c, out=out, fused=False, **how),
        FACTORS,
        launches=2,
        most=46,
    ),
    "complex": Case(
        lambda a, b, out, **how: tw.complex_matmul(a, b, out=out, alpha=2j, **how), SQUARES, tw.c64
    ),
    "matmul of complex numbers": Case(
        lambda a, b, out, **how: tw.matmul(a, b, out=out, **how), SQUARES, tw.c64
    ),
    "complex behind planes": Case(
        lambda a, b, out, **how: tw.complex_matmul(a, b, out=out, precision="tf32", **how),
        LARGE,
        tw.c64,
        launches=2,
        most=43,
    ),
    "complex in planes": Case(
        lambda *parts, **how: tw.complex_matmul(parts[:2], parts[2:4], out=parts[4:], **how),
        SQUARES * 2,
        most=34,
    ),
    "groups": Case(
        lambda a, b, ends, out, **how: tw.grouped_matmul(a, b, ends, out, **how),
        ((40, 40), (3, 40, 40), (3,), (40, 40)),
        integers=(2,),
    ),
    "scaled": Case(lambda a, b, out, **how: tw.scaled_mm(a, b, out, scale_a=2.0, **how), SQUARES),
    "einsum": Case(lambda a, b, out, **how: tw.einsum("mk,nk->mn", a, b, out, **how), SQUARES),
    "col2im": Case(
        lambda y, out, **how: tw.col2im(y, out=out, spatial=(1, 2), filter=(2, 2), **how),
        ((32, 24), (2, 5, 5, 6)),
    ),
    "gated": Case(lambda a, b, c, out, **how: tw.gated_matmul(a, b, c, out, **how), ((40, 40),) * 4),
    "reduction": Case(
        lambda a, b, out, **how: tw.reduced_matmul(a, b, "max", out=out, **how), (*SQUARES[:2], (40,))
    ),
}


@pytest.fixture
def forgotten(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A GPU, with empty caches before and after the test."""
    monkeypatch.setattr(gpu_memory._idle, "held", {})
    _forget()
    yield gpu
    _forget()


def _forget() -> None:
    """Forget prepared launches, which use one test's driver."""
    for known in list(recent._entered._values.values()):
        recent._let_go(known)
    for operation in OPERATIONS:
        operation._PLANS.forget()


class Lying:
    """Host memory that claims to be on GPU 0."""

    index, driver = 0, CUDA_DRIVER

    def __init__(self, size_bytes: int, offset: int = 0) -> None:
        self.held = np.zeros(size_bytes + 256, np.uint8)
        self.address = -(-self.held.ctypes.data // 128) * 128 + offset


def array(shape: tuple[int, ...], element: tw.DType, offset: int = 0) -> DeviceArray:
    """Return an array that begins a given number of bytes after a multiple of 128."""
    dense = np.empty(shape, element.numpy)
    memory: Any = Lying(dense.nbytes, offset)
    return DeviceArray(memory, shape, dense.strides, element)


def arrays(case: Case) -> list[DeviceArray]:
    elements = (tw.i32 if at in case.integers else case.element for at in range(len(case.shapes)))
    return [array(shape, element) for shape, element in zip(case.shapes, elements, strict=True)]


def addresses(given: Sequence[DeviceArray]) -> set[int]:
    return {one.memory.address for one in given}


@contextmanager
def entered() -> Iterator[list[Any]]:
    """Record the code of each library function that is entered meanwhile."""
    found: list[Any] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(LIBRARY):
            found.append(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", CASES)
def test_a_call_that_is_known_is_not_looked_at_again(name: str, forgotten: Driver) -> None:
    case = CASES[name]
    first, second = arrays(case), arrays(case)
    case.call(*first, stream=STREAM)
    case.call(*second, stream=STREAM)  # on other addresses it takes memory, and encodes maps
    before = len(forgotten.launched)
    with entered() as functions:
        case.call(*first, stream=STREAM)
    names = [function.co_name for function in functions]
    assert Bound.planned.__code__ not in functions, "planned again"
    assert len(names) <= case.most, f"{len(names)} functions: {', '.join(names)}"
    made = forgotten.launched[before:]
    assert [one.stream for one in made] == [STREAM] * case.launches


@pytest.mark.parametrize("name", CASES)
def test_a_call_that_is_known_launches_on_its_own_arrays(
    name: str, forgotten: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    first, second = arrays(case), arrays(case)
    launch, found = PreparedCuda.launch, set[int]()

    def noted(self: PreparedCuda, arguments: Any, pointers: Sequence[int], stream: Any) -> None:
        found.update(pointers)
        launch(self, arguments, pointers, stream)

    monkeypatch.setattr(PreparedCuda, "launch", noted)
    case.call(*first, stream=STREAM)
    for given, others, stream in ((second, first, STREAM), (first, second, STREAM + 1)):
        found.clear()
        case.call(*given, stream=stream)
        assert {one.stream for one in forgotten.launched[-case.launches :]} == {stream}
        assert addresses(given) <= found
        assert not addresses(others) & found
    with pytest.raises(tw.LaunchError, match="share memory"):
        case.call(*first[:-1], overlapping(case, first), stream=STREAM)


def overlapping(case: Case, given: Sequence[DeviceArray]) -> DeviceArray:
    """Return a result that begins at the address of the first array."""
    return DeviceArray(given[0].memory, case.shapes[-1], given[-1].strides, case.element)


def test_what_lies_between_two_products_is_scratch_memory_of_the_stream(
    forgotten: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for the first call and for known calls; memory of a graph is not used by others."""
    case, launched = CASES["chain in two"], list[tuple[list[int], Any]]()
    launch = PreparedCuda.launch

    def noted(self: PreparedCuda, arguments: Any, pointers: Sequence[int], stream: Any) -> None:
        launched.append(([*pointers], stream))
        launch(self, arguments, pointers, stream)

    monkeypatch.setattr(PreparedCuda, "launch", noted)
    monkeypatch.setattr(DeviceArray, "empty", lambda *given: pytest.fail("the middle is a new array"))
    between = dict[int, int]()
    streams = (STREAM, STREAM, STREAM + 1, STREAM + 2)
    forgotten.capturing.add(STREAM + 2)
    for stream in streams:
        launched.clear()
        a, b, c, out = given = arrays(case)
        case.call(*given, stream=stream)
        (first, one), (second, other) = launched
        assert one == other == stream
        assert first[:2] == [a.memory.address, b.memory.address]
        assert second[1:] == [c.memory.address, out.memory.address]
        assert first[2] == second[0], "the second reads what the first wrote"
        assert first[2] in forgotten.memory, "which is the driver's"
        assert between.setdefault(stream, first[2]) == first[2], "kept for the stream"
    assert len({*between.values()}) == len({*streams})
    kept = [one.address for memory in gpu_memory._idle.held.values() for one in memory]
    assert sorted(kept) == sorted(between[stream] for stream in (STREAM, STREAM + 1))
    assert [one.address for one in gpu_memory._in_graphs.held[-1:]] == [between[STREAM + 2]]


@pytest.mark.parametrize("at", range(4))
def test_what_is_no_pair_is_refused_though_an_array_like_its_first_is_known(
    at: int, forgotten: Driver
) -> None:
    def call(*given: Any) -> None:
        tw.complex_matmul(*given[:3], out=given[3], stream=STREAM)

    given: list[Any] = [array((40, 40), tw.c64) for _ in range(4)]
    call(*given)
    given[at] = (given[at], None)
    name = ("a", "b", "c", "out")[at]
    with pytest.raises(tw.LaunchError, match=rf"argument {name}\[1\]: .*NoneType is not an array"):
        call(*given)
    assert len(forgotten.launched) == 1


def test_what_lies_otherwise_is_looked_at(forgotten: Driver) -> None:
    case = CASES["chain"]
    a, b, c, out = arrays(case)
    case.call(a, b, c, out, stream=STREAM)
    aside, across = array(FACTORS[0], tw.f16, 8), array(FACTORS[0][::-1], tw.f16).T
    for given in ((aside, b, c, out), (across, b, c, out)):
        with entered() as functions:
            case.call(*given, stream=STREAM)
        assert Bound.planned.__code__ in functions


def test_a_repeated_call_of_several_launches_asks_only_its_arrays_for_a_stream(forgotten: Driver) -> None:
    """Its other arguments have no stream, and arrays without a framework have none."""
    a, b = (array((1031, 1999), tw.f16), array((1999, 1021), tw.f16))
    for _ in range(4):
        before = len(forgotten.launched)
        tw.matmul(a, b, array((1031, 1021), tw.f16), alpha=0.5, activation="relu")
        assert len(forgotten.launched) == before + 2


@pytest.mark.parametrize("element", [tw.f32, tw.f64])
def test_floats_are_written_the_short_way_as_ever(element: tw.DType) -> None:
    number = NumberSlot(0, "alpha", element, 8)
    values = [
        0.1,
        -0.0,
        0.0,
        1 / 3,
        3e38,
        float("inf"),
        1.5 * 2.0**-149,
        0.6 * 2.0**-149,
        2.0**24 + 1,
        16777217.5,
    ]
    writer, short, long = NumberWriter(number), bytearray(16), bytearray(16)
    for value in values:
        writer.write(short, (value,))
        number.write(long, (value,))
        assert short == long
    for lost in (1e300, -1e39, 2.0**-150) if element == tw.f32 else ():
        for _ in range(2):
            with pytest.raises(tw.LaunchError, match=r"becomes (infinite|0) in f32"):
                writer.write(short, (lost,))
    for _ in range(2):  # what could not be written is not taken for written
        with pytest.raises(tw.LaunchError, match="alpha='one' must be a number"):
            writer.write(short, ("one",))


def test_only_the_maps_of_arrays_that_moved_are_written_again(forgotten: Driver) -> None:
    """Each launch has the maps of its own arrays, whichever of them have new addresses."""
    case, rng = CASES["attention"], np.random.default_rng(3)
    pools = [[array(shape, case.element) for _ in range(3)] for shape in case.shapes]
    case.call(*(pool[0] for pool in pools), stream=STREAM)
    (known,) = attention._PLANS._plans._values.values()
    buffer = known.launches[0].prepared._first
    for _ in range(40):
        given = [pool[rng.integers(3)] for pool in pools]
        case.call(*given, stream=STREAM)
        wanted = [given[at].memory.address for at, _, _ in buffer._maps]
        found = [
            int.from_bytes(buffer._bytes[offset : offset + 8], sys.byteorder) for _, offset, _ in buffer._maps
        ]
        assert wanted
        assert found == wanted
        assert forgotten.launched[-1].words[0] in addresses(given)
