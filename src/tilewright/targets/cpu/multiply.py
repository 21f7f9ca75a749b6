"""Operations that share loops: multiplies with packing and zeros, and neighbouring elementwise operations.

Consecutive multiplies of one form share their loops, because they reuse cached operands: each part of a
complex number is in two products.  B is packed one panel at a time, just before that panel is multiplied.
So the panel is in the first-level cache, and memory for one panel suffices.  The first product of a sum that
starts at 0 stores instead of adding, so that no zeros are written.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from tilewright.dtypes import f32
from tilewright.ir.fragment_ops import Coordinates, PrefixOp, ReduceOp
from tilewright.ir.kernel import Kernel, op_symbols
from tilewright.ir.ops import (
    Block,
    Copy,
    Elementwise,
    Fill,
    For,
    FragmentOp,
    If,
    Let,
    Mma,
    Op,
    Reshape,
    Shared,
)
from tilewright.ir.types import FragmentType, Memory, Value
from tilewright.symbolic.expr import add, all_of, equal, less, less_equal, mul, prove
from tilewright.symbolic.nodes import FALSE, TRUE, Cond
from tilewright.targets.cpu.arch import adds_groups
from tilewright.targets.cpu.conversions import HALVES
from tilewright.targets.cpu.decoding import Decoding, decoding_of
from tilewright.targets.cpu.linear import distinct, linear, panels, place_of, same_place
from tilewright.targets.cpu.live import NeededExtents
from tilewright.threads.distribution import Distribution


@dataclass(frozen=True)
class CompoundOp(Op):
    """Operations whose text is one loop nest.  They exist only while text is emitted."""

    roles: ClassVar = {}

    @property
    def parts(self) -> tuple[Op, ...]:
        """The operations."""
        raise NotImplementedError

    @property
    def operands(self) -> tuple[Value, ...]:
        """See `Op.operands`."""
        return tuple(value for part in self.parts for value in part.operands)

    @property
    def read(self) -> tuple[Value, ...]:
        """See `Op.read`."""
        return tuple(value for part in self.parts for value in part.read)

    @property
    def written(self) -> tuple[Value, ...]:
        """See `Op.written`."""
        return tuple(value for part in self.parts for value in part.written)


@dataclass(frozen=True)
class StoreSums(CompoundOp):
    """The copy of sums from their fragment to memory, or nothing if the multiply stores them there.

    Args:
        copy: the copy.
        product: the multiply whose sums it copies.
        is_once: whether the multiply runs once.
        is_short: whether it runs once or twice.
    """

    name = "store_sums"
    copy: Copy
    product: Mma
    is_once: Cond
    is_short: Cond

    @property
    def parts(self) -> tuple[Op, ...]:
        """The copy."""
        return (self.copy,)


@dataclass(frozen=True)
class Multiply(CompoundOp):
    """Multiplies with the packing of their panels and the zeros of their sums.

    Args:
        products: the multiplies, of the same tiles and extents, in program order.
        begins: for each multiply the condition under which its accumulator counts as 0.
        packing: the copies that fill operands B, one panel at a time, just before it is multiplied.
        rows: the copies that fill operands A, in the order of the products, before the first panel of B.
        store: copies the sums of its only product to memory, and nothing else reads them.
    """

    name = "multiply"
    products: tuple[Mma, ...]
    begins: tuple[Cond, ...]
    packing: tuple[Copy | Decoding, ...] = ()
    rows: tuple[Copy, ...] = ()
    store: StoreSums | None = None

    @property
    def parts(self) -> tuple[Op, ...]:
        """The multiplies, then the copies."""
        return (*self.products, *self.packing, *self.rows)

    def is_packed(self, product: Mma) -> bool:
        """Whether operand B of one of the products is filled panel by panel."""
        return any(copy.target.buffer is product.b.buffer for copy in self.packing)


PASSED = (
    *(Shared, Reshape, FragmentOp, Copy, Fill, Let, For, If),
    *(Elementwise, Coordinates, ReduceOp, PrefixOp, Mma, Multiply),
)
"""Operations past which the copy of an operand may move to its multiply, if they write no array."""


def gather(kernel: Kernel, extents: Mapping[Op, NeededExtents]) -> Block:
    """Return the kernel's operations with every multiply as a `Multiply`.

    Args:
        kernel: the lowered kernel.
        extents: the needed extents of each multiply.
    """
    shared = {op.result for op in kernel.walk() if isinstance(op, Shared)}
    uses = _Uses()
    for op in kernel.walk():
        for found, values in ((uses.writers, op.written), (uses.readers, op.read)):
            for buffer in {value.buffer for value in values} & shared:
                found[buffer].append(op)
        for value in {value for value in op.read if value.is_fragment}:
            uses.of_fragments[value].append(op)
    return _gathered(kernel.body, uses, extents)


def panel_elems(op: Multiply) -> int:
    """Return the elements of one panel of B."""
    (product, *_) = op.products
    depth = product.b.tensor.shape[1]
    assert isinstance(depth, int)
    return product.mma.atom.shape[1] * depth


@dataclass(frozen=True)
class _Uses:
    """The writers and readers of each shared tensor, and the readers of each fragment."""

    writers: defaultdict[Value, list[Op]] = field(default_factory=lambda: defaultdict(list))
    readers: defaultdict[Value, list[Op]] = field(default_factory=lambda: defaultdict(list))
    of_fragments: defaultdict[Value, list[Op]] = field(default_factory=lambda: defaultdict(list))


def _gathered(block: Block, uses: _Uses, extents: Mapping[Op, NeededExtents]) -> Block:
    ops: list[Op] = []
    for op in block.ops:
        if isinstance(op, Mma):
            _join(op, ops, extents)
        else:
            ops.append(op.with_regions(lambda region: _gathered(region, uses, extents)))
    for op in [op for op in ops if isinstance(op, Multiply)]:
        _pack(op, ops, uses)
    return Block(_with_stores(_without_zeros(ops), uses))


# ---------------------------------------------------------------- neighbouring multiplies


def _join(op: Mma, before: list[Op], extents: Mapping[Op, NeededExtents]) -> None:
    """Append a multiply, or merge it into the previous one if they share their loops."""
    at = len(before)
    while at and isinstance(before[at - 1], Reshape):
        at -= 1
    last = before[at - 1] if at else None
    if isinstance(last, Multiply):
        first = last.products[0]
        alike = first.mma == op.mma and first.a.tensor.shape == op.a.tensor.shape
        if alike and extents[first] == extents[op] and not adds_groups(op.mma.atom):
            whole = replace(last, products=(*last.products, op), begins=(*last.begins, FALSE))
            before[at - 1 :] = [*before[at:], whole]
            return
    before.append(Multiply((op,), (FALSE,), location=op.location))


# ---------------------------------------------------------------- packing


def _pack(op: Multiply, ops: list[Op], uses: _Uses) -> None:
    """Move the copies that fill operands from the operations before a multiply into the multiply."""
    taken: list[Copy | Decoding] = []
    for product in op.products:
        if any(same_place(copy.target, product.b) for copy in taken):
            continue
        at = _packing_copy(op, product.b, ops, uses, is_a=False)
        if at is None:
            continue
        copy, own = ops[at], [ops[at]]
        assert isinstance(copy, Copy)
        if copy.source.is_fragment:
            found = decoding_of(copy, ops[:at], uses.of_fragments)
            if found is None:
                continue
            taken.append(found[0])
            own += found[1]
        else:
            taken.append(copy)
        ops[:] = [one for one in ops if not any(one is other for other in own)]
    rows: tuple[Copy, ...] = _rows(op, ops, uses) if taken else ()
    ops[:] = [one for one in ops if not any(one is copy for copy in rows)]
    if taken:
        ops[place_of(ops, op)] = replace(op, packing=tuple(taken), rows=rows)


def _rows(op: Multiply, ops: Sequence[Op], uses: _Uses) -> tuple[Copy, ...]:
    """Return the copies that fill operands A, if all only move floats from arrays, or widen halves."""
    found: list[Copy] = []
    for operand in distinct(product.a for product in op.products):
        at = _packing_copy(op, operand, ops, uses, is_a=True)
        filling = None if at is None else ops[at]
        if not isinstance(filling, Copy):
            return ()
        source, kind = filling.source, filling.target.dtype
        is_array = source.is_tensor and source.tensor.memory is Memory.GLOBAL
        is_moved = source.dtype == kind or (kind == f32 and source.dtype in HALVES)
        if not is_array or not is_moved or not kind.is_float:
            return ()
        found.append(filling)
    return (*found,)


def _packing_copy(
    op: Multiply, operand: Value, before: Sequence[Op], uses: _Uses, *, is_a: bool
) -> int | None:
    """Return the index of the copy that fills an operand, if panels can be copied one by one."""
    end = place_of(before, op)
    for at in range(end - 1, -1, -1):
        copy = before[at]
        if isinstance(copy, Copy) and same_place(copy.target, operand):
            break
        if not all(isinstance(one, PASSED) for one in Block((copy,)).walk()):
            return None
    else:
        return None
    between = [*Block((*before[at + 1 : end],)).walk()]
    written = [value for one in between for value in one.written]
    # The operations that compute a fragment would have to move, too.
    is_free = all(isinstance(one, Reshape | FragmentOp | Copy) for one in between)
    is_free = is_free and all(value.is_tensor for value in written)
    if copy.source.is_fragment and not is_free:
        return None
    if any(value.is_tensor and value.tensor.memory is Memory.GLOBAL for value in written):
        return None
    later = [value.buffer for value in written]
    if copy.reduction is not None or copy.source.buffer in later:
        return None
    # Only this copy may write the tensor, and only these multiplies, as this operand, may read it.
    buffer = operand.buffer
    readers = uses.readers.get(buffer, ())
    if len(uses.writers.get(buffer, ())) != 1 or not readers:
        return None
    if not all(any(reader is other for other in op.products) for reader in readers):
        return None
    for other in op.products:
        same_side, opposite = (other.a, other.b) if is_a else (other.b, other.a)
        if buffer is opposite.buffer or (buffer is same_side.buffer and not same_place(same_side, operand)):
            return None
    unit = op.products[0].mma.atom.shape[0 if is_a else 1]
    view, found = operand.tensor.view, panels(operand.tensor.view, unit)
    is_packed = found is not None and (is_a or (found.row_stride, found.k_stride) == (1, unit))
    if view.valid != TRUE or not is_packed:
        return None
    return at


# ---------------------------------------------------------------- zeros


def _without_zeros(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Drop the clearing of accumulators where the first multiply can start its sum at 0 instead."""
    found: list[tuple[Op, ...]] = [(op,) for op in ops]
    for at, op in enumerate(ops):
        if isinstance(op, FragmentOp) and op.fill == 0:
            cleared = op.result
        elif isinstance(op, Fill) and not isinstance(op.value, Value) and op.value == 0:
            cleared = op.target
        else:
            continue
        user = next((n for n in range(at + 1, len(ops)) if _touches(ops[n], cleared)), None)
        if user is None:
            continue
        *before, last = found[user]
        begun, left = _begun(last, cleared)
        if begun is not None:
            found[at] = (replace(op, fill=None),) if isinstance(op, FragmentOp) else ()
            # The condition may depend on a value that is computed between the two.
            zeros = If(left, Block((Fill(cleared, 0, location=op.location),)), location=op.location)
            found[user] = (*before, begun) if left == FALSE else (*before, zeros, begun)
    return tuple(op for several in found for op in several)


def _touches(op: Op, value: Value) -> bool:
    return any(value in one.operands for one in (op, *(o for r in op.regions for o in r.walk())))


def _begun(op: Op, cleared: Value) -> tuple[Op | None, Cond]:
    """Return an operation that starts the sum at 0, and the condition under which zeros are still written.

    None if the operation cannot start the sum.
    """
    if isinstance(op, Multiply) and _only_sums(op, cleared):
        return _beginning(op, cleared, TRUE), FALSE
    if not isinstance(op, For):
        return None, TRUE
    users = [one for one in op.body.walk() if cleared in one.operands]
    if len(users) != 1 or not isinstance(user := users[0], Multiply) or not _only_sums(user, cleared):
        return None, TRUE
    if not any(one is user for one in op.body.ops):
        return None, TRUE
    begun = _beginning(user, cleared, equal(op.index, op.start))
    body = Block(tuple(begun if one is user else one for one in op.body.ops))
    empty = less_equal(op.stop, op.start)
    known = prove(empty)
    return replace(op, body=body), empty if known is None else TRUE if known else FALSE


def _only_sums(op: Multiply, value: Value) -> bool:
    """Whether a multiply only adds to a fragment, and does not start its sum at 0 yet."""
    adding = [begins for one, begins in zip(op.products, op.begins, strict=True) if one.c == value]
    multiplied = (operand for one in op.products for operand in (one.a, one.b))
    return bool(adding) and all(begins == FALSE for begins in adding) and value not in multiplied


def _beginning(op: Multiply, value: Value, when: Cond) -> Multiply:
    """Let the first product that adds to a fragment start at 0 under a condition."""
    first = next(at for at, one in enumerate(op.products) if one.c == value)
    return replace(op, begins=(*op.begins[:first], when, *op.begins[first + 1 :]))


# ---------------------------------------------------------------- stores


def _with_stores(ops: Sequence[Op], uses: _Uses) -> tuple[Op, ...]:
    """Let a multiply store its sums itself, if a copy to global memory is the only later use of them."""
    found = [*ops]
    for at, op in enumerate(ops):
        if not isinstance(op, Copy) or not op.source.is_fragment or op.reduction is not None:
            continue
        if not op.target.is_tensor or op.target.tensor.memory is not Memory.GLOBAL:
            continue
        before = at - 1
        while before >= 0 and isinstance(found[before], Reshape):
            before -= 1
        made = _storing(found[before], op, uses) if before >= 0 else None
        if made is not None:
            found[before], found[at] = made
    return tuple(found)


def _storing(op: Op, copy: Copy, uses: _Uses) -> tuple[Op, StoreSums] | None:
    """Return the multiply or its loop with the store of its sums, and the replacement of the copy."""
    is_once: Cond = TRUE
    is_short: Cond = TRUE
    body: Sequence[Op] = (op,)
    if isinstance(op, For):
        is_once, body = equal(op.stop, add(op.start, op.step)), op.body.ops
        some = less(op.start, op.stop), less_equal(op.stop, add(op.start, mul(op.step, 2)))
        is_short = all_of(*some)
    multiplies = [one for one in body if isinstance(one, Multiply)]
    if len(multiplies) != 1 or len(multiplies[0].products) != 1:
        return None
    (multiply,), others = multiplies, [one for one in body if not isinstance(one, Multiply)]
    (product,), (begins,) = multiply.products, multiply.begins
    begun = (equal(op.index, op.start),) if isinstance(op, For) else (TRUE,)
    if (
        product.c is not copy.source
        or (begins,) != begun
        or not all(isinstance(o, Copy) for o in multiply.packing)
    ):
        return None
    # The array of the result is neither read nor written by another operation of the loop.
    if not all(isinstance(one, Copy | Reshape) for one in others):
        return None
    if any(copy.target.buffer in (value.buffer for value in one.operands) for one in body):
        return None
    if any(one is not product and one is not copy for one in uses.of_fragments[copy.source]):
        return None
    store = StoreSums(copy, product, is_once, is_short, location=copy.location)
    storing = replace(multiply, store=store)
    if not isinstance(op, For):
        return storing, store
    return replace(op, body=Block(tuple(storing if one is multiply else one for one in body))), store


# ----------------------------------------------------------------
#
# Neighbouring elementwise operations on fragments share one loop.


@dataclass(frozen=True)
class Pointwise(Op):
    """Elementwise operations in one loop over the elements.  It exists only while text is emitted.

    Args:
        ops: in program order.
        distribution: the distribution of every fragment that they name.
        stored: the fragments whose new contents other operations read.
    """

    name = "pointwise"
    roles: ClassVar = {}
    ops: tuple[Op, ...]
    distribution: Distribution
    stored: tuple[Value, ...]


def _distribution(op: Op) -> Distribution | None:
    """Return the distribution of an elementwise operation's fragments; None for other operations."""
    if not isinstance(op, Elementwise | Coordinates | Fill | Copy | FragmentOp):
        return None
    if isinstance(op, Elementwise):  # operands may be broadcast
        return op.result.type.distribution if isinstance(op.result.type, FragmentType) else None
    values = [v for v in (*op.operands, *op.results) if isinstance(v, Value)]
    if any(v.is_tensor for v in values) or (isinstance(op, FragmentOp) and op.fill is None):
        return None
    spreads = {v.type.distribution for v in values if isinstance(v.type, FragmentType)}
    return spreads.pop() if len(spreads) == 1 else None


def made_by(op: Op) -> Value:
    """Return the fragment to which an elementwise operation gives new contents."""
    return op.results[0] if op.results else op.written[0]


def fuse(block: Block) -> Block:
    """Return the block with every run of elementwise operations as one `Pointwise`."""
    readers: Counter[Value] = Counter()
    for op in block.walk():
        readers.update(set(op.read))
    return _fused(block, readers)


def _fused(block: Block, readers: Counter[Value]) -> Block:
    # Elementwise operations move up to the operation that makes their input, past operations on other values:
    # then one loop computes both, and an element does not go through memory in between.
    gathered: list[Op] = []
    for op in block.ops:
        is_elementwise = _distribution(op) is not None or _is_operand(op)
        gathered.insert(_earliest(op, gathered) if is_elementwise else len(gathered), op)
    ops: list[Op] = []
    for group in _groups(gathered):
        spread = _distribution(group[0])
        if spread is None:
            ops.append(group[0].with_regions(lambda region: _fused(region, readers)))
            continue
        inside = Counter(value for op in group for value in set(op.read))
        made = dict.fromkeys(made_by(op) for op in group)
        own = {op.results[0] for op in group if isinstance(op, Elementwise | Coordinates)}
        # A loop's next iteration may read a fragment that the group does not define, only writes.
        stored = tuple(v for v in made if v not in own or readers[v] > inside[v])
        ops.append(Pointwise(group, spread, stored, location=group[0].location))
    return Block(tuple(ops))


def _earliest(op: Op, before: Sequence[Op]) -> int:
    """Return the index after the last operation that makes an input of ``op``; the end if it cannot move."""
    spread = op.read[0].fragment.distribution if _is_operand(op) else _distribution(op)
    for at in range(len(before), 0, -1):
        last = before[at - 1]
        if _distribution(last) == spread and made_by(last) in op.read:
            while at < len(before) and (_is_operand(before[at]) or _distribution(before[at]) == spread):
                at += 1  # in program order after others of the same loop
            return at
        if _meet(last, op) or not op_symbols(op).isdisjoint(last.results):
            break
    return len(before)


def _meet(first: Op, second: Op) -> bool:
    """Whether two operations must keep their order, because one writes a value that the other uses."""
    for one, other in ((first, second), (second, first)):
        parts, others = [*Block((one,)).walk()], [*Block((other,)).walk()]
        made = {value.buffer for part in parts for value in _changed(part)}
        if any(value.buffer in made for part in others for value in (*part.read, *part.written)):
            return True
    return False


def _changed(op: Op) -> Iterator[Value]:
    """Yield the values to which an operation gives contents.  Declarations of memory and views give none."""
    yield from op.written
    if not isinstance(op, Shared | Reshape) and not (isinstance(op, FragmentOp) and op.fill is None):
        yield from (value for value in op.results if isinstance(value, Value))


def _groups(ops: Sequence[Op]) -> Iterator[tuple[Op, ...]]:
    run: list[Op] = []
    for op in ops:
        if isinstance(op, FragmentOp) and op.fill is None:
            yield (op,)  # it only declares, so it may come before the run
            continue
        spread = _distribution(op)
        if _is_operand(op):
            # The store may share the loop of a run that makes its elements, if no other store of the run
            # writes the same memory through another view: in one loop the stores alternate, so the later one
            # would not always write last.
            (target,) = op.written
            others = [one.written[0] for one in run if _is_operand(one)]
            is_last = all(one.buffer is not target.buffer or same_place(one, target) for one in others)
            if is_last and any(made_by(one) is op.read[0] for one in run):
                run.append(op)
                continue
        if run and (spread is None or spread != _distribution(run[0])):
            yield tuple(run)
            run = []
        if spread is None:
            yield (op,)
        else:
            run.append(op)
    if run:
        yield tuple(run)


def _is_operand(op: Op) -> bool:
    """Whether an operation copies a fragment to shared memory whose offsets are linear, as rows of A are."""
    if not isinstance(op, Copy) or not op.source.is_fragment or not op.target.is_tensor:
        return False
    kind = op.target.tensor
    is_plain = op.reduction is None and kind.memory is Memory.SHARED and kind.view.valid == TRUE
    return is_plain and kind.shape == op.source.fragment.shape and linear(kind.view) is not None
