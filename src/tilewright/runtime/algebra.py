"""Kernels run on integers modulo a prime, where sums are exact and their order does not matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tilewright.argument_checks import is_integer
from tilewright.calls import launches
from tilewright.checking.compare import ElementComparison
from tilewright.errors import LaunchError, shown
from tilewright.runtime.backends import arch_named
from tilewright.runtime.kernel import Bound, Kernel
from tilewright.runtime.reference import HostArray, PreparedReference
from tilewright.runtime.specimens import in_order, with_arrays
from tilewright.targets.reference.exponentials import PAIRS
from tilewright.targets.reference.residues import MODULO_PRIME, PRIME
from tilewright.targets.target import REFERENCE


@dataclass(frozen=True)
class AlgebraComparison(ElementComparison):
    """The result of comparing two kernels as polynomials of their arrays.

    Args:
        wrong: number of elements that differ, or that one kernel did not write.
        size: number of elements compared.
        name: the first array with a wrong element.
        index: the index of that element.
    """

    def __str__(self) -> str:
        if self.ok:
            return f"equal as algebra: {self.size} elements"
        return f"not equal as algebra: {self.wrong} of {self.size} elements differ, the first at {self.where}"


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
    quotients are taken modulo the prime, so neither rounding nor the order of sums changes a result.
    Conversions between floats keep a number as it is.  A function that is not a polynomial becomes an
    arbitrary function of its argument.  Two kernels that compute the same polynomials give the same residues.
    If a term is missing, doubled or taken from elsewhere, the residues differ, with a chance of about one in
    ``2**60`` to miss it.

    Args:
        kernel: a kernel, or the result of `Kernel.bind`.
        arguments: as for a launch.  Arrays of floats and `tw.like` values are specimens: their contents do
            not matter, and their residues follow from the parameter's name, the shape and ``seed``.  Arrays
            of integers keep their values.
        seed: seed of the residues.
        given: residues by parameter instead of random ones: arrays of ``numpy.uint64``.
        exponentials: whether ``exp(a + b)`` equals ``exp(a) * exp(b)``.  Averages weighted by exponentials
            need this, as in `tw.attention`.  Each float is then a pair of integers modulo two primes of 32
            and 31 bits: one for values and one for exponents.  A wrong element is missed with a chance of one
            in ``2**32``.
        target: the target whose warps and limits the kernel is traced for, as in `check`.
        arch: the target's architecture, e.g. ``"sm_90a"``.
        named: arguments and constants by name.

    Returns:
        The arrays that the kernel writes, by parameter, of 64-bit integers.  An element of ``2**61 - 1`` or
        more was not written.  With ``exponentials`` the integers are modulo 4294967087.

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
    if not is_integer(seed) or seed < 0:
        raise LaunchError(f"seed={shown(seed)}", "0")
    if isinstance(kernel, Bound):
        bound, rest = kernel, named
    elif isinstance(kernel, Kernel):
        bound, rest = kernel._split(named)
    else:
        raise LaunchError(
            f"{shown(kernel)} is no kernel; pass a function decorated with @tw.kernel, or its .bind(…)"
        )
    filled = tuple(with_arrays(in_order(bound.program, arguments, rest)))
    written_for = arch_named(target, arch)
    prepared = cast("PreparedReference", bound._prepare(filled, REFERENCE.name, written_for).prepared)
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
    """Compare the polynomials that two kernels compute of their arrays, by their `residues`.

    Args:
        one: a kernel.
        other: another kernel, which takes the same arguments.
        arguments: the arguments of both, as for `residues`.
        seed: seed of the residues.
        given: residues by parameter, as for `residues`.
        exponentials: as for `residues`.
        target: the target whose warps and limits both are traced for.
        arch: the target's architecture.
        named: arguments and constants by name.

    Returns:
        The number of elements that differ, and the first of them; ``raise_if_wrong()`` makes that an error.

    Raises:
        LaunchError: the arguments do not fit, or the kernels write different arrays.
        DTypeError: as `residues`.
        LegalityError: as `residues`.

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
    return compared(residues(one, *arguments, **words), residues(other, *arguments, **words))


def compared(one: dict[str, HostArray], other: dict[str, HostArray]) -> AlgebraComparison:
    """Compare two results of `residues`.

    Raises:
        LaunchError: the arrays have different names or shapes.
    """
    shapes = [{name: array.shape for name, array in found.items()} for found in (one, other)]
    if shapes[0] != shapes[1]:
        raise LaunchError(
            f"one kernel writes {shapes[0]} and the other {shapes[1]}; give two that write the same"
        )
    differ: dict[str, HostArray] = {}
    for name, array in one.items():
        unwritten = array >= PRIME if array.dtype == np.uint64 else False
        differ[name] = (array != other[name]) | unwritten
    size = sum(array.size for array in differ.values())
    for name, wrong in differ.items():
        if wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            return AlgebraComparison(sum(int(w.sum()) for w in differ.values()), size, name, index)
    return AlgebraComparison(0, size)
