"""Programs: the author's function, its signature, and its trace for one class of arguments."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewright.arch import REFERENCE, Arch
from tilewright.calls import mark
from tilewright.dataflow.nodes import Flow
from tilewright.dtypes import DType, i32
from tilewright.errors import (
    DTypeError,
    LaunchError,
    LayoutError,
    SignatureError,
    TilewrightError,
    TraceError,
    close_to,
    shown,
)
from tilewright.ir.builder import is_reserved
from tilewright.ir.kernel import (
    Argument,
    Extent,
    Kernel,
    Param,
    ScalarParam,
    SizeParam,
    Stride,
    TensorParam,
    used_symbols,
)
from tilewright.ir.types import Memory, ScalarType, TensorType, Value
from tilewright.ir.verify import violations
from tilewright.lang.scalars import Scalar
from tilewright.lang.source import author_names, raised_at
from tilewright.lang.specs import TensorSpec
from tilewright.lang.tensors import Number, Tensor
from tilewright.lang.tracer import Tracer, threads_of, tracing
from tilewright.passes.synchronise import synchronise
from tilewright.symbolic.nodes import Int, Sym
from tilewright.views.view import View

EXPLICIT, AUTO = "explicit", "auto"
SYNC = (EXPLICIT, AUTO)
"""Values of ``sync``: the author places barriers and waits, or `tilewright.passes.synchronise` does."""

LEAST, LARGEST = -(2**31), 2**31 - 1
BATCH = "..."
"""Name in a declaration that stands for any number of dimensions."""
LEAST_STRIDE = -(2**63)


@dataclass(frozen=True)
class Parameter:
    """One run-time parameter of a program.

    Args:
        name: its name.
        kind: ``"tensor"``, ``"scalar"`` or ``"index"``.
        dims: names of a tensor's dimensions; empty if the author gave none.  `BATCH` stands for any number of
            dimensions, with the same extents in all tensors that declare it.
        dtype: dtype of a scalar.
        default: value of a number or an integer that a launch omits; None if there is no default.
    """

    name: str
    kind: str
    dims: tuple[str, ...] = ()
    dtype: DType = i32
    default: float | int | None = None

    @property
    def named(self) -> tuple[str, ...]:
        """The dimensions that have a name."""
        return tuple(dim for dim in self.dims if dim != BATCH)


class Program:
    """An author's function that describes a kernel.

    Args:
        function: takes run-time parameters positionally and compile-time constants by keyword only.
        declared: for each run-time parameter its dimensions (``"M K"``), a `DType` for a number, or ``int``.
        sync: who places barriers and waits, one of `SYNC`.
    """

    def __init__(
        self, function: Callable[..., None], declared: Mapping[str, Any] | None = None, sync: str = EXPLICIT
    ) -> None:
        if not (inspect.isfunction(function) or inspect.ismethod(function)):
            raise SignatureError(f"@tw.kernel of {shown(function)}: the decorator takes a function")
        self.function: Callable[..., object] = function
        self.name = function.__name__ if function.__name__.isidentifier() else "kernel"  # a lambda
        if sync not in SYNC:
            raise SignatureError(
                f"kernel {self.name}: sync={shown(sync)}",
                f"sync={EXPLICIT!r} (the author places barriers and waits) or sync={AUTO!r} (the library "
                "places them)",
            )
        self.sync = sync
        self.__doc__ = function.__doc__
        self.constants: tuple[str, ...] = ()
        self.defaults: dict[str, Any] = {}
        found, declared = [], dict(declared or {})
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY:
                self.constants += (parameter.name,)
                if parameter.default is not parameter.empty:
                    self.defaults[parameter.name] = parameter.default
            elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                default = None if parameter.default is parameter.empty else parameter.default
                found.append(_parameter(self.name, parameter.name, declared.pop(parameter.name, ""), default))
            else:
                raise SignatureError(
                    f"kernel {self.name}: parameter {parameter} cannot be variadic or positional-only"
                )
        if declared:
            names = ", ".join(parameter.name for parameter in found)
            near = "".join(close_to(name, [parameter.name for parameter in found]) for name in declared)
            raise SignatureError(
                f"kernel {self.name} declares {', '.join(declared)}, its parameters are {names}{near}"
            )
        self.parameters: tuple[Parameter, ...] = tuple(found)

    def with_defaults(self, constants: Mapping[str, Any]) -> dict[str, Any]:
        """The constants, completed by defaults.

        Raises:
            LaunchError: a constant is missing or unknown.
        """
        unknown = [name for name in constants if name not in self.constants]
        given = {**self.defaults, **constants}
        missing = [name for name in self.constants if name not in given]
        if unknown or missing:
            near = [close_to(name, self.constants) for name in unknown]
            parts = [f"unknown constant {', '.join(unknown)}{''.join(near)}"] if unknown else []
            parts += [f"missing constant {', '.join(missing)}"] if missing else []
            rule = f"its constants are {', '.join(self.constants) or 'none'}"
            text = f"kernel {self.name}: {' and '.join(parts)}; {rule}"
            raise LaunchError(text)
        return given

    def trace(
        self,
        specs: Mapping[str, TensorSpec],
        constants: Mapping[str, Any] | None = None,
        arch: Arch = REFERENCE,
    ) -> Kernel:
        """Record an explicit kernel; see `run`.

        Raises:
            TraceError: the function did something that cannot be recorded; shows the line.  Or it is a
                dataflow kernel, which needs a schedule to become an explicit kernel.
        """
        made = self.run(specs, constants, arch)
        if isinstance(made, Flow):
            where = made.stores[0].location if made.stores else None
            raise TraceError(
                f"kernel {self.name} is a dataflow kernel: a schedule must first expand it into an "
                "explicit kernel",
                where,
            )
        return made

    def run(
        self,
        specs: Mapping[str, TensorSpec],
        constants: Mapping[str, Any] | None = None,
        arch: Arch = REFERENCE,
    ) -> Kernel | Flow:
        """Run the function with symbolic arguments and record the kernel, or the flow of a loop over tiles.

        It normally runs once.  It runs again if the first run had to assume a number that turned out to be
        different: the warp size, if an atom needs another than the architecture's usual one; or the number of
        threads of the block, if a tile is distributed over all threads before an operation determines it.

        Args:
            specs: the class of each tensor parameter.
            constants: values of the keyword-only parameters.
            arch: the target architecture, with its warp size and other limits.

        Raises:
            TraceError: the function did something that cannot be recorded; shows the line.
        """
        given = self.with_defaults(constants or {})
        tracer = Tracer(arch)
        while True:
            try:
                made = self._record(tracer, specs, given)
            except TilewrightError:
                again = tracer.corrected(threads_of(tracer.builder.so_far(), tracer.lanes))
                if again is None:
                    raise
            else:
                again = tracer.corrected(made.threads) if isinstance(made, Kernel) else None
                if again is None:
                    return made
            tracer = again

    def _record(
        self, tracer: Tracer, specs: Mapping[str, TensorSpec], given: Mapping[str, Any]
    ) -> Kernel | Flow:
        """Run the function once."""
        tracer.builder.names.reserved = author_names(self.function)
        sizes: dict[str, SizeParam] = {}
        divisors = self._divisors(specs)
        params: list[Param] = []
        with tracing(tracer):
            arguments: list[Any] = []
            for parameter in self.parameters:
                tracer.name(parameter.name)
            for parameter in self.parameters:
                if parameter.kind == "tensor":
                    value = _tensor(tracer, parameter, specs[parameter.name], divisors, sizes)
                    params.append(TensorParam(value))
                    arguments.append(Tensor(value))
                elif parameter.kind == "scalar":
                    value = Value(parameter.name, ScalarType(parameter.dtype))
                    params.append(ScalarParam(value))
                    arguments.append(Number(value))
                else:
                    sym = Sym(parameter.name, LEAST, LARGEST)
                    tracer.data.add(sym)
                    sizes[parameter.name] = SizeParam(sym, Argument(parameter.name))
                    arguments.append(Scalar(sym))
            tracer.sizes.update(size.sym for size in sizes.values())
            try:
                returned = self.function(*arguments, **given)
            except (LayoutError, DTypeError) as error:  # layouts and atoms do not know the author's line
                located = TraceError(str(error), raised_at(error))
                raise located.with_traceback(error.__traceback__) from None
            except Exception as error:
                mark(error)
                raise
        if returned is not None:
            kind = type(returned).__name__
            raise TraceError(
                f"kernel {self.name} returns a {kind}; a kernel writes to its arrays and returns nothing"
            )
        if tracer.flow is not None:
            tracer.finish()
            indices = {p.name: sizes[p.name].sym for p in self.parameters if p.kind == "index"}
            others = iter(params)
            ordered = [indices[p.name] if p.name in indices else next(others) for p in self.parameters]
            return tracer.flow.finish(self.name, ordered)
        return _finish(self, tracer, params, sizes)

    def _divisors(self, specs: Mapping[str, TensorSpec]) -> dict[str, int]:
        """Return a divisor of each named dimension; tensors that share a name agree on the extent.

        Raises:
            LaunchError: tensors with `BATCH` differ in the number of leading dimensions.
        """
        counts = {p.name: specs[p.name].rank - len(p.named) for p in self.parameters if BATCH in p.dims}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{name} has {count}" for name, count in counts.items())
            near = "the same number, with a stride of 0 if an array is repeated, e.g. numpy.broadcast_to"
            raise LaunchError(f"kernel {self.name}: {found} of the dimensions {BATCH}", near)
        divisors: dict[str, int] = {}
        for parameter in self.parameters:
            if parameter.kind != "tensor":
                continue
            spec = specs[parameter.name]
            names = dim_names(parameter, spec.rank, self.name)
            for name, known in zip(names, spec.extent_divisors, strict=True):
                divisors[name] = math.lcm(divisors.get(name, 1), known)
        return divisors


def by_name(
    names: Iterable[str], function: Callable[..., None], constants: Callable[..., object] | None = None
) -> Callable[..., None]:
    """Return a function with these parameters, which passes them on as attributes of one object.

    Args:
        names: names of run-time parameters.
        function: takes that object, and compile-time constants by keyword.
        constants: the function whose name, docstring and constants the result has; None: ``function``.
    """
    like, names = constants or function, tuple(names)

    def taking(*values: Any, **words: Any) -> None:
        function(SimpleNamespace(**dict(zip(names, values, strict=True))), **words)

    own = inspect.signature(like).parameters.values()
    found = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    found += (one for one in own if one.kind is one.KEYWORD_ONLY)
    functools.update_wrapper(taking, like)
    taking.__wrapped__ = function  # type: ignore[attr-defined]
    taking.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
    return taking


class FunctionSignature:
    """A kernel as a function of its arguments, which returns new arrays for its results.

    Args:
        program: the kernel, whose results declare the names of their dimensions.
        results: the names of its results.
        dtypes: dtypes of results by name.
        taken: names of other functions.

    Raises:
        SignatureError: a result is no array of the kernel, or no argument has one of its dimensions.
    """

    def __init__(
        self, program: Program, results: Sequence[str], dtypes: Mapping[str, Any], taken: Container[str]
    ) -> None:
        parameters = {one.name: one for one in program.parameters}
        for result in (*results, *dtypes):
            if result not in parameters or parameters[result].kind != "tensor":
                have = ", ".join(parameters)
                raise SignatureError(f"kernel {program.name} has no array {result}; it has {have}")
        self.results = tuple(parameters[result] for result in results)
        self.arguments = tuple(one for one in parameters.values() if one.name not in results)
        self.dtypes = dict(dtypes)
        self.sizes = {
            dim: (at, place)
            for at, one in reversed([*enumerate(self.arguments)])
            for place, dim in enumerate(one.dims)
        }
        """For each dimension, the argument that gives its extent, and the axis of that argument."""

        for one in self.results:
            if missing := [dim for dim in one.dims if dim not in self.sizes]:
                raise SignatureError(
                    f"kernel {program.name}: no argument has the dimension {missing[0]} of the result "
                    f"{one.name}",
                    f"one of {', '.join(self.sizes)}",
                )
        names = (f"kernel_{program.name}{f'_{at}' if at > 1 else ''}" for at in count(1))
        self.name = next(name for name in names if name not in taken)
        """Its name, with a number if another function has the kernel's name."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of arguments and results."""
        return tuple(one.name for one in (*self.arguments, *self.results))

    def given(self, values: Sequence[Any]) -> list[tuple[Parameter, Any]]:
        """Return the arguments of a call with their values.

        Args:
            values: the values.

        Raises:
            LaunchError: another number of values.
        """
        if len(values) != len(self.arguments):
            text = f"{self.name} takes {len(self.arguments)} arguments, and was given {len(values)}"
            raise LaunchError(text, ", ".join(one.name for one in self.arguments))
        return list(zip(self.arguments, values, strict=True))

    def extents(self, shapes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """Return the extents of each result.

        Args:
            shapes: extents of each argument; empty for a number.
        """
        places = ([self.sizes[dim] for dim in one.dims] for one in self.results)
        return [tuple(shapes[at][place] for at, place in one) for one in places]

    def read_by(self, gradient: Callable[..., Any]) -> tuple[str, ...]:
        """Return the parameters of a function that computes gradients.

        Raises:
            SignatureError: one is neither an argument, nor a result, nor the gradient of a result.
        """
        known = (*self.names, *(f"d{one.name}" for one in self.results))
        read = tuple(inspect.signature(gradient).parameters)
        for name in read:
            if name not in known:
                raise SignatureError(
                    f"the gradient of {self.name} has a parameter {name}", f"one of {', '.join(known)}"
                )
        return read

    def gradients(
        self, gradient: Callable[..., Mapping[str, Any]], given: Mapping[str, Any], names: Sequence[str]
    ) -> list[Any]:
        """Call a function that computes gradients; return those of some arguments, None for absent ones.

        Args:
            gradient: the function.
            given: values by the names of its parameters.
            names: the arguments that may have gradients.

        Raises:
            LaunchError: the function returns no dictionary, or a gradient of something else.
        """
        returned = gradient(**given)
        if not isinstance(returned, Mapping):
            raise LaunchError(
                f"the gradient of {self.name} returns a {type(returned).__name__}",
                f"a dictionary of gradients by the names {', '.join(names)}",
            )
        found = dict(returned)
        made = [found.pop(name, None) for name in names]
        if found:
            raise LaunchError(
                f"the gradient of {self.name} returns {next(iter(found))}", f"one of {', '.join(names)}"
            )
        return made


def _parameter(program: str, name: str, declared: Any, default: Any) -> Parameter:
    """Return a run-time parameter; ``default`` is None if it has none."""
    if is_reserved(name):
        near = f"{name}_" if name.isascii() else "a name of ASCII characters"
        text = f"kernel {program}: parameter {name} has a name that printed kernels reserve"
        raise SignatureError(text, near)
    if isinstance(declared, str):
        dims, kinds = tuple(declared.split()), tuple[type, ...]()
        if dims.count(BATCH) > 1:
            raise SignatureError(f"kernel {program}: {name}={declared!r} has {BATCH} twice", "once")
        if unnamed := [dim for dim in dims if not dim.isidentifier() and dim != BATCH]:
            said = re.split(r"[\s,;]+", declared.strip(" ,;"))
            names = " ".join(
                dim if dim.isidentifier() or dim == BATCH else f"D{number}" for number, dim in enumerate(said)
            )
            rule = "extents come from the arrays"
            text = f"kernel {program}: dimension {unnamed[0]!r} of {name} is not a name; {rule}"
            raise SignatureError(text, f"{name}={names!r}")
        made, what = Parameter(name, "tensor", dims), "an array, which has no default"
    elif isinstance(declared, DType):
        if declared.components > 1:
            raise SignatureError(
                f"kernel {program}: a number of {declared} cannot be passed; nearest: {name}=tw.f32"
            )
        made, what = Parameter(name, "scalar", dtype=declared, default=default), "a number"
        kinds = (int, float, np.integer, np.floating)
    elif declared is int:
        made, what, kinds = Parameter(name, "index", default=default), "an integer", (int, np.integer)
    else:
        raise SignatureError(
            f"kernel {program}: {name}={shown(declared)} is neither the names of dimensions, such as 'M K', "
            "nor a dtype for a number, nor int",
            f"{name}=tw.f32 or {name}=int",
        )
    if default is not None and (isinstance(default, bool) or not isinstance(default, kinds)):
        raise SignatureError(f"kernel {program}: {name}={shown(default)}, and {name} is {what}", "no default")
    return made


def dim_names(parameter: Parameter, rank: int, program: str) -> tuple[str, ...]:
    """Return the names of a tensor parameter's dimensions.

    Raises:
        LaunchError: the declaration has a different rank.
    """
    if BATCH in parameter.dims:
        before = parameter.dims.index(BATCH)
        count = rank - len(parameter.named)
        if count < 0:
            raise LaunchError(
                f"kernel {program}: {parameter.name} has rank {rank}, but is declared as "
                f"({', '.join(parameter.dims)}) of rank {len(parameter.named)} at least"
            )
        batch = (f"batch{dim}" for dim in range(count))
        return (*parameter.dims[:before], *batch, *parameter.dims[before + 1 :])
    if parameter.dims and len(parameter.dims) != rank:
        raise LaunchError(
            f"kernel {program}: {parameter.name} has rank {rank}, but is declared as "
            f"({', '.join(parameter.dims)}) of rank {len(parameter.dims)}"
        )
    return parameter.dims or tuple(f"{parameter.name}_{dim}" for dim in range(rank))


def _tensor(
    tracer: Tracer,
    parameter: Parameter,
    spec: TensorSpec,
    divisors: dict[str, int],
    sizes: dict[str, SizeParam],
) -> Value:
    """Return the value of a tensor parameter, and register the sizes in its view."""
    shape: list[Int] = []
    strides: list[Int] = []
    for dim, name in enumerate(dim_names(parameter, spec.rank, "")):
        if name not in sizes:
            sym = Sym(tracer.name(name), 0, LARGEST, divisors[name])
            sizes[name] = SizeParam(sym, Extent(parameter.name, dim))
        shape.append(sizes[name].sym)
        if dim == spec.unit_dim:
            strides.append(1)
            continue
        least = LEAST_STRIDE if spec.signed else 0
        stride = Sym(
            tracer.name(f"{parameter.name}_stride{dim}", own=False), least, None, spec.stride_divisors[dim]
        )
        sizes[stride.name] = SizeParam(stride, Stride(parameter.name, dim), 64 if spec.wide else 32)
        strides.append(stride)
    view = View.strided(shape, strides)
    return Value(parameter.name, TensorType(Memory.GLOBAL, spec.dtype, view, spec.align))


def _finish(program: Program, tracer: Tracer, params: list[Param], sizes: dict[str, SizeParam]) -> Kernel:
    body = tracer.finish()
    lanes = tracer.lanes
    kernel = Kernel(
        program.name,
        (*params, *tracer.workspaces, *sizes.values(), *tracer.derived),
        tuple(tracer.grid),
        threads_of(body, lanes),
        body,
        tuple(tracer.cluster),
        lanes,
        guards=tuple(tracer.guards),
        violations=tuple(tracer.violations),
    )
    used = used_symbols(kernel)
    kept = tuple(p for p in kernel.params if not isinstance(p, SizeParam) or p.sym in used)
    kernel = replace(kernel, params=kept)
    if program.sync == EXPLICIT or violations(kernel):  # report violations first
        return kernel
    made, notes = synchronise(kernel)
    return replace(made, notes=notes)
