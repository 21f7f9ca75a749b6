"""What is easily written wrong is told with what was meant."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw

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
    """An array that other frameworks may take, and that has nothing else."""

    def __dlpack__(self, **options):
        return A.__dlpack__(**options)

    def __dlpack_device__(self):
        return A.__dlpack_device__()


TOLD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "an undeclared number": (
        lambda: scaled(X, 2.0, tile=32, target="reference"),
        tw.LaunchError,
        (
            "kernel scaled: alpha=2.0 is a number, but alpha is a parameter for an array; declare it as a "
            "number with @tw.kernel(alpha=tw.f32), or make it a constant, which is given by keyword only"
        ),
    ),
    "an undeclared integer": (
        lambda: scaled(X, 2, tile=32, target="reference"),
        tw.LaunchError,
        "declare it as a number with @tw.kernel(alpha=int)",
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
        "matmul: beta=1.0 multiplies neither c nor out; nearest legal choice: c=",
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
    "a seed below 0": (
        lambda: tw.testing.philox([1], -1),
        tw.LaunchError,
        "philox: seed=-1; nearest legal choice: 0",
    ),
    "a kernel of a class": (lambda: tw.kernel(dict), TypeError, "a kernel is made of a function"),
    "a kernel of a built-in": (
        lambda: tw.kernel(print),
        TypeError,
        "a kernel is made of a function",
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
