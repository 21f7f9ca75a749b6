"""`scaled_mm`: products of operands of different widths, with scales; its launches and its plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tilewright import dtypes
from tilewright.calls import launches
from tilewright.dtypes import PACKED, DType
from tilewright.errors import LaunchError, shown
from tilewright.ir.legality import literal_obstacle
from tilewright.ops.ending import LateTerms
from tilewright.ops.launching import Call, Launch, LaunchPlan
from tilewright.ops.planning import UPDATED, as_parameter, drop_unread_c, scale_of_c
from tilewright.ops.problem import Problem, posed_with, result_shape
from tilewright.ops.products import RARE, scaled, scaled_by_blocks, scaled_in_groups
from tilewright.ops.rearranged_weights import RearrangedWeights
from tilewright.ops.replay import Done, Located, Replay, called, repeated
from tilewright.ops.results import SCALES
from tilewright.ops.scales import (
    LARGEST,
    OF_GROUPS,
    TINIEST,
    as_blocks,
    as_stored,
    broadcast_scales,
    check_prepass,
    in_groups,
    multiplied_as,
    multiplied_on,
    number_of,
    operand_sized,
    pays_widened,
    pays_widened_groups,
    scaled_dtype,
    shared_rows,
    widens_groups,
    with_block_scales,
)
from tilewright.ops.wanted import (
    NO_DROPOUT,
    Wanted,
    check_derivative,
    check_numbers,
    check_splitting,
    check_words,
    dropout_of,
    said,
)
from tilewright.ops.widening import plan_widened
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.plans import Plans
from tilewright.schedule.schedule import Reduction, Schedule, SplitK
from tilewright.targets.target import TARGETS

ARRAYS = ("a", "b", "out", "scale_a", "scale_b", "bias", "zero_b", "c", "multiply", "residual")
"""The arrays of a call."""

IN_KERNEL = ("a", "b", "scale_a", "scale_b", "bias", "out")
"""The arrays of the kernel, in its order; ``out`` replaces absent arrays, which are not read."""

WITH_GROUPS = ("a", "b", "scale_a", "scale_b", "zero_b", "bias", "out")
"""The arrays of the kernel for weights in groups; scales may replace zero points, or the reverse."""

TABLE_ENTRIES = 16
"""Numbers of a table of 4-bit codes."""

_PLANS: Plans[Replay] = Plans()


class ScaledExtras(NamedTuple):
    """Arguments of `scaled_mm` that `matmul` does not have.

    Args:
        group: number of neighbours along K that share a scale; None: there are no groups.
        prepass: whether operand B is widened in memory first; None: if that is faster.
        table: the numbers of B's 16 codes; empty: the elements of B are numbers.
    """

    group: int | None = None
    prepass: bool | None = None
    table: tuple[float, ...] = ()


@repeated(_PLANS, ARRAYS)
@launches
def scaled_mm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    zero_b: Any = None,
    group: int | None = None,
    table: Sequence[float] | None = None,
    c: Any = None,
    beta: float | None = None,
    bias: Any = None,
    activation: str | None = None,
    multiply: Any = None,
    derivative: str | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    residual: Any = None,
    out_dtype: DType | str | None = None,
    prepass: bool | None = None,
    schedule: Schedule | None = None,
    split_k: SplitK | None = None,
    reduction: Reduction | None = None,
    batch_invariant: bool = False,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``out = activation(scale_a * (a @ b) * scale_b + bias)``, for operands of the same or different widths.

    With all terms it is ``out = dropout(activation(scale_a * (a @ b) * scale_b + beta * c + bias) *
    multiply) + residual``.

    With ``group``, each run of ``group`` neighbours along K in a column of ``b`` has its own scale and zero
    point: ``out = activation(scale_a * (a @ w) + bias)``, where ``w[k, n] = (b[k, n] - zero_b[k // group, n])
    * scale_b[k // group, n]`` is computed in, and rounded to, the dtype of the multiplication.

    Scales may belong to blocks of 128 places along K, or to blocks of 128 places along K by 128 rows or
    columns: then ``out = activation(sum over blocks of scale_a * scale_b * (a @ b) + bias)``.  The sum over a
    block is multiplied by the scales of that block and added to those of the other blocks, in f32.

    The MX formats have groups of 32 neighbours, whose scales are powers of 2 (`f8e8m0`).  For mxfp4, ``b`` is
    `packed` f4e2m1.  Each product of a number and its scale is rounded once, and is exact unless it leaves
    the range of the dtype of the multiplication; the scale 255 is NaN.

    With ``table``, the numbers of ``b`` are ``table[b[k, n]]``, of 4-bit codes.  For NF4, ``table`` is `NF4`,
    and a scale is the largest magnitude of its group, the "absmax".

    One kernel reads the narrower operand in its own dtype, and converts it exactly before the multiplication,
    on Hopper in registers.  If it is faster, a separate kernel converts ``b`` in memory first.  On Hopper
    this happens for thousands of rows of ``a``, and for 4-bit weights in groups from 257 rows on.  On
    processors it happens for groups whose length is no multiple of 8, and from 512 rows on for group lengths
    that only tiles of less than 32 along K divide, e.g. 136.  See ``prepass``.

    Sums are in f32 (i32 for two i8); the rest is computed in f32 and rounded once.

    A result of 8 bits saturates: numbers beyond its range, infinities included, become the nearest number
    that it has.  Integer results are rounded to the nearest integer, ties to even.  Wider results overflow to
    infinity.  NaN in the operands, the scales or the bias gives NaN, or 0 in an integer result.

    Args:
        a: array (..., M, K) of f32, f16, bf16, f8e4m3, f8e5m2, f8e4m3fnuz, f8e5m2fnuz or i8, or a vector
            (K,); of any strides.
        b: array (..., K, N) of one of these, or a vector (K,); of any strides; or `packed` numbers of 4 bits,
            i4, u4 or f4e2m1, of two dimensions, best contiguous along K.  Shapes follow NumPy's rules, as in
            `matmul`.  Different dtypes are multiplied as the wider one, i8 and fp8 as f16; f16 and bf16 are
            not mixed.  Tensor cores of Hopper multiply f8e4m3 and f8e5m2 as they are, alone or mixed, if both
            arrays are contiguous along K.  Matrix cores of AMD's GPUs multiply two arrays of one fp8 dtype as
            they are if they have that dtype.  Other products of fp8 on GPUs, and mixtures of fp8 dtypes on
            processors, are computed as f16.
        out: array to write; default: a new array of the framework of ``a``.
        scale_a: a number, or an array of f32, f16 or bf16: of one element; or with a scale for each row of
            ``a``, of the shape of ``a`` without K or with 1 in the place of K; or with a scale for each row
            and block of K, (..., M, ceil(K / 128)); or for each block of rows and of K, (..., ceil(M / 128),
            ceil(K / 128)).
        scale_b: the same for each column of ``b``; axes of blocks are in the order of the axes of ``b``:
            (..., ceil(K / 128), N) or (..., ceil(K / 128), ceil(N / 128)).  With ``group`` an array (K /
            group, N), also of f8e8m0.
        zero_b: zero points, with ``group``: they are subtracted from the numbers of ``b`` before these are
            scaled.  An array (K / group, N) of f32, f16, bf16, i8 or u8.
        group: number of neighbours along K that share a scale; a divisor of K.
        table: the 16 numbers that the codes of ``b`` stand for, such as `NF4`, rounded to the dtype of the
            multiplication.  Then ``b`` is `packed` u4, with ``group``.
        c: array that is broadcast to the result, of one of the dtypes of ``a``; it may be ``out``.
        beta: a number, as in `matmul`: the factor of ``c``, or of ``out`` if there is no ``c``.
        bias: array (N,) of f32, f16 or bf16, added to each row.
        activation: as in `matmul`.
        multiply: array that is broadcast to the result, as in `matmul`, of one of the dtypes of ``a``.
        derivative: as in `matmul`: multiplies by ``derivative'(multiply)``.
        dropout: as in `matmul`.
        seed: the seed of dropout, as in `matmul`.
        offset: the offset of dropout, as in `matmul`.
        residual: array that is broadcast to the result and added last, of one of the dtypes of ``a``; it may
            be ``out``.
        out_dtype: dtype of a new result, one of those of ``a``; default: the dtype in which operands are
            multiplied, f16 for fp8, and f32 for two i8.
        prepass: whether a separate kernel converts ``b`` in memory before the product.  It needs memory for
            the converted numbers: twice the bytes of ``b``, or four times for numbers of 4 bits.  Default: if
            it is faster, as above.
        schedule: how it is computed; default: chosen for the arrays' shapes and the machine.
        split_k: number of parts of K, as in `matmul`, or ``"auto"``, or, without scales of blocks,
            ``"stream"``. With this or one of the next two arguments the kernel of the product converts ``b``
            unless ``prepass=True``.
        reduction: how the partial sums are added, as in `matmul`.
        batch_invariant: whether the bits of a row must not depend on the number of rows, as in `matmul`.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``out``.

    Raises:
        LaunchError: shapes or devices do not fit, or ``out`` shares memory with an array that is read.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> import ml_dtypes
        >>> import numpy as np
        >>> import tilewright as tw
        >>> a = np.float16([[1, 2], [3, 4]])
        >>> weights = np.array([[1, 0.5], [0, 448]], ml_dtypes.float8_e4m3fn)
        >>> tw.scaled_mm(a, weights, scale_b=np.float32([2, 0.25]), target="reference")
        array([[  2.  , 224.1],
               [  6.  , 448.5]], dtype=float16)
        >>> tw.scaled_mm(a, weights, scale_a=10.0, out_dtype="i8", target="reference")
        array([[ 10, 127],
               [ 30, 127]], dtype=int8)

        Weights of 4 bits, in two groups along K:

        >>> codes = tw.packed(tw.pack([[-8, 7, 1, 2]], tw.i4).T, tw.i4)
        >>> scales = np.float16([[0.5], [2]])
        >>> tw.scaled_mm(np.float16([1, 1, 1, 1]), codes, scale_b=scales, group=2, target="reference")
        array([5.5], dtype=float16)

        Weights of NF4, in groups of 4:

        >>> codes = tw.packed(tw.pack([[0, 15, 7, 15]], tw.u4).T, tw.u4)
        >>> words = {"scale_b": np.float16([[3]]), "group": 4, "table": tw.NF4}
        >>> tw.scaled_mm(np.float16([1, 2, 3, 4]), codes, **words, target="reference")
        array([15.], dtype=float16)

        Weights of mxfp4, of which 32 have the scale 2:

        >>> codes = tw.packed(tw.pack(np.full((1, 32), -1.5), tw.f4e2m1).T, tw.f4e2m1)
        >>> scales = np.full((1, 1), 2, ml_dtypes.float8_e8m0fnu)
        >>> tw.scaled_mm(np.ones((1, 32), np.float16), codes, scale_b=scales, group=32, target="reference")
        array([[-96.]], dtype=float16)
    """
    if isinstance(b, RearrangedWeights):
        if any(one is not None for one in (scale_b, zero_b, group)):
            text = f"scaled_mm: b is {b!r}, which already contain scale_b, zero_b and group"
            raise LaunchError(text, "leave these arguments out")
        b, scale_b, zero_b, group = b.b, b.scale_b, b.zero_b, b.group
    number, scales = _numbers_apart((scale_a, scale_b))
    arrays = (a, b, out, *scales, bias, zero_b, c, multiply, residual)
    dropped, drawn = NO_DROPOUT, NO_DROPOUT.words
    numbers: tuple[Any, ...] = (number,)
    if beta != 0 and (c is not None or beta is not None):  # else c is not read, and the kernel has no beta
        numbers = (number, 1.0 if beta is None else beta)
    if dropout or seed or offset:
        dropped = dropout_of("scaled_mm", dropout, seed, offset)
        numbers, drawn = (*numbers, *dropped.numbers), dropped.words
    entries = _entries(table)
    split = (split_k, reduction, batch_invariant)
    late = (said(beta), derivative, drawn)
    words = (number == 1, activation, out_dtype, schedule, target, group, prepass, entries, *split, *late)

    def first(located: Sequence[Located]) -> Done:
        how = (schedule, target, *split)
        wanted = Wanted(number, beta, activation, "exact", out_dtype, *how, derivative, False, dropped)
        given, extras = dict(zip(ARRAYS, arrays, strict=True)), ScaledExtras(group, prepass, entries)
        return plan_scaled(given, wanted, extras, located).launch(stream)

    return called(_PLANS, arrays, words, numbers, stream, first)


def _entries(table: Sequence[float] | None) -> tuple[float, ...]:
    """The numbers of a table of 4-bit codes; empty without a table."""
    if table is None:
        return ()
    try:
        found = tuple(map(float, table))
    except (TypeError, ValueError, OverflowError):
        found = ()
    if len(found) != TABLE_ENTRIES or not all(map(math.isfinite, found)):
        what = shown(table) if not found else f"{len(found)} numbers, {shown(table)}"
        near = f"{TABLE_ENTRIES} finite numbers, such as tw.NF4"
        raise LaunchError(f"scaled_mm: table is {what}", near)
    return found


def _numbers_apart(scales: tuple[Any, Any]) -> tuple[float, list[Any]]:
    """The product of the scales that are numbers, and the array of each scale, or None for a number."""
    numbers, arrays, product = dict[str, float](), list[Any](), 1.0
    for name, scale in zip(SCALES, scales, strict=True):
        number = None if scale is None else number_of("scaled_mm", name, scale)
        arrays.append(scale if number is None else None)
        if number is not None:
            numbers[name] = number
            product *= number
    fits = TINIEST <= abs(product) <= LARGEST
    if not fits and all(number and math.isfinite(number) for number in numbers.values()):
        beyond, bound = ("overflows", LARGEST) if abs(product) > LARGEST else ("underflows", TINIEST)
        nearest = f"{math.copysign(bound, product)}"
        if all(TINIEST <= abs(number) <= LARGEST for number in numbers.values()):
            nearest = "arrays of one element; the results are multiplied by one after the other"
        raise LaunchError(
            f"scaled_mm: {' times '.join(numbers)} is {product:.4g}, which {beyond} f32", nearest
        )
    return product, arrays


# ---------------------------------------------------------------- the plan


@dataclass(frozen=True)
class Scaling:
    """The elements to which a call's scales belong, and the problem of its arrays.

    Args:
        group: number of neighbours along K that share a scale; None: there are no groups.
        shared: number of rows, and of columns, that share a scale; None: there are no blocks.
        problem: the problem of the arrays.
        late: the constants of the terms after the activation.
        rare: the terms of `RARE` that the call has.
    """

    group: int | None
    shared: tuple[int, int] | None
    problem: Problem
    late: LateTerms
    rare: tuple[str, ...]

    @staticmethod
    def of(call: Call, wanted: Wanted, group: int | None, shared: tuple[int, int] | None) -> Scaling:
        """The scaling of the arrays of a call.

        Raises:
            LaunchError: scales or shapes that do not fit.
        """
        drops = {"dropout"} if wanted.dropped.probability else set()
        rare = tuple(name for name in RARE if name in drops | call.infos.keys())
        apart = OF_GROUPS if group is not None else ()
        infos = {name: info for name, info in call.infos.items() if name not in apart}
        whole = broadcast_scales(infos) if shared is None else with_block_scales(infos)
        return Scaling(group, shared, *posed_with(whole, wanted), rare)

    def seen(self, name: str, call: Call) -> tuple[str, Strided]:
        """Return an argument of the kernel: the name of the call's array, and the kernel's view of it.

        Args:
            name: the parameter.  Another array replaces an absent one, which is not read.
            call: the arrays of the call.
        """
        operands = self.problem.operands
        if self.group is not None and name in OF_GROUPS:
            there = name if name in call.arrays else next(one for one in OF_GROUPS if one in call.arrays)
            return there, Strided(call.arrays[there], as_stored(call.infos[there]))
        if self.shared is not None and name in SCALES:
            if name not in call.arrays:
                return "out", call.seen("out", operands["out"])
            rows = self.shared[SCALES.index(name)]
            return name, call.seen(name, as_blocks(name, operands[operand_sized(name)], rows))
        there = name if name in operands.keys() & call.there else "out"
        return there, call.seen(there, as_parameter(name, operands[there]))


def plan_scaled(
    given: Mapping[str, Any], wanted: Wanted, extras: ScaledExtras, located: Sequence[Located] = ()
) -> LaunchPlan:
    """Check the arguments of `scaled_mm`, and plan its launches.

    Args:
        given: the arrays by the names of its arguments; None for an absent one.
        wanted: the other arguments; ``alpha`` is the product of the scales that are numbers.
        extras: more arguments of the call.
        located: the keys and addresses of the arrays, if the caller has read them.

    Raises:
        LaunchError: shapes, devices or arguments do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    check_words(wanted)
    check_splitting(wanted, "scaled_mm")
    check_derivative("scaled_mm", wanted.derivative, multiplies=given.get("multiply") is not None)
    call = Call.of("scaled_mm", given, located=located)
    beta = scale_of_c(call, wanted.beta)
    kind = scaled_dtype(call.dtypes, wanted)
    depth, (b, packed) = call.infos["a"].shape[-1:], (call.infos["b"].shape, call.infos["b"].dtype)
    is_packed = packed in PACKED and len(b) == 2 and depth != b[:1]
    # The strides of a single byte do not say along which dimension its numbers are neighbours.
    if is_packed and depth == (b[0] * packed.per_byte,) and b[1] % packed.per_byte == 0:
        raise LaunchError(
            f"scaled_mm: K is {depth[0]} in a and {b[0]} in b, and b packs {packed.per_byte} numbers along "
            "N into each byte",
            f"b=tw.packed(bytes, '{packed}', axis=0), along K",
        )
    if extras.table and (packed != dtypes.u4 or extras.group is None):
        what = f"b is {packed}" if packed != dtypes.u4 else "group is None"
        near = "tw.packed(bytes, 'u4')" if packed != dtypes.u4 else f"group={depth[0]}, or a divisor of it"
        raise LaunchError(f"scaled_mm: a table needs codes of u4, in groups, and {what}", near)
    shape = result_shape(call.infos["a"].shape, call.infos["b"].shape, "scaled_mm")
    call.serve(wanted.target)
    call.make("out", shape, kind)
    check_numbers("scaled_mm", dtypes.f32, beta=beta)
    drop_unread_c(call, beta, shape)
    shared = None if in_groups(call.infos, extras.group) else shared_rows(call.infos)
    multiplied, widens = _multiplied(call, wanted, extras, shared)
    for entry in extras.table:
        if (obstacle := literal_obstacle(multiplied, entry)) is not None:
            what, near = obstacle
            raise LaunchError(f"scaled_mm: in table, {what}", near)
    scaling = Scaling.of(call, wanted, extras.group, shared)
    if extras.group is not None and (batch := scaling.problem.batch):
        if extras.prepass:
            raise LaunchError(
                f"prepass=True with batches {batch} that cannot be joined to the rows of a", "prepass=None"
            )
        widens = False
    call.check_apart(updated=UPDATED)
    terms = {name for name in (*SCALES, "zero_b", "bias") if name in call.arrays}
    terms |= {*scaling.rare, *({"alpha"} if wanted.alpha != 1 else ())}
    words: dict[str, Any] = {"multiplied": multiplied, "activation": wanted.activation}
    words |= {"late": scaling.late, "schedule": wanted.how}
    numbers = (wanted.alpha, *((beta,) if "c" in scaling.rare else ()))
    numbers += wanted.dropped.numbers if "dropout" in scaling.rare else ()
    make, names, groups = scaled, [*IN_KERNEL], None
    if scaling.group is not None and widens:  # the prepass also scales the weights
        groups = (scaling.group, {name: scaling.seen(name, call) for name in OF_GROUPS})
        scaling, terms = replace(scaling, group=None), terms - {*OF_GROUPS}
    elif scaling.group is not None:
        make, names, words = scaled_in_groups, [*WITH_GROUPS], {**words, "group": scaling.group}
        words["table"] = extras.table
    elif scaling.shared is not None:
        make, words = scaled_by_blocks, {**words, "shared": scaling.shared}
    kernel = make(len(scaling.problem.batch), scaling.rare).bind(terms=frozenset(terms), **words)
    names += (name for name in scaling.rare if RARE[name])
    in_call, seen = zip(*(scaling.seen(name, call) for name in names), strict=True)
    product = Launch(kernel, seen, in_call, numbers)
    return (
        plan_widened(call, product, groups, extras.table)
        if widens
        else call.plan(product, warns=wanted.schedule is None)
    )


def _multiplied(
    call: Call, wanted: Wanted, extras: ScaledExtras, shared: tuple[int, int] | None
) -> tuple[DType, bool]:
    """The dtype in which operands are multiplied, and whether B is widened to it first."""
    infos, prepass, grouped = call.infos, extras.prepass, extras.group is not None
    multiplied, widens = multiplied_as(infos["a"].dtype, infos["b"].dtype), prepass is True
    if wanted.schedule is None:  # a schedule determines the multiplied dtype
        arch, target = call.machine[0], TARGETS[call.target]
        multiplied = multiplied_on(infos["a"], infos["b"], target, arch)
        if prepass is not None or wanted.how is not None:  # the choice depends on the number of rows
            pass
        elif grouped:
            widens = pays_widened_groups(infos, multiplied, arch.features, target)
            if extras.table and not target.warps:  # panels decode numbers, not codes of a table
                widens = target.machine_code and widens_groups(infos, multiplied)
        elif shared is None:
            widens = pays_widened(infos, multiplied, arch.features)
    if shared is not None and not multiplied.is_float:
        multiplied = dtypes.f16  # f16 products of two i8 are exact, and are added up in f32
    check_prepass(prepass, infos, multiplied, grouped=grouped, in_blocks=shared is not None)
    return multiplied, widens and 0 not in infos["b"].shape  # an empty operand has nothing to widen
