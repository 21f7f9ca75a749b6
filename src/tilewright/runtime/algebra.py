"""Kernels as algebra: what they compute of integers modulo a prime, where the order of sums means nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tilewright.calls import launches
from tilewright.errors import LaunchError, WrongResultError, shown
from tilewright.runtime.backends import arch_named
from tilewright.runtime.kernel import Bound, Kernel
from tilewright.runtime.reference import HostArray, PreparedReference
from tilewright.runtime.specimens import in_order, with_arrays
from tilewright.targets.reference.exponentials import PAIRS
from tilewright.targets.reference.residues import MODULO_PRIME, PRIME
from tilewright.targets.target import REFERENCE


@dataclass(frozen=True)
class AlgebraComparison:
    """Whether two kernels are the same polynomial of their arrays.

    Args:
        wrong: elements that differ, or that one of them has not written.
        size: of how many.
        name: of the first array with such an element.
        index: the first such element's place in it.
    """

    wrong: int
    size: int
    name: str = ""
    index: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every element is the same."""
        return not self.wrong

    def raise_if_wrong(self) -> None:
        """Raise if an element differs.

        Raises:
            WrongResultError: it does; the message names the first one.
        """
        if not self.ok:
            raise WrongResultError(str(self))

    def __str__(self) -> str:
        if self.ok:
            return f"equal as algebra: {self.size} elements"
        where = f"{self.name}[{', '.join(map(str, self.index))}]"
        return f"not equal as algebra: {self.wrong} of {self.size} elements differ, the first at {where}"


@launches
def residues(
    kernel: Any,
    *arguments: Any,
    seed: int = 0,
    given: Mapping[str, Any] | None = None,
    exponentials: bool = False,
    target: str | None = None,
    arch: str | None = None,
    **named: Any,
) -> dict[str, HostArray]:
    """Run a kernel on random integers modulo ``2**61 - 1`` instead of floats, and return its results.

    The kernel runs on the reference, operation by operation, as it is scheduled.  Sums, products and
    quotients are those of the integers modulo the prime, so that neither rounding nor the order of sums
    changes anything; conversions between floats keep a number as it is; functions that are no polynomials are
    some function of their argument.  Two kernels that compute the same polynomials give the same residues;
    where a term is missing, doubled or taken from elsewhere, they differ but for a chance of about one in
    ``2**60``.

    Args:
        kernel: a kernel, or what `Kernel.bind` has made of it.
        arguments: as for a launch; arrays of floats and `tw.like` values are specimens, whose contents mean
            nothing: their residues follow from the parameter's name, the shape and ``seed``.  Arrays of
            integers are taken as they are.
        seed: of the residues.
        given: residues by parameter, where they are not to be random: arrays of ``numpy.uint64``.
        exponentials: whether ``exp(a + b)`` is to be ``exp(a) * exp(b)``, as averages weighted by
            exponentials need it, those of `tw.attention`.  Floats are then pairs of integers modulo two
            primes of 32 and 31 bits, one to compute with and one for exponents; a difference is missed with a
            chance of one in ``2**32`` for each element that would be wrong.
        target: whose warps and limits the kernel is traced for, as `check` has it.
        arch: the target's architecture, e.g. ``"sm_90a"``.
        named: arguments and constants by name.

    Returns:
        The arrays that the kernel writes, by parameter, of 64-bit integers; what is ``2**61 - 1`` or more has
        not been written.  With ``exponentials`` they are modulo 4294967087.

    Raises:
        LaunchError: the arguments do not fit the kernel.
        DTypeError: complex or packed floats, or bits of a float taken as an integer.
        LegalityError: the kernel breaks rules that hold on every target.

    Example:
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="K N", C="M N")
        ... def product(A, B, C):
        ...     for m, n in tw.tiles(C):
        ...         acc = tw.zeros(dtype=tw.f32)
        ...         for k in tw.steps(A.shape[1]):
        ...             acc += A[m, k] @ B[k, n]
        ...         C[m, n] = acc
        >>> given = tw.like("f16", 70, 90), tw.like("f16", 90, 50), tw.like("f16", 70, 50)
        >>> split = tw.Schedule(tw.atoms.MMA_F16, (32, 32, 16), staging="cp_async", stages=2, split_k=3)
        >>> one = tw.testing.residues(product, *given)["C"]
        >>> other = tw.testing.residues(product, *given, schedule=split)["C"]
        >>> bool((one == other).all()), one.dtype.name, one.shape
        (True, 'uint64', (70, 50))
    """
    bound, rest = _bound(kernel, named)
    filled = tuple(with_arrays(in_order(bound.program, arguments, rest)))
    written_for = arch_named(target, arch)
    prepared = cast("PreparedReference", bound._prepare(filled, REFERENCE.name, written_for))
    return prepared.residues(filled, seed, given or {}, PAIRS if exponentials else MODULO_PRIME)


@launches
def compare_algebra(
    one: Any,
    other: Any,
    *arguments: Any,
    seed: int = 0,
    given: Mapping[str, Any] | None = None,
    exponentials: bool = False,
    target: str | None = None,
    arch: str | None = None,
    **named: Any,
) -> AlgebraComparison:
    """Compare two kernels as polynomials of their arrays, by their `residues`.

    Args:
        one: a kernel.
        other: another one, which takes the same arguments.
        arguments: as for `residues`, and for both of them.
        seed: of the residues.
        given: residues by parameter, as `residues` has it.
        exponentials: likewise.
        target: whose warps and limits both are traced for.
        arch: the target's architecture.
        named: arguments and constants by name.

    Returns:
        How many elements differ, and which is the first; ``raise_if_wrong()`` makes that an error.

    Raises:
        LaunchError: the arguments do not fit, or the kernels write other arrays.
        DTypeError: as `residues`.
        LegalityError: likewise.

    Example:
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def expanded(X, Y, *, by):
        ...     n = tw.block_index(tw.ceil_div(X.shape[0], 64))
        ...     x = tw.load(X.tile((64,), (n,)).partition((32,)))
        ...     tw.copy(x * x + by * x, Y.tile((64,), (n,)))
        >>> @tw.kernel(X="N", Y="N")
        ... def factored(X, Y, *, by):
        ...     n = tw.block_index(tw.ceil_div(X.shape[0], 64))
        ...     x = tw.load(X.tile((64,), (n,)).partition((32,)))
        ...     tw.copy((x + by) * x, Y.tile((64,), (n,)))
        >>> given = tw.like("f32", 100), tw.like("f32", 100)
        >>> print(tw.testing.compare_algebra(expanded, factored, *given, by=0.1))
        equal as algebra: 100 elements
        >>> print(tw.testing.compare_algebra(expanded.bind(by=2), factored.bind(by=3), *given))
        not equal as algebra: 100 of 100 elements differ, the first at Y[0]
    """
    words: dict[str, Any] = {
        "seed": seed,
        "given": given,
        "exponentials": exponentials,
        "target": target,
        "arch": arch,
        **named,
    }
    found = [residues(kernel, *arguments, **words) for kernel in (one, other)]
    return compared(*found)


def compared(one: dict[str, HostArray], other: dict[str, HostArray]) -> AlgebraComparison:
    """Compare what `residues` has given.

    Raises:
        LaunchError: arrays of other names or shapes.
    """
    shapes = [{name: array.shape for name, array in found.items()} for found in (one, other)]
    if shapes[0] != shapes[1]:
        raise LaunchError(
            f"one kernel writes {shapes[0]} and the other {shapes[1]}; give two that write the same"
        )
    differ = {name: (one[name] != other[name]) | _unwritten(one[name]) for name in one}
    size = sum(array.size for array in differ.values())
    for name, wrong in differ.items():
        if wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            return AlgebraComparison(sum(int(w.sum()) for w in differ.values()), size, name, index)
    return AlgebraComparison(0, size)


def _unwritten(array: HostArray) -> HostArray:
    return array >= PRIME if array.dtype == np.uint64 else np.zeros(array.shape, bool)


def _bound(kernel: Any, named: dict[str, Any]) -> tuple[Bound, dict[str, Any]]:
    """A kernel with its constants, and what of the names are arguments.

    Raises:
        LaunchError: no kernel.
    """
    if isinstance(kernel, Bound):
        return kernel, named
    if isinstance(kernel, Kernel):
        return kernel._split(named)
    raise LaunchError(f"{shown(kernel)} is no kernel; give what @tw.kernel has made, or its .bind(…)")
