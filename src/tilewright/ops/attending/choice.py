"""The choice of a dataflow kernel for attention or for a chain, and the views that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tilewright.arch import Arch
from tilewright.dtypes import bf16, f16
from tilewright.ops.attending import flow
from tilewright.ops.attending.flow import BySoftmax
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.binding import spec_of
from tilewright.runtime.kernel import Bound
from tilewright.schedule.bulk_views import against_array, against_store
from tilewright.schedule.folds.group_choice import ROWS_OF_A_WARP, SPEEDUP
from tilewright.schedule.folds.group_rings import ROWS
from tilewright.schedule.partition import parts_of_k


class AttentionQuestion(NamedTuple):
    """A problem of attention, and the machine that computes it.

    Args:
        infos: the arrays with four dimensions each, by name: queries, keys, values and the result.
        arch: the architecture.
        processors: the machine's number of processors; 0 if unknown.
        scale: factor of the scores.
        diagonal: row i sees the keys up to i + diagonal; None: all keys.
        with_lse: whether the kernel stores logarithms of sums too.
        window: number of keys that a row sees at most; None: all up to the diagonal.
        soft_cap: bound of the scores; None: they have none.
        terms: ``"bias"``, ``"sinks"``, ``"dropout"`` and ``"lengths"``, if the call has them.
        sequences: number of packed sequences; None: none are packed.
        from_last: whether the mask counts from the last row and key, of a packed sequence or a batch with a
            length.
        page: rows of a page of keys; 0: keys do not lie in pages.
    """

    infos: Mapping[str, ArrayInfo]
    arch: Arch
    processors: int
    scale: float = 1.0
    diagonal: int | None = None
    with_lse: bool = False
    window: int | None = None
    soft_cap: float | None = None
    terms: frozenset[str] = frozenset()
    sequences: int | None = None
    from_last: bool = False
    page: int = 0

    @property
    def has_bias(self) -> bool:
        """Whether an array is added to the scores."""
        return "bias" in self.terms

    @property
    def softmax(self) -> tuple[BySoftmax, float]:
        """The softmax and its exponent.  With a soft cap or a bias, scores already have their scale."""
        return BySoftmax.of(1.0 if self.has_bias or self.soft_cap is not None else self.scale)

    @property
    def scores(self) -> flow.Scores:
        """The rules by which the dataflow kernel computes scores."""
        cap = None if self.soft_cap is None else (self.scale / self.soft_cap, self.soft_cap)
        scale = self.scale if self.has_bias and cap is None else None
        return flow.Scores(self.diagonal is not None, self.window, cap, scale)

    @property
    def queries(self) -> ArrayInfo:
        """The first array: queries, or A of a chain."""
        return next(iter(self.infos.values()))

    @property
    def keys(self) -> ArrayInfo:
        """The second array: keys, or B of a chain."""
        return tuple(self.infos.values())[1]

    @property
    def columns(self) -> tuple[int, int]:
        """Numbers of columns of keys and of values."""
        return self.keys.shape[3], tuple(self.infos.values())[2].shape[3]


@dataclass(frozen=True)
class Answer:
    """A kernel, and the scalar arguments that follow its arrays.

    Args:
        kernel: the kernel.
        numbers: the scalar arguments.
        packed: whether its arrays have packed sequences instead of batches.
    """

    kernel: Bound
    numbers: tuple[float | int, ...] = ()
    packed: bool = False

    def views(self, infos: Mapping[str, ArrayInfo]) -> dict[str, ArrayInfo]:
        """The arrays as the kernel takes them, in the order of its parameters.

        They have a dimension of heads of keys, and one of the heads of queries that share them.

        Args:
            infos: the arrays with four dimensions each: queries, keys, values, results, logarithms, bias.
        """
        names = list(infos)
        made = {
            name: infos[name] if name in names[1:3] else by_head_of_keys(info, infos[names[1]])
            for name, info in infos.items()
        }
        for name in names[4:5]:  # logarithms have no columns
            made[name] = replace(made[name], shape=made[name].shape[:-1], strides=made[name].strides[:-1])
        if self.packed:  # all sequences are one batch
            made = {
                name: replace(info, shape=info.shape[1:], strides=info.strides[1:])
                for name, info in made.items()
            }
        return made


def by_head_of_keys(info: ArrayInfo, keys: ArrayInfo) -> ArrayInfo:
    """View an array (B, H, M, ...) as (B, G, H / G, M, ...).

    Args:
        info: the array.
        keys: the keys, with G heads.
    """
    (b, heads, *rest), (step_b, step, *steps), groups = info.shape, info.strides, keys.shape[1]
    ratio = heads // groups
    return replace(info, shape=(b, groups, ratio, *rest), strides=(step_b, step * ratio, step, *steps))


def chosen(question: AttentionQuestion) -> Answer:
    """Return the kernel of a problem, with its constants."""
    between = question.softmax[0]
    if keys_in_parts(question):
        # Parts merge only in this form.  In the other one, the exponent of a row depends on its base.
        between = replace(between, power=0.0)
    words = {"between": between, "with_lse": question.with_lse, "scores": question.scores}
    if question.sequences is not None:
        packed = flow.packed_attention.bind(**words, from_last=question.from_last, terms=question.terms)
        return Answer(packed, _numbers(question), packed=True)
    with_terms = {"from_last": question.from_last, "terms": question.terms}
    if question.page:
        bound = flow.paged_attention.bind(**words, **with_terms, page=question.page)
        return Answer(bound, _numbers(question))
    if question.terms:
        bound = flow.attention_with_terms.bind(**words, **with_terms)
        return Answer(bound, _numbers(question))
    return Answer(flow.attention.bind(**words), _numbers(question))


def keys_in_parts(question: AttentionQuestion) -> bool:
    """Whether to split the keys of each head between several blocks, e.g. to decode one row of queries.

    Otherwise each tile of queries has one block.  Keys are split if these blocks would occupy less than half
    of the processors, or less than a quarter if warpgroups multiply many rows.  Memory limits few rows with
    any instruction.
    """
    q, k, packed = question.queries, question.keys, max(question.sequences or 1, 1)
    rows, keys = -(-q.shape[2] // packed), -(-k.shape[2] // packed)
    tiles = packed * q.shape[0] * q.shape[1] * -(-rows // ROWS)
    is_slow = rows <= ROWS_OF_A_WARP or any(against_warpgroups(question))
    parts = parts_of_k(tiles, keys // ROWS, question.processors // (1 if is_slow else SPEEDUP))
    return isinstance(parts, int) and parts > 1


def against_warpgroups(question: AttentionQuestion) -> Iterator[str]:
    """Yield the reasons why schedules for warpgroups do not serve a chain of two products."""
    arch, kind = question.arch, question.queries.dtype
    if "wgmma" not in arch.features:
        yield f"{arch.name} has no warpgroups that multiply in the background"
    if kind not in (f16, bf16):
        yield f"the arrays are {kind}, and wgmma with weights in registers takes f16 and bf16"
    if question.page:
        yield f"keys lie in pages of {question.page}, which threads copy"
    for place, (name, info) in enumerate(question.infos.items()):
        spec = spec_of(info)
        if place == 3:
            yield from against_store(name, spec)
        else:
            yield from (text for text, _ in against_array(name, spec))
        if spec.unit_dim not in ((3, 2) if place in (1, 2) else (3,)) and spec.unit_dim is not None:
            yield f"{name} is contiguous along dimension {spec.unit_dim - 4}, not along its columns"


def _numbers(question: AttentionQuestion) -> tuple[float, int]:
    """Return the exponent, and the diagonal, clamped to the range of the keys."""
    rows, keys = question.queries.shape[2], question.keys.shape[2]
    return question.softmax[1], min(max(question.diagonal or 0, -rows), keys)
