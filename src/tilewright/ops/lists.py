"""`grouped_matmul` of lists of arrays: products of any extents, in one launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tilewright import dtypes
from tilewright.arch import Arch
from tilewright.dtypes import DType
from tilewright.errors import DTypeError, LaunchError
from tilewright.ir.async_legality import wanted_maps
from tilewright.ir.copies import MAP_WORDS
from tilewright.ir.kernel import TensorMap
from tilewright.lang.specs import TensorSpec
from tilewright.namespaces import part
from tilewright.ops.launching import Launch, moved_by, plan_text, warn
from tilewright.ops.planning import of_sums
from tilewright.ops.products import each
from tilewright.ops.replay import Done, Located, called
from tilewright.ops.results import check_sums, result_dtype
from tilewright.ops.wanted import Wanted, check_words
from tilewright.runtime.arrays import ArrayInfo, Fresh, current_stream, describe, fresh, stream_handle
from tilewright.runtime.backends import Backend, arch_of, backend_for
from tilewright.runtime.binding import check_output
from tilewright.runtime.executable import Executable, Prepared
from tilewright.runtime.frameworks import Device, Strided
from tilewright.runtime.kernel import Bound, kernel
from tilewright.runtime.listed import ALIGN_BYTES, ArrayList, Integers, ListMaps, ListShape, check_apart
from tilewright.runtime.plans import Plans
from tilewright.runtime.recent import Recent
from tilewright.schedule.choice import schedule_of_lists
from tilewright.schedule.form import Form, form_of
from tilewright.schedule.legality import check
from tilewright.schedule.lists import COUNT, LAST, PLACES, SIZES, TABLE, map_columns, mapped
from tilewright.schedule.question import Question, coarse
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import HOST, TARGETS

# ---------------------------------------------------------------- the table that the kernel reads
#
# `tilewright.schedule.lists` defines its columns.

LISTS = {"a": "A", "b": "B", "bias": "bias", "out": "D"}
"""Lists of a call, with the kernel's names for them."""

ROWS = 256
"""The table's number of rows is a multiple of this, so that lists of many lengths share a kernel."""

MOST_TILES = 2**31 - 1


class Extents(NamedTuple):
    """Extents of one product."""

    m: int
    n: int
    k: int


def typical(extents: Sequence[Extents]) -> tuple[int, int, int, int]:
    """Return a number of equal products with as much work, and their M, N and K, averaged by work.

    Example:
        >>> typical([Extents(100, 64, 64)] * 8)
        (8, 100, 64, 64)
        >>> typical([Extents(4, 64, 64)] * 50 + [Extents(1000, 64, 64)])
        (1, 834, 64, 64)
    """
    sizes = np.maximum(np.asarray(extents, np.float64), 1)
    work = np.prod(sizes, axis=1)
    m, n, k = (int(extent) for extent in np.ceil(np.average(sizes, axis=0, weights=work) - 1e-6))
    return max(round(work.sum() / (m * n * k)), 1), m, n, k


class ListTable:
    """The kernel's table of products, for lists whose arrays have these extents and strides.

    Args:
        shapes: shapes and strides of each list.
        extents: extents of each product.
        form: the form of the kernel.
        schedule: the schedule of the kernel.
        specs: the kernel's specialisation of each list, by its own names.

    Raises:
        LaunchError: the products have too many tiles.
    """

    def __init__(
        self,
        shapes: Mapping[str, ListShape],
        extents: Sequence[Extents],
        form: Form,
        schedule: Schedule,
        specs: Mapping[str, TensorSpec],
    ) -> None:
        ranks = {LISTS[name]: 1 + shape.steps.shape[1] for name, shape in shapes.items()}
        self._columns = map_columns(ranks, mapped(form, schedule, specs))
        self._maps = {name: ListMaps(shapes[name]) for name in shapes if LISTS[name] in self._columns}
        ends = (PLACES + sum(ranks.values()), *(column + MAP_WORDS for column in self._columns.values()))
        self._known = _known(shapes, extents, schedule, max(ends))
        self.products = len(extents)
        self._forms: tuple[Executable | None, dict[int, TensorMap]] = (None, {})

    @property
    def tiles(self) -> int:
        """Number of tiles of all products."""
        return int(self._known[self.products - 1, LAST])

    def filled(self, lists: Mapping[str, ArrayList]) -> Integers:
        """Return the table with the address of each array, and without tensor maps."""
        made, column = self._known.copy(), PLACES
        for list_ in lists.values():
            made[: self.products, column] = list_.starts
            column += 1 + list_.shape.steps.shape[1]
        return made

    def write_maps(self, table: Integers, lists: Mapping[str, ArrayList], executable: Executable) -> None:
        """Write the tensor map of every array that the kernel copies in boxes.

        Args:
            table: the table.
            lists: the lists with their addresses.
            executable: the kernel, which knows the sizes of the boxes.
        """
        if not self._maps:
            return
        known, forms = self._forms
        if known is not executable:
            forms = {wanted.column: wanted.form for wanted in wanted_maps(executable.kernel)}
            self._forms = (executable, forms)
        for name, maps in self._maps.items():
            column = self._columns[LISTS[name]]
            if column not in forms:  # threads store this list: its slices are not boxes
                continue
            words = maps.of(lists[name], forms[column], encoded=executable.listing is not None)
            table[: self.products, column : column + MAP_WORDS] = words


def _known(
    shapes: Mapping[str, ListShape], extents: Sequence[Extents], schedule: Schedule, columns: int
) -> Integers:
    """Return the part of the table that does not depend on addresses."""
    count = len(extents)
    table = np.zeros((-(-count // ROWS) * ROWS, columns), np.int64)
    sizes = np.asarray(extents, np.int64)
    tile = np.asarray(schedule.tile[:2][:: -1 if schedule.swap_ab else 1])
    table[:count, LAST] = np.cumsum(np.prod(-(-sizes[:, :2] // tile), axis=1))
    if table[count - 1, LAST] > MOST_TILES:
        text = f"grouped_matmul: {table[count - 1, LAST]} tiles of {tile[0]} x {tile[1]}"
        raise LaunchError(text, f"shorter lists, of at most {MOST_TILES} tiles in all")
    table[:count, SIZES:PLACES] = sizes
    column = PLACES
    for shape in shapes.values():
        rank = shape.steps.shape[1]
        table[:count, column + 1 : column + 1 + rank] = shape.steps
        column += 1 + rank
    return table


# ---------------------------------------------------------------- calls


WRITES = "tilewright.schedule.expand:write_lists"
"""Writes kernels of lists. Imported when the first one is traced."""

UPLOADS = "tilewright.runtime.gpu_memory:uploads"
"""Uploads tables to a GPU. Imported at the first upload."""


class RepeatedLaunch(NamedTuple):
    """A launch that repeats an earlier one at the same addresses. It keeps no array alive.

    Args:
        prepared: the launch.
        arguments: its arguments, without the arrays themselves.
        pointers: addresses of the arrays, without that of the table.
        table: the bytes of the table.
        device: the device of the arrays.
    """

    prepared: Prepared
    arguments: tuple[Any, ...]
    pointers: tuple[int, ...]
    table: bytes
    device: Device

    def launch(self, arrays: Sequence[Any], stream: Any) -> None:
        """Upload the table, and launch, by default on the current stream of the arrays' framework."""
        handle = current_stream(self.device, arrays) if stream is None else stream_handle(stream)
        with part(UPLOADS)(self.device).table(self.table, handle) as address:
            self.prepared.launch(self.arguments, [*self.pointers, address], handle)


_PLANS: Plans[Any] = Plans()
_SAME: Recent[Any, RepeatedLaunch] = Recent(64)


def product_of_lists(given: Mapping[str, Any], wanted: Wanted, stream: Any) -> list[Any]:
    """``out[g] = activation(a[g] @ b[g] + bias[g])`` for every ``g``.

    Args:
        given: the lists by their names; None for an absent one.
        wanted: the other arguments of the call.
        stream: the CUDA stream.

    Raises:
        LaunchError: lists of unequal lengths, shapes that do not fit, outputs that share memory.
        DTypeError: an unsupported dtype or mixture, or two dtypes in one list.
    """
    lists: dict[str, Sequence[Any]] = {}
    for name, list_ in given.items():
        if list_ is None and name not in ("a", "b"):
            continue
        if not isinstance(list_, list | tuple):
            text = f"grouped_matmul: {name} is a single {type(list_).__name__}, and other arguments are lists"
            raise LaunchError(text, "a list with one array for each product")
        if len(list_) != len(lists.get("a", list_)):
            text = f"grouped_matmul: {len(list_)} arrays in {name} and {len(lists['a'])} in a"
            raise LaunchError(text, "lists of the same length")
        lists[name] = list_
    count = len(lists["a"])
    if not count:
        return list(lists.get("out", ()))

    def first(located: Sequence[Located]) -> Done:
        return plan_lists(lists, wanted, located).launch(stream)

    arrays = [array for name in LISTS for array in lists.get(name, (None,) * count)]
    made = called(_PLANS, arrays, (wanted, count), (), stream, first, itemgetter(slice(-count, None)))
    return list(made)


def plan_lists(
    lists: Mapping[str, Sequence[Any]], wanted: Wanted, located: Sequence[Located] = ()
) -> ListPlan:
    """Check the arguments of `product_of_lists`, and plan its launch.

    Args:
        lists: the lists that the caller passed, which are not empty.
        wanted: the other arguments of the call.
        located: the keys and addresses of the arrays of all possible lists, if the caller has read them.

    Raises:
        LaunchError: shapes that do not fit, or outputs that cannot be written.
        DTypeError: an unsupported dtype or mixture, or two dtypes in one list.
    """
    check_words(wanted)
    count = len(lists["a"])
    read = {name: located[at * count : (at + 1) * count] for at, name in enumerate(LISTS)}
    infos = {name: _described(name, lists[name], read[name]) for name in LISTS if name in lists}
    extents, kind = _extents(infos), _kind(infos, wanted)
    made, fresh_arrays = dict(lists), list[Fresh]()
    if "out" not in lists:
        fresh_arrays = [fresh(a, (e.m, e.n), kind) for a, e in zip(lists["a"], extents, strict=True)]
        made["out"] = [one.make() for one in fresh_arrays]
        infos["out"] = _described("out", made["out"])
    numbered = tuple(enumerate(fresh_arrays, (len(LISTS) - 1) * count))
    return ListPlan(made, infos, ListReplay.of(infos, extents, wanted, numbered))


@dataclass(frozen=True)
class ListPlan:
    """The launch of a call with lists, as data; tools read it as they read a `LaunchPlan`.

    Args:
        lists: the arrays of each list, with results.
        infos: their descriptions.
        replay: the launch on any addresses.
    """

    lists: Mapping[str, Sequence[Any]]
    infos: Mapping[str, Sequence[ArrayInfo]]
    replay: ListReplay
    scratch_bytes: ClassVar[int] = 0
    reason: ClassVar[str] = "one kernel reads the addresses of the arrays from a table"

    @property
    def result(self) -> list[Any]:
        """The arrays that the call returns."""
        return list(self.lists["out"])

    @property
    def kernels(self) -> tuple[Bound, ...]:
        """The kernel; none if no product has an element."""
        return (self.replay.kernel,) if self.replay.table.tiles else ()

    @property
    def target(self) -> str:
        """Name of the target that runs it."""
        return self.replay.backend.name

    @property
    def schedule(self) -> Schedule | None:
        """Schedule of the products; None if there is nothing to compute."""
        return self.replay.kernel.constants["schedule"] if self.kernels else None

    @property
    def moved_bytes(self) -> int:
        """Bytes that the launch reads and writes, without the table."""
        return sum(moved_by(info) for list_ in self.infos.values() for info in list_)

    def __str__(self) -> str:
        return plan_text(self.kernels, self.scratch_bytes, self.moved_bytes, self.reason)

    def launch(self, stream: Any = None) -> Done:
        """Launch the kernel, and return the results with their replay, if the target supports replays.

        Args:
            stream: the CUDA stream; None: the framework's current one.
        """
        absent = (None,) * len(self.lists["a"])
        arrays = [array for name in LISTS for array in self.lists.get(name, absent)]
        at = [one and one.pointer for name in LISTS for one in self.infos.get(name, absent)]
        self.replay.launch(arrays, at, stream)
        is_kept = self.replay.prepared_launches and TARGETS[self.target].machine_code
        record: Any = self.replay if is_kept else None
        return Done(self.result, record)


@dataclass(eq=False)
class ListReplay:
    """A launch of the product of lists, for any addresses of their arrays.

    Args:
        shapes: shapes and strides of each list.
        backend: the backend that serves the arrays.
        kernel: the kernel.
        table: the kernel's table of products.
        fresh: allocates the results that the caller did not pass, with their numbers among the arrays.
        warns: whether to warn if the product is far slower than the hardware.
        prepared_launches: the prepared launch; empty before the first launch.
        last_numbers: no numbers; see `Replay`.
    """

    shapes: Mapping[str, ListShape]
    backend: Backend
    kernel: Bound
    table: ListTable
    fresh: tuple[tuple[int, Fresh], ...]
    warns: bool
    prepared_launches: tuple[Prepared, ...] = ()
    last_numbers: tuple[Any, ...] = ()

    @staticmethod
    def of(
        infos: Mapping[str, Sequence[ArrayInfo]],
        extents: Sequence[Extents],
        wanted: Wanted,
        fresh: tuple[tuple[int, Fresh], ...],
    ) -> ListReplay:
        """Make the launch of a call.

        Args:
            infos: descriptions of the arrays of each list.
            extents: the extents of each product.
            wanted: the other arguments of the call.
            fresh: allocates the results that the caller did not pass.
        """
        named = [(f"{name}[{at}]", one) for name, list_ in infos.items() for at, one in enumerate(list_)]
        # One array of each device, so that errors name few arrays.
        places = {info.device: (name, info) for name, info in reversed(named)}
        backend = backend_for("grouped_matmul", list(places.values()), wanted.target)
        for name, info in named:
            if name.startswith("out"):
                check_output("grouped_matmul", name, info)
        shapes = {name: ListShape(list_) for name, list_ in infos.items()}
        arch = arch_of(backend, None)
        exact = tuple((LISTS[name], shape.spec) for name, shape in shapes.items())
        specs = tuple((name, coarse(spec, arch)) for name, spec in exact)
        kernel = kernel_for(
            specs, typical(extents), wanted._replace(target=None), arch, backend.processors(), exact
        )
        said = kernel.constants
        table = ListTable(shapes, extents, said["form"], said["schedule"], dict(specs))
        return ListReplay(shapes, backend, kernel, table, fresh, wanted.schedule is None)

    def run(
        self, arrays: Sequence[Any], at: Sequence[Any], numbers: tuple[Any, ...], stream: Any
    ) -> Sequence[Any] | None:
        """Launch on other arrays of the same metadata; see `Replay.run`.

        Args:
            arrays: the arrays of all lists in the order of `LISTS`; None for an absent one.
            at: their addresses.
            numbers: no numbers.
            stream: the caller's stream.
        """
        if self.fresh:
            arrays, at = [*arrays], [*at]
            for place, maker in self.fresh:
                arrays[place] = made = maker.make()
                at[place] = address = maker.address(made)
                if address % ALIGN_BYTES:  # the kernel was compiled for multiples of 16
                    return None
        self.launch(arrays, at, stream)
        return arrays

    def launch(self, arrays: Sequence[Any], at: Sequence[Any], stream: Any) -> None:
        """Launch on arrays of the same metadata, results included; see `run`."""
        repeat = _SAME.get((self, *at))
        if repeat is not None:
            repeat.launch(arrays[:1], stream)
            return
        count = self.table.products
        if self.table.tiles == 0:
            return
        lists = dict[str, ArrayList]()
        for number, name in enumerate(LISTS):
            if name in self.shapes:
                own = slice(number * count, (number + 1) * count)
                lists[name] = ArrayList.of(name, arrays[own], self.shapes[name], at[own])
        check_apart(lists, "out")
        if not TARGETS[self.backend.name].machine_code:  # the reference reads every element of its arguments
            copies = {name: list_.together() for name, list_ in lists.items()}
            self._start(copies, stream)
            lists["out"].take(copies["out"])
        elif (found := self._start(lists, stream)) is not None:
            _SAME.keep((self, *at), found)

    def _start(self, lists: Mapping[str, ArrayList], stream: Any) -> RepeatedLaunch | None:
        """Launch, and return a launch that repeats it, if the target has one."""
        count, table = self.table.products, self.table.filled(lists)
        first = lists["a"].shape.infos[0]
        # On a GPU, each launch passes the address of the uploaded table. Plans do not depend on it.
        place = replace(first, pointer=table.ctypes.data, shape=table.shape, strides=(table.shape[1], 1))
        seen = Strided(
            table if first.device == HOST else lists["a"].arrays[0],
            replace(place, dtype=dtypes.i64, readonly=True),
        )
        absent = lists["b"].buffer  # replaces an absent bias, which the kernel does not read
        buffers = [*(lists[name].buffer if name in lists else absent for name in LISTS), seen]
        product = Launch(self.kernel, tuple(buffers), (*LISTS, TABLE), (count,))
        prepared, arguments, pointers = product.prepare(0, self.backend.name)
        self.prepared_launches = (prepared,)
        self.table.write_maps(table, lists, prepared.executable)
        if self.warns and TARGETS[self.backend.name].warps:
            warn(prepared.executable)
        if isinstance(first.device, str):
            prepared.launch(arguments, pointers, stream)
            return None
        bare = tuple(Strided(None, replace(one.info, owner=None)) for one in buffers)
        content = table[:count].tobytes()
        found = RepeatedLaunch(prepared, (*bare, count), tuple(pointers[:-1]), content, first.device)
        found.launch(lists["a"].arrays[:1], stream)
        return found


def _kind(infos: Mapping[str, Sequence[ArrayInfo]], wanted: Wanted) -> DType:
    """Return the dtype of the results, after a check of integer sums."""
    first, op = {name: list_[0].dtype for name, list_ in infos.items()}, "grouped_matmul"
    kind, depth = result_dtype(first, wanted, op), max(one.shape[1] for one in infos["a"])
    check_sums(op, first, depth, kind, wanted)
    return kind


# -------------------------------------------------------------------- kernels


@kernel(table="G F", count=int)
def listed(
    A: Any,
    B: Any,
    bias: Any,
    D: Any,
    table: Any,
    count: Any,
    *,
    form: Form,
    schedule: Schedule,
    specs: tuple[tuple[str, TensorSpec], ...],
) -> None:
    """Compute the products of `each` for lists: buffers that hold all arrays, and a table of addresses."""
    arguments = {"A": A, "B": B, "bias": bias, "D": D, TABLE: table, COUNT: count}
    part(WRITES)(form, schedule, dict(specs), arguments)


@lru_cache(maxsize=1024)
def kernel_for(
    specs: tuple[tuple[str, TensorSpec], ...],
    extents: tuple[int, int, int, int],
    wanted: Wanted,
    arch: Arch,
    processors: int,
    exact: tuple[tuple[str, TensorSpec], ...] = (),
) -> Bound:
    """Return the kernel for lists of some specialisations.

    Args:
        specs: the specialisation of each list, by the names of the kernel.
        extents: the number of products, and M, N and K of a typical one.
        wanted: the other arguments of the call.
        arch: the architecture.
        processors: the machine's number of processors.
        exact: finer specialisations, which guide the choice of a schedule.

    Raises:
        ScheduleError: the caller's schedule is not legal for these lists.
    """
    known = dict(specs)
    form = _form(specs, wanted.precision, wanted.activation)
    schedule = wanted.schedule
    if schedule is None:
        said = _complete(known | dict(exact))
        schedule = schedule_of_lists(Question(form, said, extents, arch, max(processors, 1)))
    check(schedule, form, _complete(known), arch)
    return listed.bind(form=form, schedule=schedule, specs=specs)


@lru_cache(maxsize=256)
def _form(specs: tuple[tuple[str, TensorSpec], ...], precision: str, activation: str | None) -> Form:
    """Return the form of the product, traced with one array for each list."""
    known = dict(specs)
    kinds = {spec.dtype for spec in known.values()}
    wide = dtypes.f64 in kinds or not known["A"].dtype.is_float
    terms = {"bias"} & known.keys() | ({"activation"} if activation is not None else set())
    kernel = each(dtypes.f64 if wide else dtypes.f32).bind(
        precision=of_sums(precision, known["A"].dtype), terms=frozenset(terms), activation=activation
    )
    return replace(form_of(kernel.flow(**_complete(known))), lists=True)


def _complete(specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """Return specialisations of all arrays; an absent bias, which is not read, gets that of a row of B."""
    b = specs["B"]
    row = replace(b, rank=2, unit_dim=None, extent_divisors=(1, 1), stride_divisors=(1, 1))
    return {name: specs.get(name, row) for name in LISTS.values()}


# -------------------------------------------------------------------- checks of the arrays


def _described(name: str, arrays: Sequence[Any], located: Sequence[Located] = ()) -> list[ArrayInfo]:
    """Describe the arrays of a list, and check that they have one dtype and the list's rank."""
    rank = 1 if name == "bias" else 2
    found: list[ArrayInfo] = []
    for at, array in enumerate(arrays):
        read = located[at] if located else None
        info = describe(array, f"grouped_matmul, argument {name}[{at}]", located=read)
        if len(info.shape) != rank:
            legal = "(N,)" if rank == 1 else {"a": "(M, K)", "b": "(K, N)", "out": "(M, N)"}[name]
            raise LaunchError(f"grouped_matmul: {name}[{at}] has shape {info.shape}", legal)
        if info.dtype != (found or [info])[0].dtype:
            text = f"grouped_matmul: {name}[{at}] is {info.dtype}, and {name}[0] is {found[0].dtype}"
            raise DTypeError(text, f"one dtype for all of {name}")
        found.append(info)
    return found


def _extents(infos: Mapping[str, Sequence[ArrayInfo]]) -> list[Extents]:
    """Return the extents of each product.

    Raises:
        LaunchError: two arrays of a product do not fit; the message names the product.
    """
    found = []
    dims = {"a": "MK", "b": "KN", "bias": "N", "out": "MN"}
    for at in range(len(infos["a"])):
        known: dict[str, tuple[int, str]] = {}
        for name, list_ in infos.items():
            for dim, extent in zip(dims[name], list_[at].shape, strict=True):
                first, where = known.setdefault(dim, (extent, name))
                if first != extent:
                    raise LaunchError(
                        f"grouped_matmul: product {at}: {name}[{at}] has {dim} = {extent}, and "
                        f"{where}[{at}] has {dim} = {first}",
                        first,
                    )
        found.append(Extents(*(known[dim][0] for dim in "MNK")))
    return found
