"""How ranks compute a call, and checks of its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tilewright.distributed.exchange import Ranks, chunks, facts_of
from tilewright.distributed.kernels import PARTS
from tilewright.errors import LaunchError
from tilewright.ops import matmul as of_matmul
from tilewright.torch.layers import scaled_by_kernels
from tilewright.torch.terms import result_like, scaled_like

ADDED = ("c", "bias", "residual")
"""Terms whose gradients are sums of the result's gradient."""

SCALED = ("scale_a", "scale_b", "zero_b", "group", "packed")
"""Arguments of products of quantised numbers."""

WIRES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
"""Dtypes in which partial sums may travel."""

BLOCK = 128
"""Places along K that share a scale of a block."""


@dataclass(frozen=True)
class How:
    """How ranks compute a product.

    Args:
        name: the operation, for headers and messages.
        ranks: the ranks of the group.
        dim: the dimension that is gathered or scattered, counted from the end.
        sizes: extents of the ranks along ``dim``; None: by the headers, or by the rule of `torch.chunk`.
        scatters: whether each rank gets its rows of the sum, and not all of them.
        gathers: whether the rows of all ranks are multiplied, and not the same rows on each rank.
        timeout: seconds that each exchange may take.
        check: whether headers are exchanged.
        invariant: whether bits must not depend on the number of ranks.
        words: ``alpha`` and ``precision`` as in `matmul`, if they are not the defaults.
        scaled: arguments of a product of quantised numbers.
        wire: dtype in which partial sums travel, if it is narrower than theirs.
    """

    name: str
    ranks: Ranks
    dim: int = -2
    sizes: tuple[int, ...] | None = None
    scatters: bool = True
    gathers: bool = True
    timeout: float | None = None
    check: bool | None = None
    invariant: bool = False
    words: Mapping[str, Any] = field(default_factory=dict)
    scaled: Mapping[str, Any] = field(default_factory=dict)
    wire: torch.dtype | None = None

    @property
    def facts(self) -> Any:
        """All that checks read of this, as a hashable value; see `facts_of`."""
        flags = self.dim, self.sizes, self.scatters, self.gathers, self.invariant, self.wire
        return self.name, *flags, facts_of(self.words), facts_of(self.scaled)

    def multiply(self, a: torch.Tensor, b: torch.Tensor, **words: Any) -> Any:
        """Multiply by one kernel of the library."""
        given = {**self.words, **words}
        if self.invariant:
            given["batch_invariant"] = True
        return scaled_by_kernels(a, b, **given) if self.scaled else of_matmul.matmul(a, b, **given)


def check_operands(how: How, operands: Mapping[str, Any], terms: Mapping[str, Any] = {}) -> None:
    """Refuse tensors that the exchange or the kernels could not take."""
    first: torch.Tensor | None = None
    for name, one in {**operands, **terms}.items():
        if not isinstance(one, torch.Tensor):
            raise LaunchError(f"{how.name}: {name} is a {type(one).__name__}; nearest legal choice: a tensor")
        if name in operands and one.dim() < 2:
            raise LaunchError(
                f"{how.name}: {name} has shape {list(one.shape)}; nearest legal choice: a matrix, or one "
                f"with batches, such as {name}[None]"
            )
        if one.is_complex() or one.dtype == torch.bool:
            raise LaunchError(
                f"{how.name}: {name} is {one.dtype}; nearest legal choice: real numbers; the real and "
                "imaginary parts are two calls"
            )
        first = one if first is None else first
        if one.device != first.device:
            raise LaunchError(
                f"{how.name}: {name} is on {one.device}, and the first operand on {first.device}; nearest "
                f"legal choice: {name}.to({str(first.device)!r})"
            )


def check_pair(how: How, a: Sequence[int], b: Sequence[int], names: tuple[str, str]) -> tuple[int, ...]:
    """The shape of the product of operands of two shapes; refuses operands that do not fit each other."""
    depth = b[-2] * (2 if how.scaled.get("packed") else 1)
    if a[-1] != depth:
        raise LaunchError(
            f"{how.name}: K is {a[-1]} in {names[0]} {list(a)} and {depth} in {names[1]} {list(b)}; nearest "
            "legal choice: operands of the same K"
        )
    try:
        batches = torch.broadcast_shapes(tuple(a[:-2]), tuple(b[:-2]))
    except RuntimeError as error:
        raise LaunchError(f"{how.name}: batches of {names[0]} and {names[1]} differ: {error}") from None
    return (*batches, a[-2], b[-1])


def check_products(
    how: How, a: torch.Tensor, bs: Mapping[str, torch.Tensor], gradients: Sequence[bool]
) -> None:
    """Refuse operands of `gather_products` that do not fit each other, or whose gradients cannot be added."""
    shape = list(a.shape)
    if how.gathers and how.dim < -2:  # other ranks have more batches
        shape[how.dim] = 1
    made = dict[str, tuple[int, ...]]()
    for name, b in bs.items():
        product = list(check_pair(how, shape, b.shape, ("a_shard" if how.gathers else "a", name)))
        if how.gathers:
            product[how.dim] = 0
        made[name] = tuple(product[:-1])
    first = next(iter(made.values()))
    if any(gradients[:1]) and (wrong := [name for name in made if made[name] != first]):
        raise LaunchError(
            f"{how.name}: {wrong[0]} has shape {list(bs[wrong[0]].shape)}, and {next(iter(bs))} "
            f"{list(next(iter(bs.values())).shape)}: the gradient adds products of one shape; nearest legal "
            "choice: matrices b of the same batches, or a call for each b"
        )


def check_term(how: How, name: str, one: torch.Tensor, shape: Sequence[int]) -> None:
    """Refuse a term that cannot be broadcast to a shape; a bias must have it."""
    pairs = zip(reversed(one.shape), reversed(shape), strict=False)
    fits = one.dim() <= len(shape) and all(extent in (1, wanted) for extent, wanted in pairs)
    if not fits or (name.startswith("bias") and list(one.shape) != list(shape)):
        raise LaunchError(
            f"{how.name}: {name} has shape {list(one.shape)}; nearest legal choice: shape {list(shape)}"
        )


def check_dim(how: How, rank: int, what: str) -> None:
    """Refuse a dimension that cannot be gathered or scattered."""
    if not -rank <= how.dim <= -2:
        raise LaunchError(
            f"{how.name}: dim={how.dim} of {what} with {rank} dimensions; nearest legal choice: -2, or a "
            f"batch from {-rank} on"
        )


def check_sizes(how: How, extent: int | None) -> None:
    """Refuse sizes that are not one for each rank, or do not add up to an extent."""
    if how.sizes is None:
        return
    if len(how.sizes) != how.ranks.size or min(how.sizes) < 0:
        raise LaunchError(
            f"{how.name}: sizes={list(how.sizes)} for {how.ranks.size} ranks; nearest legal choice: one "
            "extent for each rank, 0 or more"
        )
    if extent is not None and sum(how.sizes) != extent:
        raise LaunchError(
            f"{how.name}: sizes={list(how.sizes)} add up to {sum(how.sizes)}, and the extent is {extent}; "
            f"nearest legal choice: sizes={list(chunks(extent, how.ranks.size))}"
        )


def check_invariant(how: How) -> None:
    """Refuse numbers of ranks among which eight parts of K cannot be divided."""
    if how.invariant and PARTS % how.ranks.size:
        raise LaunchError(
            f"{how.name}: rank_invariant=True on {how.ranks.size} ranks; nearest legal choice: a group of 1, "
            "2, 4 or 8 ranks"
        )


def check_wire(how: How, sums: torch.dtype) -> None:
    """Refuse a dtype in which partial sums cannot travel."""
    if how.wire is None:
        return
    if how.wire not in WIRES:
        known = ", ".join(map(str, WIRES))
        raise LaunchError(f"{how.name}: wire_dtype={how.wire}; nearest legal choice: one of {known}")
    if how.invariant or not sums.is_floating_point:
        why = "rank_invariant=True" if how.invariant else f"sums in {sums}"
        raise LaunchError(
            f"{how.name}: wire_dtype={how.wire} with {why}, whose bits rounded parts would change; nearest "
            "legal choice: wire_dtype=None"
        )


def of_shard(how: How, a: torch.Tensor, gradients: Sequence[bool]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What all ranks must share about a shard, and its extent."""
    check_sizes(how, None)
    check_invariant(how)
    rows = int(a.shape[how.dim])
    if how.sizes is not None and rows != how.sizes[how.ranks.rank]:
        raise LaunchError(
            f"{how.name}: a_shard has {rows} rows, and sizes={list(how.sizes)} say "
            f"{how.sizes[how.ranks.rank]} for rank {how.ranks.rank}; nearest legal choice: sizes=None"
        )
    others = [extent for at, extent in enumerate(a.shape) if at != a.dim() + how.dim]
    shared = {
        "the dtype of a_shard": str(a.dtype),
        "the shape of a_shard without its rows": others,
        "the dimension of the rows": how.dim,
        "sizes": how.sizes,
        "which operands want gradients": list(gradients),
        "rank_invariant": how.invariant,
    }
    return shared, {"rows": rows}


def result_dtype(
    how: How, kind: torch.dtype | None, a: torch.Tensor, b: torch.Tensor, terms: Mapping[str, Any]
) -> torch.dtype:
    """The dtype of a product's result."""
    if how.scaled:
        return scaled_like(how.name, kind, a, b, how.scaled.get("packed"))
    added = {name: terms[name] for name in (*ADDED, "multiply") if terms.get(name) is not None}
    return result_like("matmul", kind, a=a, b=b, **added)


def sums_dtype(how: How, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.dtype:
    """The dtype in which kernels add the products."""
    a, b = pairs[0]
    if how.scaled:
        return torch.float32
    if a.is_floating_point() and b.is_floating_point():
        return torch.float64 if a.dtype == torch.float64 else torch.float32
    return result_like("matmul", None, a=a, b=b)
