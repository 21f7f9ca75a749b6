"""Plans `scaled_mm`: checks arguments, finds what each scale belongs to, and binds the kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import dtypes
from tilewright.dtypes import PACKED, DType
from tilewright.errors import LaunchError
from tilewright.namespaces import part
from tilewright.ops.ending import LateTerms
from tilewright.ops.launching import Call, Launch, LaunchPlan
from tilewright.ops.planning import (
    check_updated,
    drop_unread_c,
    posed_with,
    scale_of_c,
    seen_as,
    seen_in_kernel,
)
from tilewright.ops.problem import Problem, result_shape
from tilewright.ops.products import RARE, scaled, scaled_by_blocks, scaled_in_groups
from tilewright.ops.replay import Located
from tilewright.ops.scaled import ScaledExtras
from tilewright.ops.scales import (
    OF_GROUPS,
    SCALES,
    as_blocks,
    as_stored,
    beside_operands,
    broadcast_scales,
    check_prepass,
    in_groups,
    multiplied_as,
    multiplied_on,
    operand_sized,
    scaled_dtype,
    shared_rows,
    without_groups,
)
from tilewright.ops.wanted import Wanted, check_derivative, check_numbers, check_splitting, check_words
from tilewright.ops.widening import pays_widened, pays_widened_groups
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.backends import arch_of
from tilewright.runtime.executable import Backend
from tilewright.runtime.frameworks import Strided
from tilewright.targets.target import TARGETS

IN_KERNEL = ("a", "b", "scale_a", "scale_b", "bias", "out")
"""The arrays of the kernel, in its order; ``out`` replaces absent arrays, which are not read."""

WITH_GROUPS = ("a", "b", "scale_a", "scale_b", "zero_b", "bias", "out")
"""The arrays of the kernel for weights in groups; scales may replace zero points, or the reverse."""

WIDENED_FIRST = "tilewright.ops.widening:plan_product"
"""Plans a product with operand B widened in memory first. Imported when the first is planned."""


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
    def of(infos: Mapping[str, ArrayInfo], wanted: Wanted, group: int | None) -> Scaling:
        """The scaling of some arrays.

        Raises:
            LaunchError: groups, blocks or shapes that do not fit.
        """
        drops = {"dropout"} if wanted.dropped.probability else set()
        rare = tuple(name for name in RARE if name in drops | infos.keys())
        if in_groups(infos, group):
            return Scaling(group, None, *posed_with(broadcast_scales(without_groups(infos)), wanted), rare)
        shared = shared_rows(infos)
        whole = broadcast_scales(infos) if shared is None else beside_operands(infos)
        return Scaling(None, shared, *posed_with(whole, wanted), rare)

    @property
    def in_groups(self) -> bool:
        """Whether they belong to groups along K."""
        return self.group is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The arrays of the kernel, in its order."""
        return (*(WITH_GROUPS if self.in_groups else IN_KERNEL), *self.rare_arrays)

    @property
    def rare_arrays(self) -> tuple[str, ...]:
        """The arrays of rare terms."""
        return tuple(name for name in self.rare if RARE[name])

    def present(self, arrays: Mapping[str, Any]) -> tuple[str, ...]:
        """The arrays, with replacements for absent scales or zero points of groups."""
        scale, zero = OF_GROUPS
        instead = {} if not self.in_groups else {scale: zero} if scale not in arrays else {zero: scale}
        return tuple(name if name in arrays else instead.get(name, name) for name in self.names)


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
    kind = scaled_dtype(call.infos, wanted)
    depth, (b, packed) = call.infos["a"].shape[-1:], (call.infos["b"].shape, call.infos["b"].dtype)
    is_packed = packed in PACKED and len(b) == 2 and depth != b[:1]
    # The strides of a single byte do not say along which dimension its numbers are neighbours.
    if is_packed and depth == (b[0] * packed.per_byte,) and b[1] % packed.per_byte == 0:
        raise LaunchError(
            f"scaled_mm: K is {depth[0]} in a and {b[0]} in b, and b packs {packed.per_byte} numbers along "
            f"N into each byte; nearest legal choice: b=tw.packed(bytes, '{packed}', axis=0), along K"
        )
    shape = result_shape(call.infos["a"].shape, call.infos["b"].shape, "scaled_mm")
    backend = call.serve(wanted.target)
    call.make("out", shape, kind)
    check_numbers("scaled_mm", dtypes.f32, beta=beta)
    drop_unread_c(call, beta, shape)
    scaling = Scaling.of(call.infos, wanted, extras.group)
    check_updated(call)
    multiplied, widens = _multiplied(call.infos, scaling, wanted, extras.prepass, backend)
    terms = {name for name in (*SCALES, "zero_b", "bias") if name in call.arrays}
    terms |= {*scaling.rare, *({"alpha"} if wanted.alpha != 1 else ())}
    words: dict[str, Any] = {"multiplied": multiplied, "activation": wanted.activation}
    words |= {"late": scaling.late, "schedule": wanted.how}
    rank, names = len(scaling.problem.batch), scaling.present(call.arrays)
    numbers = (wanted.alpha, *((beta,) if "c" in scaling.rare else ()))
    numbers += wanted.dropped.numbers if "dropout" in scaling.rare else ()
    seen = [_seen(name, call, scaling) for name in names]
    if widens and scaling.group is not None:  # the pass scales weights
        kernel = scaled(0, scaling.rare).bind(terms=frozenset(terms - {*OF_GROUPS}), **words)
        scale = _in_place("scale_b", "out", call, scaling.problem)
        own = (*IN_KERNEL, *scaling.rare_arrays)
        in_order = tuple(scale if name == "scale_b" else _seen(name, call, scaling) for name in own)
        in_call = tuple("out" if name == "scale_b" else name for name in call.stand_ins(own))
        places = {name: WITH_GROUPS.index(name) for name in OF_GROUPS}
        of_groups = {name: (names[at], seen[at]) for name, at in places.items()}
        product = Launch(kernel, in_order, in_call, numbers)
        return part(WIDENED_FIRST)(call, product, (scaling.group, of_groups))  # type: ignore[no-any-return]
    made = scaled
    if scaling.group is not None:
        made, words = scaled_in_groups, {**words, "group": scaling.group}
    elif scaling.shared is not None:
        made, words = scaled_by_blocks, {**words, "shared": scaling.shared}
    kernel = made(rank, scaling.rare).bind(terms=frozenset(terms), **words)
    product = Launch(kernel, tuple(seen), call.stand_ins(names), numbers)
    if widens:
        return part(WIDENED_FIRST)(call, product)  # type: ignore[no-any-return]
    return call.plan(product, warns=wanted.schedule is None)


def _multiplied(
    infos: Mapping[str, ArrayInfo],
    scaling: Scaling,
    wanted: Wanted,
    prepass: bool | None,
    backend: Backend,
) -> tuple[DType, bool]:
    """The dtype in which operands are multiplied, and whether B is widened to it first."""
    multiplied, widens = multiplied_as(infos["a"].dtype, infos["b"].dtype), prepass is True
    if wanted.schedule is None:  # a schedule determines the multiplied dtype
        arch, target = arch_of(backend, None), TARGETS[backend.name]
        multiplied = multiplied_on(infos["a"], infos["b"], target, arch)
        if prepass is not None or wanted.how is not None:  # the choice depends on the number of rows
            pass
        elif scaling.in_groups:
            pays = pays_widened_groups(infos, multiplied, arch.features, target)
            widens = pays and not scaling.problem.batch
        elif scaling.shared is None:
            widens = pays_widened(infos, multiplied, arch.features)
    if scaling.shared is not None and not multiplied.is_float:
        multiplied = dtypes.f16  # in which products of two i8 are exact, and are added up in f32
    in_blocks = scaling.shared is not None
    check_prepass(prepass, infos, multiplied, grouped=scaling.in_groups, in_blocks=in_blocks)
    if scaling.in_groups and prepass and scaling.problem.batch:
        batch = scaling.problem.batch
        raise LaunchError(
            f"prepass=True with batches {batch} that cannot be joined to the rows of a; "
            "nearest legal choice: prepass=None"
        )
    return multiplied, widens


def _seen(name: str, call: Call, scaling: Scaling) -> Strided:
    """An array of the kernel; the result replaces an absent array, which is not read."""
    if scaling.in_groups and name in OF_GROUPS:
        return Strided(call.arrays[name], as_stored(call.infos[name]))
    if scaling.shared is not None and name in SCALES:
        problem = scaling.problem
        if name not in call.arrays:
            return seen_as(call.arrays["out"], call.infos["out"], problem.operands["out"])
        sized = problem.operands[operand_sized(name)]
        blocks = as_blocks(name, sized, scaling.shared[SCALES.index(name)])
        return seen_as(call.arrays[name], call.infos[name], blocks)
    return _in_place(name, name if name in call.arrays else "out", call, scaling.problem)


def _in_place(name: str, there: str, call: Call, problem: Problem) -> Strided:
    """A call's array, viewed with the rank of the kernel's parameter."""
    return seen_in_kernel(name, call.arrays[there], call.infos[there], problem.operands[there])
