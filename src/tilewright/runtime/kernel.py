"""Kernels: from the author's function to a launch on the caller's arrays, and the decorator `tw.kernel`.

A call looks up a prepared launch by the exact metadata of its arguments. On a miss we describe the arguments,
trace their class, check legality, lower, and compile or load from the cache. We keep the prepared launch for
the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any, overload
from weakref import ref

from tilewright.arch import Arch
from tilewright.calls import is_hashable, launches, trim
from tilewright.dataflow.nodes import Flow
from tilewright.dtypes import f32
from tilewright.errors import LaunchError, SignatureError, TilewrightError, shown
from tilewright.ir.kernel import Kernel as IrKernel
from tilewright.lang.program import EXPLICIT, Parameter, Program
from tilewright.lang.specs import TensorSpec
from tilewright.runtime.arrays import LOCATORS, AliasPair, check_apart, locate, locate_new, watch
from tilewright.runtime.backends import (
    Backend,
    Executable,
    Prepared,
    arch_named,
    backend_for,
    backend_named,
    processors_of,
)
from tilewright.runtime.binding import (
    Binding,
    arrays_of,
    bind,
    check_output,
    integer,
    number,
    passed,
    shapes_of,
    spec_of,
    specs_of,
)
from tilewright.runtime.checks import BoundChecks, KernelChecks
from tilewright.runtime.plans import RECORDING, Plan, Plans
from tilewright.runtime.reads import exact as exactly
from tilewright.runtime.recent import Recent
from tilewright.runtime.scheduled import TraceRequest, without_schedule
from tilewright.runtime.specialise import Builds, Surroundings
from tilewright.runtime.specimens import Specimen, in_order, like
from tilewright.schedule.question import LoopQuestion, Question, Splitting
from tilewright.schedule.schedule import Schedule
from tilewright.targets.rules import EmittedText

MOST_BOUND = 256
"""Sets of constants for which a kernel keeps its `Bound`."""

EXTENT = 64
"""Extents of the arrays with which a kernel is traced to find its results."""


@launches
@launches.methods("bind", "trace", "compile")
class Kernel(KernelChecks):
    """A kernel that can be traced, checked, compiled and launched.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def double(X, Y, *, tile):
        ...     n = tw.block_index(tw.ceil_div(X.shape[0], tile))
        ...     part = X.tile((tile,), (n,)).partition((32,))
        ...     x = tw.load(part)
        ...     tw.copy(x + x, Y.tile((tile,), (n,)))
        >>> x, y = np.arange(100, dtype=np.float32), np.empty(100, np.float32)
        >>> double(x, y, tile=64, target="reference").target
        'reference'
        >>> bool((y == 2 * x).all())
        True
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.name = program.name
        self.__doc__ = program.__doc__
        self.__name__ = program.name
        self.__module__ = program.function.__module__
        self.__qualname__ = program.function.__qualname__
        self.__wrapped__ = program.function
        self._names = frozenset(parameter.name for parameter in program.parameters)
        self._around = Surroundings(program)
        self._bound: Recent[Any, Bound] = Recent(MOST_BOUND)
        self._last: tuple[tuple[Any, ...], Bound | None] = ((), None)

    def bind(self, **constants: Any) -> Bound:
        """The kernel with its compile-time constants fixed; calling it is the fastest way to launch.

        Raises:
            LaunchError: a constant is missing, unknown, or not hashable.
        """
        return self._bind(constants)

    def _bind(self, constants: Mapping[str, Any]) -> Bound:
        constants, schedule = without_schedule(self.program, constants)
        given = self.program.with_defaults(constants)
        values = (*map(given.__getitem__, self.program.constants), schedule)
        known, bound = self._last
        if bound is not None and all(map(is_, values, known)):
            return bound
        try:
            key = tuple(map(exactly, values))
            found = self._bound.get(key)
        except Exception:  # noqa: BLE001 a user's `__hash__` may raise anything
            bad = max(given, key=lambda name: not is_hashable(given[name]))
            raise LaunchError(
                f"kernel {self.name}: constant {bad}={shown(given[bad])} is not hashable; use a tuple"
            ) from None
        if found is None:
            found = Bound(self.program, given, self._around, schedule, self)
            self._bound.keep(key, found)
        self._last = (values, found)
        return found

    def __call__(
        self, *arguments: Any, target: str | None = None, stream: Any = None, **named: Any
    ) -> Executable:
        """Launch on the caller's arrays; see `Bound.__call__`.  ``named`` are arguments and constants."""
        try:
            if self._names.isdisjoint(named):
                return self._bind(named)(*arguments, target=target, stream=stream)
            bound, given = self._split(named)
            return bound(*arguments, target=target, stream=stream, **given)
        except Exception as error:
            trim(error)
            raise

    def trace(
        self, *arguments: Any, target: str | None = None, arch: str | None = None, **named: Any
    ) -> IrKernel:
        """The traced kernel; see `Bound.trace`.  ``named`` are arguments and constants, by name."""
        bound, given = self._split(named)
        return bound.trace(*arguments, target=target, arch=arch, **given)

    def flow(self, *arguments: Any, **named: Any) -> Flow:
        """The graph of a dataflow kernel; see `Bound.flow`.  ``named`` are arguments and constants."""
        bound, given = self._split(named)
        return bound.flow(*arguments, **given)

    def compile(
        self, *arguments: Any, target: str | None = None, arch: str | None = None, **named: Any
    ) -> Executable:
        """The compiled kernel; see `Bound.compile`.  ``named`` are arguments and constants, by name."""
        bound, given = self._split(named)
        return bound.compile(*arguments, target=target, arch=arch, **given)

    def _split(self, named: Mapping[str, Any]) -> tuple[Bound, dict[str, Any]]:
        """Split named values into the kernel bound to its constants, and the arguments."""
        constants = {name: value for name, value in named.items() if name not in self._names}
        return self.bind(**constants), {name: named[name] for name in named if name in self._names}

    def __reduce__(self) -> str:
        """Pickle by name, as functions are; a copy is the same object."""
        return self.__qualname__

    def __repr__(self) -> str:
        names = ", ".join(parameter.name for parameter in self.program.parameters)
        constants = ", ".join(self.program.constants)
        return f"<kernel {self.name}({names}{', *, ' + constants if constants else ''})>"


@launches.made("kernel.bind(tile=32), where tile is a constant of the kernel, makes one")
@launches.methods("trace", "compile", "prepare")
class Bound(BoundChecks):
    """A kernel with its compile-time constants fixed; made by `Kernel.bind`."""

    def __init__(
        self,
        program: Program,
        constants: Mapping[str, Any],
        around: Surroundings | None = None,
        schedule: Schedule | Splitting | None = None,
        kernel: Kernel | None = None,
    ) -> None:
        self.program = program
        self._kernel = ref(kernel) if kernel is not None else lambda: None  # weak: it holds this object
        self.constants = dict(constants)
        self.schedule = schedule
        self._plans: Plans[Plan] = Plans()
        self._last: tuple[list[Any] | None, Any, list[int]] = (None, None, [])
        self._builds = Builds(program, self.constants, around or Surroundings(program), schedule)
        self._kinds = tuple(parameter.kind for parameter in program.parameters)
        self._only_tensors = all(kind == "tensor" for kind in self._kinds)
        self._builds.around.users.add(self)

    def __repr__(self) -> str:
        names = ", ".join(parameter.name for parameter in self.program.parameters)
        constants = "".join(f", {name}={shown(value)}" for name, value in self.constants.items())
        return f"<kernel {self.program.name}({names}){constants}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the kernel's name, its constants and its schedule."""
        if (kernel := self._kernel()) is None:
            raise TypeError(
                f"{self!r} was not made by Kernel.bind of a kernel that is still there, and cannot be pickled"
            )
        constants = self.constants if self.schedule is None else {**self.constants, "schedule": self.schedule}
        return partial(kernel.bind, **constants), ()

    def under(self, schedule: Schedule) -> Bound:
        """Return the same kernel, with the same constants, under a schedule."""
        return Bound(self.program, self.constants, self._builds.around, schedule, self._kernel())

    def __copy__(self) -> Bound:
        """Return the same object, as for a function."""
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Bound:
        """Return the same object."""
        return self

    def forget(self, executable: Executable | None = None) -> None:
        """Drop an executable and its launches, by default all; later calls build them again."""
        self._builds.forget(executable)
        self._plans.forget(executable)
        self._last = (None, None, [])

    def __call__(
        self, *arguments: Any, target: str | None = None, stream: Any = None, **named: Any
    ) -> Executable:
        """Launch on the caller's arrays.

        Args:
            arguments: arrays (NumPy, PyTorch, CuPy, JAX, anything with DLPack or the CUDA array interface),
                numbers and integers, in the order of the author's parameters.
            target: ``"reference"``, ``"cpu"``, ``"cuda"`` or ``"hip"``; default: where the arrays are.
            stream: the CUDA stream; default: the current stream of the arrays' framework.
            named: arguments by the names of the parameters.

        Returns:
            The executable that ran; its ``target`` says where.  A process keeps the most recently launched
            executables loaded, and loads others again when they are launched again.

        Raises:
            LaunchError: the arguments do not fit the kernel.
            LegalityError: the kernel breaks rules for these arguments; lists all of them.
        """
        try:
            if named or len(arguments) < len(self._kinds):
                arguments = tuple(in_order(self.program, arguments, named, numbers=True))
            plan, pointers = self.planned(arguments, target)
            plan.prepared.launch(arguments, pointers, stream)
            if RECORDING.launches is not None:
                stored = tuple(pair.stored for pair in plan.pairs)
                RECORDING.launches.append((plan.prepared, arguments, stored))
        except Exception as error:
            trim(error)
            raise
        return plan.prepared.executable

    def planned(self, arguments: tuple[Any, ...], target: str | None) -> tuple[Plan, list[int]]:
        """Return the launch for arguments of this exact shape, and the addresses of the arrays.

        Args:
            arguments: in the order of the author's parameters.
            target: as for a launch.

        Raises:
            LaunchError: the arguments do not fit the kernel.
            LegalityError: the kernel breaks rules for these arguments; lists all of them.
        """
        # The key is the metadata of every array; besides it, a launch needs only the addresses.
        key: list[Any] = [target]
        tensors = arguments
        if not self._only_tensors:
            tensors = tuple(a for a, kind in zip(arguments, self._kinds, strict=False) if kind == "tensor")
            pairs = zip(self.program.parameters, arguments, strict=False)
            indices = [self._integer(p, a) for p, a in pairs if p.kind == "index"]
            key += [len(arguments), *indices]
        pointers = []
        try:
            for tensor in tensors:
                exact, pointer = LOCATORS.get(type(tensor), locate_new)(tensor, 0)
                key.append(exact)
                pointers.append(pointer)
            last_key, plan, last_pointers = self._last
            if key != last_key:  # cheaper than a look-up, which also computes a hash
                plan = self._plans.find(tuple(key))
            elif pointers == last_pointers or not plan.pairs:
                return plan, pointers
        except (LaunchError, TypeError, ValueError):  # not an array: `_prepare` says which argument
            self._prepare(arguments, target)
            raise
        if plan is None:
            plan = self._prepare(arguments, target)
            self._plans.keep(tuple(key), plan)
        elif not plan.apart(pointers):
            executable = plan.prepared.executable
            check_apart(executable.flow, passed(executable.kernel, arrays_of(self.program, arguments)))
        self._last = (key, plan, pointers)
        return plan, pointers

    def _integer(self, parameter: Parameter, value: Any) -> int:
        known = type(value) is int and -(2**31) <= value < 2**31
        return value if known else integer(self.program.name, parameter.name, value)

    def prepare(self, *arguments: Any, target: str | None = None) -> PreparedLaunch:
        """Prepare a launch for these arrays: everything is checked now, and a call only starts the kernel.

        Args:
            arguments: as for a launch.
            target: as for a launch.

        Returns:
            A `PreparedLaunch`; it keeps the arrays alive.

        Raises:
            LaunchError: the arguments do not fit the kernel.
            LegalityError: the kernel breaks rules for these arguments; lists all of them.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="N", by=tw.f32)
            ... def scale(X, by):
            ...     part = X.tile((64,), (tw.block_index(tw.ceil_div(X.shape[0], 64)),))
            ...     tw.copy(tw.load(part.partition((32,))) * by, part)
            >>> x = np.ones(100, np.float32)
            >>> double = scale.bind().prepare(x, 2.0, target="reference")
            >>> _ = double(), double(), double(by=3.0)
            >>> float(x[0]), float(x[-1])
            (12.0, 12.0)
        """
        arguments = tuple(in_order(self.program, arguments, {}, numbers=True))
        prepared = self._prepare(arguments, target).prepared
        return PreparedLaunch(self.program.name, prepared, self.program.parameters, arguments)

    def trace(
        self, *arguments: Any, target: str | None = None, arch: str | None = None, **named: Any
    ) -> IrKernel:
        """Trace the kernel for arguments as `compile` takes them.

        Args:
            arguments: as for `compile`.
            target: the target, which sets the size of a warp and the limits of a block.  Default: the
                reference, whose warps have 32 threads unless an MMA atom needs another size.
            arch: the target's architecture; default: that of this machine.
            named: as for `compile`.

        Raises:
            LaunchError: the arguments do not fit the kernel, or no such target or architecture.
        """
        return self._builds.trace(self._request(arguments, named, target, arch))

    def flow(self, *arguments: Any, **named: Any) -> Flow:
        """Return the graph of a dataflow kernel, which no schedule changes, for arguments as for `compile`.

        Args:
            arguments: as for `compile`.
            named: as for `compile`.

        Raises:
            LaunchError: the arguments do not fit the kernel, or the kernel is explicit.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(A="M K", B="N K", C="M N")
            ... def doubled(A, B, C):
            ...     for m, n in tw.tiles(C):
            ...         acc = tw.zeros()
            ...         for k in tw.steps(A.shape[1]):
            ...             acc += A[m, k] @ B[n, k].T
            ...         C[m, n] = 2 * acc
            >>> a, b, c = (np.ones((8, 8), np.float16) for _ in range(3))
            >>> flow = doubled.flow(a, b, c)
            >>> [span.name for span in flow.tiles], flow.stores[0].value.function
            (['m', 'n'], 'mul')
            >>> doubled(a, b, c, target="reference").target, c[0, 0].item()
            ('reference', 16.0)
        """
        made = self.program.run(
            specs_of(self.program, in_order(self.program, arguments, named)), self.constants
        )
        if not isinstance(made, Flow):
            raise LaunchError(
                f"kernel {self.program.name} is explicit, and only dataflow kernels have a flow", "trace"
            )
        return made

    def stored(self) -> tuple[str, ...]:
        """Return the names of the arrays that a dataflow kernel stores to, in the order of its parameters.

        Raises:
            SignatureError: the kernel is explicit, or its flow cannot be traced for extents of 64.
        """
        parameters = self.program.parameters
        given = [like(f32, *(EXTENT,) * len(one.dims)) if one.kind == "tensor" else 1 for one in parameters]
        try:
            names = {store.operand.name for store in self.flow(*given).stores}
        except TilewrightError as error:
            raise SignatureError(f"{error}; its results are not known", "results=") from error
        return tuple(one.name for one in parameters if one.name in names)

    def schedule_for(
        self, *arguments: Any, target: str | None = None, arch: str | None = None, **named: Any
    ) -> Schedule | None:
        """Return the schedule that a dataflow kernel runs under, for arguments as for `compile`.

        Args:
            arguments: as for `compile`.
            target: the target; default: where the arrays are, as for a launch; the reference for `tw.like`.
            arch: the target's architecture; default: that of this machine.
            named: as for `compile`.

        Returns:
            The schedule that the kernel is bound to, else the chosen one; with another copy engine for arrays
            that bulk copies cannot move.  None for an explicit kernel.

        Raises:
            LaunchError: the arguments do not fit the kernel, or no such target or architecture.
            ScheduleError: the bound schedule is not legal for them.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(A="M K", B="K N", C="M N")
            ... def gemm(A, B, C):
            ...     for m, n in tw.tiles(C):
            ...         acc = tw.zeros()
            ...         for k in tw.steps(A.shape[1]):
            ...             acc += A[m, k] @ B[k, n]
            ...         C[m, n] = acc
            >>> arrays = [tw.like("bf16", (4096, 4096))] * 3
            >>> gemm.bind().schedule_for(*arrays, target="cuda", arch="sm_90a").staging
            'tma'
            >>> a, b, c = (np.ones((8, 8), np.float32) for _ in range(3))
            >>> gemm(a, b, c, target="cpu").schedule == gemm.bind().schedule_for(a, b, c, target="cpu")
            True
        """
        return self._builds.explicit(self._placed(arguments, named, target, arch)).schedule

    def question(
        self, *arguments: Any, target: str | None = None, arch: str | None = None, **named: Any
    ) -> Question | LoopQuestion | None:
        """Return the problem for which `schedule_for` chooses a schedule; it takes the same arguments.

        Returns:
            The problem, for `tilewright.schedule.choice`; None for an explicit kernel.

        Raises:
            LaunchError: the arguments do not fit the kernel, or no such target or architecture.
        """
        return self._builds.scheduled.question(self._placed(arguments, named, target, arch))

    def _placed(
        self, arguments: tuple[Any, ...], named: Mapping[str, Any], target: str | None, arch: str | None
    ) -> TraceRequest:
        """The request for a target; by default, for the one that serves the memory of the arrays."""
        is_asked, given = target is not None or arch is not None, in_order(self.program, arguments, named)
        backend = None if is_asked else self._backend_of(given)
        return self._request(arguments, named, target if backend is None else backend.name, arch)

    def _backend_of(self, given: Sequence[Any]) -> Backend | None:
        """The backend that serves the memory of the arrays; None if all are classes or `tw.like`."""
        tensors = [a for a, kind in zip(given, self._kinds, strict=True) if kind == "tensor"]
        if all(isinstance(one, TensorSpec | Specimen) for one in tensors):
            return None
        return backend_for(self.program.name, [*arrays_of(self.program, given, classes=True).items()], None)

    def _request(
        self, arguments: tuple[Any, ...], named: Mapping[str, Any], target: str | None, arch: str | None
    ) -> TraceRequest:
        machine, given = arch_named(target, arch), in_order(self.program, arguments, named)
        specs = specs_of(self.program, given)
        self._builds.keep_up()
        return TraceRequest(specs, machine, shapes_of(self.program, given), processors_of(target, machine))

    def compile(
        self, *arguments: Any, target: str | None = None, arch: str | None = None, **named: Any
    ) -> Executable:
        """Compile the kernel for the class of some arrays; nothing is launched, and no GPU is needed.

        Args:
            arguments: arrays, wherever they lie; `tw.like` or `tw.TensorSpec` values, which take no memory.
                Numbers do not matter, and may be left out if arguments are given by name.
            target: ``"reference"``, ``"cpu"``, ``"cuda"`` or ``"hip"``; default: where the arrays are.
            arch: the architecture, e.g. ``"sm_90a"``; default: that of this machine.
            named: arguments by the names of the kernel's parameters.

        Returns:
            The executable: ``source`` is its text, ``ir`` the traced kernel, ``resources`` the compiler's
            figures (registers, spills, bytes of shared memory), ``notes`` the choices that the target made.

        Raises:
            LaunchError: the arguments do not fit the kernel, or only specimens were given and no target.
            LegalityError: the kernel breaks rules for these arguments; lists all of them.
        """
        given = in_order(self.program, arguments, named)
        specs = specs_of(self.program, given)
        backend = self._backend_of(given) if target is None else backend_named(target)
        if backend is None:
            raise LaunchError(f"kernel {self.program.name}: pass target= to compile without arrays")
        self._builds.keep_up()
        executable = self._builds.executable(specs, backend, arch, shapes=shapes_of(self.program, given))
        executable.holders.add(self)
        return executable

    def as_text(self, *arguments: Any, target: str, arch: str, name: str) -> Executable:
        """Return the kernel for a class of arrays with its text; no compiler runs.

        Args:
            arguments: as for `compile`, in the order of the author's parameters.
            target: a target with machine code.
            arch: the architecture.
            name: the name of the function in the text.

        Raises:
            LaunchError: the arguments do not fit the kernel.
            LegalityError: the kernel breaks rules for these arguments; lists all of them.
        """
        asked = self._request(arguments, {}, target, arch)
        return self._builds.as_text(asked.specs, backend_named(target), arch, asked.shapes, name)

    def _prepare(
        self, arguments: tuple[Any, ...], target: str | None, written_for: Arch | None = None
    ) -> Plan:
        found = arrays_of(self.program, arguments)
        pairs = [*zip(self.program.parameters, arguments, strict=True)]
        numbers = {p.name: self._integer(p, argument) for p, argument in pairs if p.kind == "index"}
        for one, argument in pairs:
            if one.kind == "scalar":
                number(one.name, one.dtype, argument)  # an illegal number is refused before compilation
        backend = backend_for(self.program.name, [*found.items()], target)
        specs = {name: spec_of(info, name) for name, info in found.items()}
        self._builds.keep_up()
        shapes = {name: info.shape for name, info in found.items()}

        made = list[tuple[Binding, tuple[AliasPair, ...]]]()

        def check(traced: IrKernel, text: EmittedText | None, flow: Flow | None) -> None:
            launched = traced if text is None else text.kernel  # a target may derive sizes of its own
            made.append((bind(launched, found, numbers), check_apart(flow, passed(launched, found))))

        executable = self._builds.executable(specs, backend, None, check, written_for, shapes)
        executable.holders.add(self)
        kernel = executable.kernel
        if not made:  # `check` sees new executables only
            check(kernel, executable.listing, executable.flow)
        binding, apart = made[0]
        for name in kernel.written_params:
            check_output(f"kernel {kernel.name}", name, found[name])
        return Plan.of(backend.prepare(executable, binding, self.program.parameters), found.values(), apart)


# ---------------------------------------------------------------- prepared launches


@launches.made("kernel.prepare(...) gives one")
class PreparedLaunch:
    """A kernel bound to arrays; calling it launches on them again.  Made by `Bound.prepare`.

    It keeps the arrays alive.  Each call checks that every array still has its address and its extents, and
    raises otherwise.  It does not check strides and dtypes changed in place, a NumPy array made read-only, or
    memory that was freed and allocated again at the same address.  Calls from several threads may run at the
    same time, each with its own workspaces; so may launches on different streams.  The caller must order a
    call that writes an array that another call reads.
    """

    def __init__(
        self, kernel: str, prepared: Prepared, parameters: Sequence[Parameter], arguments: Sequence[Any]
    ) -> None:
        self._kernel = kernel
        self._executable = prepared.executable
        self._launch = prepared.launch
        self._parameters = tuple(parameters)
        self._arguments = tuple(arguments)
        self._scalars = {p.name: at for at, p in enumerate(self._parameters) if p.kind == "scalar"}
        self._arrays = {
            p.name: a for a, p in zip(self._arguments, self._parameters, strict=True) if p.kind == "tensor"
        }
        self._located = [locate(array) for array in self._arrays.values()]
        self._pointers = tuple(pointer for _, pointer in self._located)
        self._looks = tuple(look for array in self._arrays.values() for look in watch(array))
        self._seen = [look() for look in self._looks]

    @property
    def executable(self) -> Executable:
        """The executable that is launched."""
        return self._executable

    def __call__(self, *, stream: Any = None, **numbers: Any) -> Executable:
        """Launch on the same arrays; on a GPU this returns before the kernel is done.

        Args:
            stream: the CUDA stream; default: the current stream of the arrays' framework, at each call.
            numbers: values for numbers of the kernel, by name, for this call only; other numbers keep the
                value that they were prepared with.

        Returns:
            The executable that ran.

        Raises:
            LaunchError: an array was moved or resized, a tensor requires a gradient now, or a name is no
                number of the kernel.
        """
        try:
            if [look() for look in self._looks] != self._seen:
                now = [locate(array) for array in self._arrays.values()]  # refuses tensors with a gradient
                if now != self._located:
                    pairs = zip(self._arrays, now, self._located, strict=True)
                    moved = [name for name, (_, pointer), (_, before) in pairs if pointer != before]
                    what = f"{' and '.join(moved)} moved" if moved else "an array was resized"
                    raise LaunchError(
                        f"kernel {self._kernel}: {what} since the launch was prepared; prepare it again"
                    )
            arguments = self._arguments
            if numbers:
                given = list(arguments)
                for name, value in numbers.items():
                    if name not in self._scalars:
                        raise LaunchError(
                            f"kernel {self._kernel}: {name}= is not one of the numbers that replay can "
                            f"change ({', '.join(self._scalars) or 'it has none'}); for other arrays, "
                            "integers or constants prepare another launch"
                        )
                    given[self._scalars[name]] = value
                arguments = tuple(given)
            self._launch(arguments, self._pointers, stream)
        except TilewrightError as error:
            trim(error)
            raise
        return self._executable

    def __repr__(self) -> str:
        return f"<prepared launch of {self._kernel} for {self._executable.target} {self._executable.arch}>"


# ---------------------------------------------------------------- the decorator


@overload
def kernel(function: Callable[..., None], /) -> Kernel: ...
@overload
def kernel(*, sync: str = ..., **declared: Any) -> Callable[[Callable[..., None]], Kernel]: ...
@launches
def kernel(function: Callable[..., None] | None = None, /, *, sync: str = EXPLICIT, **declared: Any) -> Any:
    """Make a kernel from a Python function that describes it.

    The function runs once for every class of arrays.  It may read global variables, variables of an enclosing
    function and attributes of modules; so may the functions that it calls.  Their values count as
    compile-time constants.  They are compared whenever the kernel meets arrays of a new shape, and if one has
    changed, everything is compiled again.  Until then launches use the old values, and prepared launches
    always do.  Attributes of arbitrary objects, arrays of more than 1 MiB, and values that the function
    itself changes are not compared.  Make a value that changes a constant or a number of the kernel.

    Args:
        function: takes tensors, numbers and integers positionally, compile-time constants by keyword only.
            Numbers, integers and constants may have defaults.
        sync: ``"explicit"``: the author writes `barrier`, `async_commit` and `async_wait` where they are
            needed.  ``"auto"``: the trace places as few as possible, from the accesses of the operations, and
            `tilewright inspect` lists each with the accesses that need it.  A `barrier` of the author's
            stays. Kernels with roles, transaction barriers, asynchronous multiplies, clusters or signals are
            refused at that line.
        declared: for each positional parameter the names of its dimensions (``A="M K"``; equal names must
            have equal extents), a dtype for a number (``alpha=tw.f32``), or ``int`` for an integer.

    Returns:
        A `Kernel`, or a decorator when called with declarations alone.  Kernels are pickled by name, as
        functions are, so define them at the top of a module to send them to other processes.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", factor=tw.f32)
        ... def scale(X, factor, *, tile):
        ...     part = X.tile((tile,), (tw.block_index(tw.ceil_div(X.shape[0], tile)),)).partition((32,))
        ...     tw.copy(tw.load(part) * factor, part)
        >>> x = np.float32([1, 2, 3])
        >>> scale(x, 0.5, tile=64, target="reference").target, x.tolist()
        ('reference', [0.5, 1.0, 1.5])

        Each iteration reuses one tile in shared memory: threads read elements that other threads wrote, and
        overwrite elements that other threads have read.  Two barriers are placed:

        >>> @tw.kernel(X="M N", Y="N M", sync="auto")
        ... def transpose(X, Y):
        ...     held = tw.shared((32, 32), tw.f32)
        ...     for m in tw.range(tw.ceil_div(X.shape[0], 32)):
        ...         tw.copy(X.tile((32, 32), (m, 0)), held, threads=64)
        ...         tw.copy(held.permute(1, 0), Y.tile((32, 32), (0, m)), threads=64)
        >>> x, y = np.random.default_rng(0).random((70, 30), np.float32), np.empty((30, 70), np.float32)
        >>> executable = transpose(x, y, target="reference")
        >>> bool((y == x.T).all()), executable.ir.count("barrier()")
        (True, 2)
    """
    if function is not None:
        return Kernel(Program(function, declared, sync))

    @launches.of("kernel")
    def decorate(function: Callable[..., None]) -> Kernel:
        return Kernel(Program(function, declared, sync))

    return decorate
