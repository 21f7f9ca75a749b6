"""Messages of common mistakes say what to write instead."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random

import numpy as np
import pytest

import tilewright as tw
from tilewright.calls import is_ours

A = np.ones((8, 8), np.float32)
X = np.ones(32, np.float32)


@tw.kernel(X="N")
def scaled(X, alpha, *, tile):
    part = X.tile((tile,), (tw.block_index(tw.ceil_div(X.shape[0], tile)),)).partition((32,))
    tw.copy(tw.load(part) * alpha, part)


@tw.kernel(X="N")
def moved(X):
    part = X.tile((32,), (0,)).partition((32,))
    tw.copy(tw.load(part), part)


@tw.kernel(X="N")
def misspelt(X):
    tw.copy(X.tile((32,), (0,)), X.tile((32,), (0,)), thread=(32,))


@tw.kernel(X="N")
def absent(X):
    tw.coppy(X, X)


class OnlyDLPack:
    """An array that supports only DLPack."""

    def __dlpack__(self, **options):
        return A.__dlpack__(**options)

    def __dlpack_device__(self):
        return A.__dlpack_device__()


TOLD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "an undeclared number": (
        lambda: scaled(X, 2.0, tile=32, target="reference"),
        tw.LaunchError,
        (
            "kernel scaled: alpha=2.0 is a number, and the parameter alpha takes an array; declare a number "
            "with @tw.kernel(alpha=tw.f32), or make alpha a keyword-only constant"
        ),
    ),
    "an undeclared integer": (
        lambda: scaled(X, 2, tile=32, target="reference"),
        tw.LaunchError,
        "declare a number with @tw.kernel(alpha=int)",
    ),
    "a constant misspelt": (
        lambda: scaled.bind(tlie=32),
        tw.LaunchError,
        "kernel scaled: unknown constant tlie; did you mean 'tile'?",
    ),
    "a target misspelt": (
        lambda: tw.matmul(A, A, target="cdua"),
        tw.LaunchError,
        "unknown target 'cdua'; choose one of reference, cpu, cuda, hip; did you mean 'cuda'?",
    ),
    "an architecture misspelt": (
        lambda: moved.compile(tw.like("f32", 32), target="cuda", arch="sm90a"),
        tw.LaunchError,
        "did you mean 'sm_90a'?",
    ),
    "a dtype misspelt": (
        lambda: tw.like("flaot16", 8),
        tw.DTypeError,
        "unknown dtype 'flaot16'; nearest: float16",
    ),
    "a way to multiply misspelt": (
        lambda: tw.matmul(A, A, precision="tf23"),
        tw.LaunchError,
        "precision='tf23'; choose one of exact, tf32, f32, f16; did you mean 'tf32'?",
    ),
    "an activation in another case": (
        lambda: tw.matmul(A, A, activation="Gelu"),
        tw.LaunchError,
        "silu, sigmoid, tanh; did you mean 'gelu'?",
    ),
    "a derivative in another case": (
        lambda: tw.einsum("mk,kn->mn", A, A, multiply=A, derivative="Gelu"),
        tw.LaunchError,
        "; did you mean 'gelu'?",
    ),
    "a schedule by name": (
        lambda: tw.matmul(A, A, schedule="fast"),
        tw.LaunchError,
        "matmul(schedule='fast'): schedule must be a Schedule or None",
    ),
    "an activation that is not known": (
        lambda: tw.matmul(A, A, activation="gelu_erf"),
        tw.LaunchError,
        "activation='gelu_erf'; choose one of relu, gelu, gelu_tanh",
    ),
    "a factor that is no number": (
        lambda: tw.matmul(A, A, alpha="2"),
        tw.LaunchError,
        "matmul(alpha='2'): alpha must be a number",
    ),
    "a factor of nothing": (
        lambda: tw.matmul(A, A, beta=1.0),
        tw.LaunchError,
        "matmul: beta=1.0 needs c or out, and neither is given; nearest legal choice: c=",
    ),
    "keys that are not there": (
        lambda: tw.attention(A, None, A),
        tw.LaunchError,
        "attention, argument k: builtins.NoneType is not an array",
    ),
    "a factor that is not there": (
        lambda: tw.complex_matmul((A, A), None),
        tw.LaunchError,
        "complex_matmul, argument b: builtins.NoneType is not an array",
    ),
    "something unhashable for a product": (
        lambda: tw.matmul(A, A, np.empty_like(A), target=["cpu"]),
        tw.LaunchError,
        "matmul(target=['cpu']): target must be a string or None",
    ),
    "a kernel of a number": (
        lambda: tw.kernel(3),
        tw.LaunchError,
        "kernel(function=3): function must be a function",
    ),
    "random bits of a place before the first": (
        lambda: tw.testing.philox([-1], 1),
        tw.LaunchError,
        "philox: index=[-1]; nearest legal choice: integers from 0 on",
    ),
    "random bits of places that are no array": (
        lambda: tw.testing.philox([[1], [2, 3]], 1),
        tw.LaunchError,
        "philox: index=[[1], [2, 3]] is no array; nearest legal choice: an array of integers from 0 on",
    ),
    "a seed below 0": (
        lambda: tw.testing.philox([1], -1),
        tw.LaunchError,
        "philox: seed=-1; nearest legal choice: 0",
    ),
    "a kernel of a class": (lambda: tw.kernel(dict), TypeError, "the decorator takes a function"),
    "a kernel of a built-in": (
        lambda: tw.kernel(print),
        TypeError,
        "the decorator takes a function",
    ),
    "a parameter declared wrongly": (
        lambda: tw.kernel(Y="N")(lambda X: None),
        TypeError,
        "declares Y, its parameters are X",
    ),
    "a number declared by NumPy": (
        lambda: tw.kernel(alpha=np.float32)(lambda alpha: None),
        TypeError,
        "is neither the names of dimensions, such as 'M K', nor a dtype for a number, nor int",
    ),
    "a keyword misspelt in a kernel": (
        lambda: misspelt.trace(X),
        TypeError,
        "copy() has no parameter 'thread'",
    ),
    "a name misspelt in a kernel": (lambda: absent.trace(X), AttributeError, "did you mean tw.copy?"),
    "an operation outside of a kernel": (
        lambda: tw.copy(A, A),
        tw.TraceError,
        "this belongs inside a kernel: it was called while no kernel is being traced",
    ),
    "arguments left out": (
        lambda: tw.layouts.composition(tw.Layout(4)),
        TypeError,
        "missing 1 required positional argument",
    ),
    "a tile smaller than its warps": (
        lambda: tw.TiledMma(tw.atoms.MMA_F16, (4, 1), tile=(16, 8)),
        tw.LayoutError,
        "nearest legal choice: tile=(64, 8)",
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_was_meant_is_told(name: str) -> None:
    call, error, said = TOLD[name]
    with pytest.raises(error) as caught:
        call()
    assert said in str(caught.value)


def test_a_word_like_none_is_told_all_that_there_are_and_no_guess() -> None:
    with pytest.raises(
        tw.LaunchError, match="precision='f64'; choose one of exact, tf32, f32, f16"
    ) as caught:
        tw.matmul(A, A, precision="f64")
    assert "did you mean" not in str(caught.value)


def test_a_misspelt_keyword_says_which_was_meant() -> None:
    with pytest.raises(TypeError, match=r"did you mean 'threads'\?"):
        misspelt.trace(X)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: tw.testing.Trial(0, 0, 0),
            "bound must be a Bound; Trial is made by the library: bind a kernel",
        ),
        (
            lambda: tw.ck.Checks("x", 0),
            r"rows must be a sequence of Checks; .*: check\(problem\) of an instance",
        ),
        (
            lambda: tw.PreparedLaunch("f", 0, (), ()),
            r"must be a Prepared; .*: kernel\.prepare\(\.\.\.\) gives one",
        ),
        (
            lambda: tw.Schedule(tw.atoms.fma("f32"), (32, 32, 8)).spelled("tiles"),
            "a Schedule has the fields atom, tile, .*; did you mean 'tile'",
        ),
        (lambda: tw.Kernel(0), r"Kernel\(program=0\): program must be a Program; .*: tw\.kernel"),
        (lambda: tw.ir.violations(0), r"violations\(kernel=0\): kernel must be a Kernel; .* trace\(\.\.\.\)"),
        (lambda: tw.like("f32", 3).filled(0), r"rng must be a Generator; .*: np\.random\.default_rng\(0\)"),
        (lambda: tw.Schedule(tw.atoms.fma("f32"), (32, 32, 8)).spelled(1), "field must be a string"),
        (
            lambda: tw.matmul(np.eye(3), np.eye(3), batch_invariant=np.array([1, 2]), target="reference"),
            "batch_invariant must be True or False",
        ),
    ],
)
def test_what_the_library_makes_and_its_methods_look_at_what_they_are_given(
    call: Callable[[], object], said: str
) -> None:
    with pytest.raises(tw.LaunchError, match=said):
        call()


WRONG: tuple[object, ...] = (0, -1, 1.5, "x", None, (), (1, 2), b"x", np.ones(2), object())
"""Arguments that hardly any class takes in every place."""


def made_of_wrong(cls: type) -> Iterator[Callable[[], object]]:
    """Constructions of a class with wrong arguments, and with too few or too many."""
    for value in WRONG:
        for count in range(14):
            yield lambda value=value, count=count: cls(*[value] * count)
    rng = Random(cls.__name__)
    for _ in range(100):
        given = rng.choices(WRONG, k=rng.randrange(1, 9))
        yield lambda given=given: cls(*given)


def used(made: object) -> None:
    """Use any object in common ways: show it, compare it, and read its properties."""
    assert isinstance(repr(made) + str(made), str)
    assert (made == made) in (True, False)
    with suppress(TypeError):
        hash(made)


def is_python_s(error: Exception) -> bool:
    """Whether Python itself refused the number of arguments, before any line of the library ran."""
    return not any(is_ours(frame) for frame, _ in traceback.walk_tb(error.__traceback__))


def public_classes() -> dict[str, type]:
    """Return all classes that authors can name, except errors."""
    spaces = {"tw": tw, **{name: getattr(tw, name) for name in ("ck", "hopper", "ir", "layouts", "testing")}}
    found = {f"{space}.{name}": getattr(of, name) for space, of in spaces.items() for name in of.__all__}
    return {
        name: one
        for name, one in found.items()
        if isinstance(one, type) and not issubclass(one, BaseException)
    }


@pytest.mark.parametrize("name", public_classes())
def test_a_class_made_by_hand_of_wrong_arguments_says_what_is_legal(name: str) -> None:
    cls = public_classes()[name]
    for make in made_of_wrong(cls):
        try:
            used(make())
        except tw.TilewrightError as error:
            assert str(error)  # noqa: PT017 each of hundreds must be readable
        except (TypeError, ValueError) as error:
            assert is_python_s(error), make.__defaults__  # noqa: PT017


def test_there_are_classes_that_the_library_makes() -> None:
    assert {"tw.Tensor", "tw.Bound", "ir.Flow", "ir.Kernel", "testing.Trial", "ck.Checks"} <= {
        *public_classes()
    }


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: tw.Tensor(0), tw.TraceError, r"value must be a Value; .*: a parameter of a kernel is one"),
        (lambda: tw.Tile(0, 0), tw.TraceError, r"must be a TileRecorder; .*: A\[m, k\] of a parameter A"),
        (
            lambda: tw.f32.bytes_of("x"),
            tw.DTypeError,
            r"f32\.bytes_of\(count='x'\): count must be an integer",
        ),
        (lambda: tw.f32.bytes_of(1.5), tw.DTypeError, "count must be an integer"),
        (lambda: tw.ir.Memory("globl"), tw.LayoutError, "'global', 'shared'; did you mean 'global'"),
        (
            lambda: tw.TensorSpec(tw.f16, 2, 1, (), (1, 1), 16, False),
            tw.LayoutError,
            r"an entry for each of the 0 extent_divisors; nearest legal choice: stride_divisors=\(\)",
        ),
        (lambda: tw.TensorSpec(tw.f16, 2, 1, (), (), 16, False), tw.LayoutError, "legal choice: rank=0"),
        (
            lambda: tw.TensorSpec(tw.f16, 2, 1, (0, 4), (1, 1), 16, False),
            tw.LayoutError,
            r"nearest legal choice: extent_divisors=\(1, 4\)",
        ),
        (
            lambda: tw.TensorSpec(tw.f16, 2, 2, (1, 4), (1, 1), 16, False),
            tw.LayoutError,
            "nearest legal choice: unit_dim=None",
        ),
    ],
)
def test_records_and_their_methods_say_what_is_legal(
    call: Callable[[], object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        call()


@pytest.mark.parametrize("dims", [(2, (1, 4), (1, 1), None), (0, (), (), None), (2, (1, 1), (1, 2), 0)])
def test_the_nearest_specs_are_legal(dims: tuple[int, tuple[int, ...], tuple[int, ...], int | None]) -> None:
    rank, extents, strides, unit = dims
    assert tw.TensorSpec(tw.f16, rank, unit, extents, strides, 16, False).rank == rank
