"""A call over ranks: how ranks compute it, checks of its arguments, and the kernels that multiply and add.

Partial sums are added in an order that depends on the number of parts alone: one after the other, or as a
binary tree of eight leaves.  The terms after a product (bias, activation and others) follow in the same
kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import torch

from tilewright.distributed.exchange import ARRIVED, Ranks, chunks, exact, facts_of
from tilewright.distributed.peers import ArrivingRows, LeavingParts
from tilewright.dtypes import DType, f32, f64
from tilewright.errors import LaunchError
from tilewright.lang.dataflow.indexing import arrives, leaves
from tilewright.lang.dataflow.loops import steps, tiles, zeros
from tilewright.lang.functions import derivative as slope
from tilewright.lang.program import by_name
from tilewright.ops import matmul as of_matmul
from tilewright.ops.ending import ACTIVATIONS
from tilewright.runtime.kernel import Kernel, kernel
from tilewright.runtime.plans import Plan
from tilewright.torch.layers import scaled_by_kernels
from tilewright.torch.registry import dtype_of
from tilewright.torch.terms import result_like, scaled_like

PARTS = 8
"""Parts of the summed dimension if bits must not depend on the number of ranks; also the most ranks."""

TERMS = {"c": "M N", "bias": "N", "multiply": "M N", "residual": "M N"}
"""Arrays of the terms after a sum, with the dimensions that the kernel sees."""

ADDED = ("c", "bias", "residual")
"""Terms whose gradients are sums of the result's gradient."""

SCALED = ("scale_a", "scale_b", "zero_b", "group", "packed")
"""Arguments of products of quantised numbers."""

WIRES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
"""Dtypes in which ranks may send partial sums."""

BLOCK = 128
"""Elements along K that share the scale of a block."""

# ---------------------------------------------------------------- the call


@dataclass(frozen=True)
class How:
    """The options of a product over ranks.

    Args:
        name: the operation, for headers and messages.
        ranks: the ranks of the group.
        dim: the dimension that is gathered or scattered, counted from the end.
        sizes: extents of the ranks along ``dim``; None: by the headers, or by the rule of `torch.chunk`.
        scatters: whether each rank gets only its own rows of the sum.
        gathers: whether the rows of all ranks are gathered; otherwise every rank has the same rows.
        timeout: seconds that each exchange may take.
        check: whether headers are exchanged.
        invariant: whether bits must not depend on the number of ranks.
        words: ``alpha`` and ``precision`` as in `matmul`, if they are not the defaults.
        scaled: arguments of a product of quantised numbers.
        wire: dtype in which ranks send partial sums, if it is narrower than their own; None: bf16 for results
            in bf16, except for sums of integers and if bits must not depend on the number of ranks.
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
        """The fields that checks read, as a hashable value; see `facts_of`."""
        flags = self.dim, self.sizes, self.scatters, self.gathers, self.invariant, self.wire
        return self.name, *flags, facts_of(self.words), facts_of(self.scaled)

    def changed(self, **fields: Any) -> How:
        """Return a copy with other values of some fields; `dataclasses.replace` takes five times as long."""
        made = object.__new__(How)
        made.__dict__.update(self.__dict__, **fields)
        return made

    def key(self, a: Any, bs: Any, terms: Any, kind: torch.dtype | None, gradients: Sequence[bool]) -> Any:
        """Return the key of a call: calls with equal keys launch the same kernels; None: the call has no key.

        A later call with the key exchanges no headers.

        Args:
            a: the first operand.
            bs: the other operands.
            terms: the terms.
            kind: dtype of the results.
            gradients: which operands want gradients.
        """
        if self.check or self.invariant or self.words or self.scaled:
            return None
        flags = self.name, self.dim, self.sizes, self.scatters, self.wire, self.check, kind
        try:
            made = *flags, *gradients, exact(a), exact(bs), exact(terms)
            hash(made)
        except (TypeError, RuntimeError):  # the checks say what is wrong
            return None
        return made

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
            raise LaunchError(f"{how.name}: {name} is a {type(one).__name__}", "a tensor")
        if name in operands and one.dim() < 2:
            raise LaunchError(
                f"{how.name}: {name} has shape {list(one.shape)}",
                f"a matrix, or one with batches, such as {name}[None]",
            )
        if one.is_complex() or one.dtype == torch.bool:
            raise LaunchError(
                f"{how.name}: {name} is {one.dtype}",
                "real numbers; the real and imaginary parts are two calls",
            )
        first = one if first is None else first
        if one.device != first.device:
            raise LaunchError(
                f"{how.name}: {name} is on {one.device}, and the first operand on {first.device}",
                f"{name}.to({str(first.device)!r})",
            )


def check_pair(how: How, a: Sequence[int], b: Sequence[int], names: tuple[str, str]) -> tuple[int, ...]:
    """Return the shape of a product of operands of two shapes; refuse operands that do not fit each other."""
    depth = b[-2] * (2 if how.scaled.get("packed") else 1)
    if a[-1] != depth:
        raise LaunchError(
            f"{how.name}: K is {a[-1]} in {names[0]} {list(a)} and {depth} in {names[1]} {list(b)}",
            "operands of the same K",
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
            f"{list(next(iter(bs.values())).shape)}: the gradient adds products of one shape",
            "matrices b of the same batches, or a call for each b",
        )


def check_term(how: How, name: str, one: torch.Tensor, shape: Sequence[int]) -> None:
    """Refuse a term that cannot be broadcast to a shape; a bias must have exactly this shape."""
    pairs = zip(reversed(one.shape), reversed(shape), strict=False)
    fits = one.dim() <= len(shape) and all(extent in (1, wanted) for extent, wanted in pairs)
    if not fits or (name.startswith("bias") and list(one.shape) != list(shape)):
        raise LaunchError(f"{how.name}: {name} has shape {list(one.shape)}", f"shape {list(shape)}")


def check_dim(how: How, rank: int, what: str) -> None:
    """Refuse a dimension that cannot be gathered or scattered."""
    if not -rank <= how.dim <= -2:
        raise LaunchError(
            f"{how.name}: dim={how.dim} of {what} with {rank} dimensions", f"-2, or a batch from {-rank} on"
        )


def check_sizes(how: How, extent: int | None) -> None:
    """Refuse sizes that are not one for each rank, or do not add up to an extent."""
    if how.sizes is None:
        return
    if len(how.sizes) != how.ranks.size or min(how.sizes) < 0:
        raise LaunchError(
            f"{how.name}: sizes={list(how.sizes)} for {how.ranks.size} ranks",
            "one extent for each rank, 0 or more",
        )
    if extent is not None and sum(how.sizes) != extent:
        raise LaunchError(
            f"{how.name}: sizes={list(how.sizes)} add up to {sum(how.sizes)}, and the extent is {extent}",
            f"sizes={list(chunks(extent, how.ranks.size))}",
        )


def check_invariant(how: How) -> None:
    """Refuse a number of ranks that does not divide the eight parts of K."""
    if how.invariant and PARTS % how.ranks.size:
        raise LaunchError(
            f"{how.name}: rank_invariant=True on {how.ranks.size} ranks", "a group of 1, 2, 4 or 8 ranks"
        )


def check_wire(how: How, sums: torch.dtype) -> None:
    """Refuse a dtype in which ranks cannot send partial sums."""
    if how.wire is None:
        return
    if how.wire not in WIRES:
        known = ", ".join(map(str, WIRES))
        raise LaunchError(f"{how.name}: wire_dtype={how.wire}", f"one of {known}")
    if how.invariant or not sums.is_floating_point:
        why = "rank_invariant=True" if how.invariant else f"sums in {sums}"
        raise LaunchError(
            f"{how.name}: wire_dtype={how.wire} with {why}, whose bits rounded parts would change",
            "wire_dtype=None",
        )


def cuts_of(how: How, depths: Sequence[int]) -> list[tuple[int, int]]:
    """Return the parts of this rank's K: one, or its share of eight if bits must not depend on ranks."""
    own = depths[how.ranks.rank]
    if not how.invariant:
        return [(0, own)]
    parts, each = chunks(sum(depths), PARTS), PARTS // how.ranks.size
    shares = [parts[rank * each : (rank + 1) * each] for rank in range(how.ranks.size)]
    if [sum(one) for one in shares] != list(depths):
        raise LaunchError(
            f"{how.name}: rank_invariant=True, and K is {list(depths)} on the ranks, which are no "
            f"eighths of {sum(depths)}",
            [sum(one) for one in shares],
        )
    # K of quantised numbers can be cut at multiples of a group, of a byte, and of a block.
    group, packed = how.scaled.get("group"), how.scaled.get("packed")
    has_blocks = group is None and any(
        isinstance(one, torch.Tensor) and one.dim() > 1 and one.shape[at] > 1
        for one, at in ((how.scaled.get("scale_b"), -2), (how.scaled.get("scale_a"), -1))
    )
    step = math.lcm(group or 1, 2 if packed else 1, BLOCK if has_blocks else 1)
    if each > 1 and parts[0] % step:
        raise LaunchError(
            f"{how.name}: rank_invariant=True cuts K at {parts[0]}, within a group of {step}",
            f"a K whose eighth is a multiple of {step}",
        )
    ends = [sum(shares[how.ranks.rank][: at + 1]) for at in range(each)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def of_shard(how: How, a: torch.Tensor, gradients: Sequence[bool]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries of a shard's header: those that all ranks must share, and this rank's rows."""
    check_sizes(how, None)
    check_invariant(how)
    rows = int(a.shape[how.dim])
    if how.sizes is not None and rows != how.sizes[how.ranks.rank]:
        raise LaunchError(
            f"{how.name}: a_shard has {rows} rows, and sizes={list(how.sizes)} say "
            f"{how.sizes[how.ranks.rank]} for rank {how.ranks.rank}",
            "sizes=None",
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
    """Return the dtype of a product's result."""
    if how.scaled:
        return scaled_like(how.name, kind, a, b, how.scaled.get("packed"))
    added = {name: terms[name] for name in (*ADDED, "multiply") if terms.get(name) is not None}
    return result_like("matmul", kind, a=a, b=b, **added)


def sums_dtype(how: How, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.dtype:
    """Return the dtype in which kernels add the products."""
    a, b = pairs[0]
    if how.scaled:
        return torch.float32
    if a.is_floating_point() and b.is_floating_point():
        return torch.float64 if a.dtype == torch.float64 else torch.float32
    return result_like("matmul", None, a=a, b=b)


# ---------------------------------------------------------------- the kernels


def in_order(parts: Sequence[Any]) -> Any:
    """Add parts one after the other.

    Example:
        >>> in_order(["a", "b", "c", "d"])
        'abcd'
    """
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def as_tree(parts: Sequence[Any]) -> Any:
    """Add neighbours, then neighbouring sums, and so on; the number of parts is a power of 2.

    Example:
        >>> as_tree([(1,), (2,), (3,), (4,)])
        (1, 2, 3, 4)
    """
    while len(parts) > 1:
        parts = [one + other for one, other in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


@dataclass(frozen=True)
class Ending:
    """The terms after a sum.

    Args:
        terms: names of the arrays, in the order of `TERMS`.
        activation: as in `matmul`.
        derivative: as in `matmul`.
        sums: the dtype of the sums.
    """

    terms: tuple[str, ...]
    activation: str | None
    derivative: str | None
    sums: DType

    @property
    def arrays(self) -> dict[str, Any]:
        """The dimensions of the arrays by name, as kernels declare them."""
        return {one: TERMS[one] for one in self.terms}

    def apply(self, value: Any, arrays: Mapping[str, Any], m: Any, n: Any) -> Any:
        """Record the terms of a tile after its sum."""
        sums = self.sums
        if "c" in self.terms:
            value = value + arrays["beta"] * arrays["c"][m, n].to(sums)
        if "bias" in self.terms:
            value = value + arrays["bias"][n].to(sums)
        if self.activation is not None:
            value = ACTIVATIONS[self.activation](value)
        if "multiply" in self.terms:
            factor = arrays["multiply"][m, n].to(sums)
            value = value * (factor if self.derivative is None else slope(self.derivative, factor))
        if "residual" in self.terms:
            value = value + arrays["residual"][m, n].to(sums)
        return value


def _recorded(declared: Mapping[str, Any], record: Callable[[dict[str, Any]], None]) -> Kernel:
    """Make a kernel of a function that takes its arguments by name in a dictionary."""

    def over_ranks(given: Any) -> None:
        record(vars(given))

    return kernel(**declared)(by_name(declared, over_ranks))


@lru_cache(256)
def _adding(count: int, is_tree: bool, own: int | None, ending: Ending, kind: DType) -> Kernel:
    """Return the kernel that adds ``count`` parts and applies terms; part ``own`` has its own array."""
    add: Callable[[Sequence[Any]], Any] = as_tree if is_tree else in_order
    declared: dict[str, Any] = {"S": "R M N", **({} if own is None else {"OWN": "M N"}), **ending.arrays}
    declared |= {"Y": "M N"} | ({"beta": ending.sums} if "c" in ending.terms else {})

    def added(arrays: dict[str, Any]) -> None:
        for m, n in tiles(arrays["Y"]):
            parts = [arrays["OWN"][m, n] if part == own else arrays["S"][part, m, n] for part in range(count)]
            arrays["Y"][m, n] = ending.apply(add([part.to(kind) for part in parts]), arrays, m, n)

    return _recorded(declared, added)


@lru_cache(64)
def gathering(ending: Ending) -> Kernel:
    """Return the kernel of ``Y = A B`` with terms, whose tiles wait for the shards of their rows of ``A``."""
    declared = {"A": "M K", "B": "K N", **ending.arrays, "Y": "M N", "READY": "R"}

    def gathered(arrays: dict[str, Any]) -> None:
        for m, n in tiles(arrays["Y"]):
            arrives(arrays["A"], arrays["READY"], arrays["epoch"], first=arrays["first"])
            acc = zeros()
            for k in steps(arrays["A"].shape[1]):
                acc += arrays["A"][m, k] @ arrays["B"][k, n]
            arrays["Y"][m, n] = ending.apply(acc, arrays, m, n)

    return _recorded({**declared, "first": int, "epoch": int}, gathered)


@kernel(A="P S K", B="K N", PARTS="P S N", SENT="P", first=int)
def scattering(A: Any, B: Any, PARTS: Any, SENT: Any, first: Any) -> None:
    """``PARTS[p] = A[p] B``; counts ``SENT[p]`` when the last tile of ``PARTS[p]`` is stored."""
    for p, m, n in tiles(PARTS):
        leaves(PARTS, SENT, first=first)
        acc = zeros()
        for k in steps(A.shape[2]):
            acc += A[p, m, k] @ B[k, n]
        PARTS[p, m, n] = acc


def add_parts(
    parts: torch.Tensor,
    out: torch.Tensor,
    *,
    is_tree: bool = False,
    own: tuple[int, torch.Tensor] | None = None,
    activation: str | None = None,
    derivative: str | None = None,
    beta: float | None = None,
    terms: Mapping[str, torch.Tensor] = {},
) -> None:
    """``out = activation(sum of parts + beta * c + bias) * multiply + residual``, rounded once.

    Args:
        parts: tensor (R, M, N) of the sums' dtype, f32, f64 or integers; with ``own`` they may be narrower.
        out: tensor (M, N), which is written.
        is_tree: whether parts are added as a tree; otherwise in their order.
        own: a part, and the tensor (M, N) of the sums' dtype that takes the place of ``parts[part]``.
        activation: as in `matmul`.
        derivative: as in `matmul`.
        beta: factor of ``c``; default: 1.
        terms: tensors of the result's shape, ``bias`` of shape (N,), by the names of `TERMS`; sums of
            integers take none.

    Raises:
        LaunchError: a tree of a number of parts that is no power of 2.

    Example:
        >>> out = torch.empty(1, 2)
        >>> add_parts(torch.tensor([[[1.0, -4.0]], [[2.0, 3.0]]]), out, activation="relu")
        >>> out.tolist()
        [[3.0, 0.0]]
    """
    count, kind = parts.shape[0], parts.dtype if own is None else own[1].dtype
    if is_tree and count & (count - 1):
        raise LaunchError(f"a tree of {count} parts", f"{1 << count.bit_length() - 1} parts")
    if not out.numel():
        return
    if count == 1 and not terms and activation is None and out.dtype == kind:
        out.copy_(parts[0] if own is None else own[1])
        return
    element = dtype_of(kind)
    sums = f64 if element == f64 else f32
    ending = Ending(tuple(name for name in TERMS if name in terms), activation, derivative, sums)
    place, alone = (None, []) if own is None else (own[0], [own[1]])
    numbers = [1.0 if beta is None else beta] if "c" in terms else []
    adding = _adding(count, is_tree, place, ending, sums if element.is_float else element)
    adding(parts, *alone, *(terms[name] for name in ending.terms), out, *numbers)


MULTIPLIED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes of operands of the kernels that wait for shards, or count parts."""


def is_served(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether the kernels multiply operands of these shapes and dtypes."""
    return a.dtype == b.dtype and a.dtype in MULTIPLIED and bool(a.numel()) and bool(b.numel())


@lru_cache(256)
def adding_to_own(count: int, own: int, ending: Ending) -> Kernel:
    """Return the kernel of ``Y = P0 + ... + A B + ...`` with terms: the product is part ``own`` of ``count``.

    A tile waits for the pieces of the other parts in its rows, when its product is complete.
    """
    peers = [rank for rank in range(count) if rank != own]
    declared = {"A": "M K", "B": "K N", **{f"P{rank}": "M N" for rank in peers}}
    declared |= {f"READY{rank}": f"R{rank}" for rank in peers}
    declared |= {**ending.arrays, "Y": "M N"} | ({"beta": ending.sums} if "c" in ending.terms else {})

    def added(arrays: dict[str, Any]) -> None:
        for m, n in tiles(arrays["Y"]):
            for rank in peers:
                arrives(arrays[f"P{rank}"], arrays[f"READY{rank}"], ARRIVED)
            acc = zeros()
            for k in steps(arrays["A"].shape[1]):
                acc += arrays["A"][m, k] @ arrays["B"][k, n]
            parts = [
                acc if rank == own else arrays[f"P{rank}"][m, n].to(ending.sums) for rank in range(count)
            ]
            arrays["Y"][m, n] = ending.apply(in_order(parts), arrays, m, n)

    return _recorded(declared, added)


class KnownLaunch:
    """Launches of a kernel on arrays that differ in nothing but their addresses.

    Args:
        kernel: the kernel, whose first parameter is an array.
        numbers: its arguments after the arrays.
    """

    def __init__(self, kernel: Kernel, numbers: Sequence[float] = ()) -> None:
        self._kernel, self._numbers = kernel, (*numbers,)
        self._plan: Plan | None = None
        self._after: tuple[Any, ...] = ()

    def forget(self, executable: Any = None) -> None:
        """Drop the launch; the next call plans it again."""
        self._plan = None

    def __call__(
        self, pointers: tuple[int, ...], like: torch.Tensor, arrays: Callable[[], Sequence[torch.Tensor]]
    ) -> None:
        """Launch on PyTorch's current stream.

        Args:
            pointers: the addresses of the arrays.
            like: a tensor on the same device.
            arrays: returns the arrays; called for the first launch, which checks them.
        """
        plan = self._plan
        if plan is None:
            given = arrays()
            plan, found = self._kernel.bind().planned((*given, *self._numbers), None)
            if (*found,) != pointers:
                raise AssertionError(f"{self._kernel}: arrays at {found}, not at {list(pointers)}")
            # A launch reads the type of its first array, and the numbers.
            self._after = (*([None] * (len(given) - 1)), *self._numbers)
            plan.prepared.executable.holders.add(self)
            self._plan = plan
        plan.prepared.launch((like, *self._after), pointers, None)


class ArrivingProduct:
    """``out = activation(rows @ b + bias)``; a tile waits for the shards of its rows, this rank's first.

    Args:
        first: the first piece of this rank's rows.
        activation: as in `matmul`.
        has_bias: whether a bias is added.
        sums: the dtype of the sums.
    """

    def __init__(self, first: int, activation: str | None, *, has_bias: bool, sums: DType) -> None:
        ending = Ending(("bias",) if has_bias else (), activation, None, sums)
        self._launch = KnownLaunch(gathering(ending), (first, ARRIVED))

    def run(self, rows: ArrivingRows, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Launch the kernel."""
        terms = () if bias is None else (bias,)
        whole, counters = rows.addresses
        pointers = (whole, b.data_ptr(), *(one.data_ptr() for one in terms), out.data_ptr(), counters)

        def arrays() -> list[torch.Tensor]:
            return [rows.whole, b.detach(), *(one.detach() for one in terms), out, rows.counters]

        self._launch(pointers, out, arrays)


class LeavingProduct:
    """``parts = a @ b`` without this rank's own part; counts each piece when it is stored.

    The parts of the next rank come first, and those of the first ranks follow in a second launch.

    Args:
        ranks: the number of ranks.
        rank: this rank.
    """

    def __init__(self, ranks: int, rank: int) -> None:
        runs = (rank + 1, ranks), (0, rank)
        self._runs = [(*run, KnownLaunch(scattering, (0,))) for run in runs if run[0] < run[1]]

    def run(self, parts: LeavingParts, a: torch.Tensor, b: torch.Tensor) -> None:
        """Launch the kernel; ``a`` is a matrix with the rows of all ranks."""
        local, each, sent = parts.local, parts.pieces, parts.sent
        pieces, rows, _ = local.shape
        of_a, of_parts = a.stride(0) * rows * a.element_size(), local.nbytes // pieces
        starts = a.data_ptr(), local.data_ptr()

        def arrays(some: slice) -> list[torch.Tensor]:
            rows_of_a = a.detach().unflatten(0, (pieces, rows))
            return [rows_of_a[some], b.detach(), local[some], parts.counters[some]]

        for begin, end, launch in self._runs:
            at = begin * each
            pointers = starts[0] + at * of_a, b.data_ptr(), starts[1] + at * of_parts, sent + 4 * at
            launch(pointers, local, partial(arrays, slice(at, end * each)))


class OwnProduct:
    """``out = activation(sum of all ranks' parts + beta * c + bias) * multiply + residual``, rounded once.

    This rank's part is ``a @ b``; parts are added in the order of the ranks.

    Args:
        ranks: the number of ranks.
        rank: this rank.
        sums: the dtype of the sums.
        activation: as in `add_parts`.
        derivative: as in `add_parts`.
        beta: as in `add_parts`.
        terms: names of the arrays among the terms.
    """

    def __init__(
        self,
        ranks: int,
        rank: int,
        sums: DType,
        activation: str | None = None,
        derivative: str | None = None,
        beta: float | None = None,
        terms: Collection[str] = (),
    ) -> None:
        ending = Ending(tuple(name for name in TERMS if name in terms), activation, derivative, sums)
        self._peers = [peer for peer in range(ranks) if peer != rank]
        self._terms = ending.terms
        numbers = [1.0 if beta is None else beta] if "c" in terms else []
        self._launch = KnownLaunch(adding_to_own(ranks, rank, ending), numbers)

    def run(
        self,
        parts: LeavingParts,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor,
        terms: Mapping[str, torch.Tensor] = {},
    ) -> None:
        """Launch the kernel.

        Args:
            parts: the parts that ranks send each other.
            a: a matrix with the rows of all ranks.
            b: the second operand.
            out: tensor (M, N) of this rank's rows, which is written.
            terms: tensors by the names of `TERMS`.
        """
        first = len(out) * parts.turn.rank
        inbox, counters = zip(*map(parts.addresses, self._peers), strict=True)
        after = (*(terms[name].data_ptr() for name in self._terms), out.data_ptr())
        start = a.data_ptr() + first * a.stride(0) * a.element_size()

        def arrays() -> list[torch.Tensor]:
            received, ready = parts.inbox, [parts.arrivals(peer) for peer in self._peers]
            added = [terms[name] for name in self._terms]
            own = a.detach()[first : first + len(out)]
            return [own, b.detach(), *(received[peer] for peer in self._peers), *ready, *added, out]

        self._launch((start, b.data_ptr(), *inbox, *counters, *after), out, arrays)


def sums_of(operand: torch.Tensor) -> DType:
    """Return the dtype in which the kernels over ranks add products of an operand's dtype."""
    return f64 if operand.dtype == torch.float64 else f32
