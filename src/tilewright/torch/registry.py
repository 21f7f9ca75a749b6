"""Operations of PyTorch that call kernels: fakes, gradients, autocast and vmap, and eager calls.

`Operation` registers one.  A call in eager mode skips PyTorch's dispatcher: it launches the kernel if no
gradient is wanted, and otherwise applies the operation's rule of gradients.  The dispatcher is called if
something must see the operation: `torch.compile`, a mode, a transform of `torch.func`, autocast, or a tensor
that is a subclass, lazily conjugated or without memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial, wraps
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.overrides import handle_torch_function
from torch.utils._device import DeviceContext

from tilewright.dtypes import IN_TORCH, DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import LaunchError
from tilewright.ops.replay import IN_SCRATCH, Replay, ReplayedLaunch, is_recorded, selector
from tilewright.runtime.call_log import CALL_LOG
from tilewright.runtime.executable import Prepared
from tilewright.runtime.frameworks import TORCH, has_tangent
from tilewright.runtime.plans import RECORDING, Plans

FunctionType = TypeVar("FunctionType", bound=Callable[..., Any])

NAMESPACE = "tilewright"
"""The namespace of all operations: ``torch.ops.tilewright``."""

LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")

OPERATIONS: dict[str, Operation] = {}
"""All operations by name."""

PLAIN = {torch.Tensor, torch.nn.Parameter}
"""Types of tensors that override nothing."""

WORDS = {type(None), float, int, bool, str, complex, torch.dtype, list}
"""Types of arguments that are no tensors."""

PASSED = WORDS - {torch.dtype, list}
"""Types among `WORDS` whose values the library's functions take unchanged."""

DEVICES = ("CPU", "CUDA")
"""PyTorch's names of the devices that kernels run on; a build for ROCm calls them CUDA too."""

NARROWED = {torch.float32, torch.float16, torch.bfloat16}
"""The dtypes that autocast converts."""

BATCHES_OF_GRADIENTS = torch._C._parse_dispatch_key("VmapMode")
"""Dispatch key set in `torch.autograd.grad(is_grads_batched=True)`, a transform outside of `torch.func`."""

_DTYPES = {getattr(torch, name): dtype_named(own) for own, name in IN_TORCH.items() if hasattr(torch, name)}


def dtype_of(given: torch.dtype) -> DType:
    """Return the library's record of a dtype of PyTorch.

    Raises:
        LaunchError: no kernel takes it.

    Example:
        >>> dtype_of(torch.bfloat16)
        bf16
    """
    found = _DTYPES.get(given)
    if found is None:
        raise LaunchError(f"{given} is not supported", ", ".join(map(str, _DTYPES)))
    return found


def torch_dtype(own: DType) -> torch.dtype:
    """Return PyTorch's dtype for a record.

    Example:
        >>> torch_dtype(dtype_named("f16"))
        torch.float16
    """
    found: torch.dtype = getattr(torch, IN_TORCH[own.name])
    return found


def tensors_of(args: Sequence[Any]) -> list[torch.Tensor]:
    """Return the tensors among the arguments of an operation.

    Example:
        >>> len(tensors_of([torch.ones(1), None, torch.ones(1)]))
        2
    """
    return [one for one in args if isinstance(one, torch.Tensor)]


def wants_gradient(args: Sequence[Any]) -> bool:
    """Return whether PyTorch records a call with these arguments for a gradient.

    Example:
        >>> wants_gradient([torch.ones(1), 3]), wants_gradient([torch.ones(1, requires_grad=True)])
        (False, True)
    """
    return torch.is_grad_enabled() and any(one.requires_grad for one in tensors_of(args))


def check_no_tangents(name: str, args: Sequence[Any]) -> None:
    """Refuse tensors of PyTorch's forward mode.

    Raises:
        LaunchError: a tensor has a tangent, which the kernel would lose.
    """
    if forward_ad._current_level >= 0 and any(map(has_tangent, tensors_of(args))):
        raise LaunchError(
            f"tilewright.torch.{name}: a tensor has a tangent, and forward mode is not supported",
            "reverse mode (torch.autograd.grad, torch.func.vjp), or the call on "
            "torch.autograd.forward_ad.unpack_dual(tensor).primal",
        )


def is_traced(given: Sequence[Any]) -> bool:
    """Return whether an argument is no tensor, and overrides functions, as proxies of `torch.fx` do.

    Args:
        given: the arguments of a call.

    Example:
        >>> is_traced((torch.ones(2), 1.0, None))
        False
    """
    return any(
        hasattr(type(one), "__torch_function__") and not isinstance(one, torch.Tensor) for one in given
    )


def _functions_are_observed() -> bool:
    """Return whether a mode other than that of `torch.set_default_device` sees functions."""
    modes = map(torch._C._get_function_stack_at, range(torch._C._len_torch_function_stack()))
    return any(type(mode) is not DeviceContext for mode in modes)


def is_observed() -> bool:
    """Return whether a mode, a transform or autocast must see the operation."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._is_any_autocast_enabled()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
        or (torch._C._is_torch_function_mode_enabled() and _functions_are_observed())
        or torch._C._dispatch_tls_is_dispatch_key_included(BATCHES_OF_GRADIENTS)
    )


def _is_below_transform() -> bool:
    """Return whether a transform of `torch.func` is running an operation's rule of gradients."""
    front = torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode
    return torch._C._dispatch_tls_is_dispatch_key_excluded(front)


def apply_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return ``apply`` of a function with a gradient, without its check for transforms of `torch.func`."""
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply
    return apply


def recorded(function: type[torch.autograd.Function], *args: Any) -> Any:
    """Apply a function with a gradient, at one level of the transforms of `torch.func`.

    A transform runs an operation's rule of gradients below itself, where `Function.apply` would call the
    transform again.  `Function.apply` also inspects the signature at each call, which takes longer than the
    rest.  So this calls the ``apply`` that `Function.apply` itself calls without transforms.

    Args:
        function: computes the result, saves tensors, and defines the gradient.
        args: all of its arguments.
    """
    apply = apply_of(function)
    if not _is_below_transform():
        return apply(*args)
    with enable_single_level_autograd_function():
        return apply(*args)


def direct(
    kernels: Callable[..., Any], gradient: Callable[..., Any] | None = None
) -> Callable[[FunctionType], FunctionType]:
    """Decorate a function of tensors: an eager call that nothing observes goes directly to the kernels.

    The arguments of a direct call get no defaults here, and are checked only once.  If `kernels` refuses
    them, the decorated function is called: tensors with a lazy conjugate, or without memory, need PyTorch's
    dispatcher.

    Args:
        kernels: computes the function of tensors without gradients; takes the same arguments.
        gradient: computes it so that PyTorch records its gradient; None: the decorated function does that.
    """

    def decorate(function: FunctionType) -> FunctionType:
        parameters = inspect.signature(function).parameters
        names = frozenset(parameters)
        arrays = {name for name, one in parameters.items() if "Tensor" in str(one.annotation)}
        most = sum(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters.values())
        dispatches, autocasts = torch._C._len_torch_dispatch_stack, torch._C._is_any_autocast_enabled
        transforms = torch._C._functorch.peek_interpreter_stack
        functions, traces = torch._C._is_torch_function_mode_enabled, torch._C._get_tracing_state

        def indirect(args: Any, kwargs: Any) -> Any:
            given = (*args, *kwargs.values())
            if is_traced(given):
                return handle_torch_function(call, given, *args, **kwargs)
            return function(*args, **kwargs)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            # The calls are those of `is_observed`; `kernels` refuses tensors of `is_grads_batched`.
            if is_compiling() or dispatches() or autocasts() or transforms() is not None:
                return function(*args, **kwargs)
            if traces() is not None or (functions() and _functions_are_observed()):
                return function(*args, **kwargs)
            wanted, records, given = False, torch.is_grad_enabled(), kwargs
            for one in args:
                kind = type(one)
                if kind in PLAIN:
                    if records and one.requires_grad:
                        wanted = True
                elif kind not in PASSED:
                    return indirect(args, kwargs)
            for name, one in kwargs.items():
                kind = type(one)
                if kind in PLAIN and name in arrays:
                    if records and one.requires_grad:
                        wanted = True
                elif kind is torch.dtype and one in _DTYPES and name in names:
                    given = {**given, name: _DTYPES[one]}
                elif kind not in PASSED or name not in names:
                    return indirect(args, kwargs)
            if len(args) > most:
                return function(*args, **kwargs)
            try:
                if not wanted:
                    return kernels(*args, **given)
                if gradient is not None and forward_ad._current_level < 0:
                    return gradient(*args, **kwargs)
            except LaunchError:
                pass
            except RuntimeError:
                if not any(one.is_nested for one in tensors_of((*args, *kwargs.values()))):
                    raise
            return function(*args, **kwargs)

        return cast(FunctionType, call)

    return decorate


# ---------------------------------------------------------------- repeated calls of several launches
#
# An operation, or a gradient, launches one or several kernels after Python code has made views, results and
# arguments for each of them.  `with_replay` finds all launches of a repeated call at once.

MOST_TRIES = 8
"""Calls of one key whose launches are recorded in vain; later ones are not recorded."""

MOST_KEYS = 256
"""Keys of calls that were not recorded yet; one more clears the table."""


class LaunchSequence(NamedTuple):
    """All launches of a call, for other tensors of the same metadata.

    The values of a call are its tensors, then its new tensors, then constants.

    Args:
        launches: for each launch its function, and selectors of its arguments among the values and of its
            arrays among the addresses of all tensors.
        makers: functions that make the new tensors.
        constants: numbers of the kernels, and None.
        results: selects among the values what the call returns.
        prepared_launches: the prepared launches, in order.
    """

    launches: tuple[tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]], ...]
    makers: tuple[Callable[[], torch.Tensor], ...]
    constants: tuple[Any, ...]
    results: Callable[[Sequence[Any]], Any]
    prepared_launches: tuple[Prepared, ...]

    @staticmethod
    def of(tensors: Sequence[torch.Tensor | None], result: Any) -> LaunchSequence | None:
        """Return the launches that `RECORDING` has of a call; None if they do not repeat the call.

        They repeat it if each of their arrays begins where a tensor of the call or a new tensor begins, and
        if the results are these new tensors.  PyTorch computed any other array.

        Args:
            tensors: the tensors of the call.
            result: what the call returned: a tensor or None, or a tuple of them.
        """
        noted, parts = RECORDING.launches or [], result if isinstance(result, tuple) else (result,)
        if None in noted or not noted:
            return None
        steps = [_step_of(*one) for one in noted]
        fresh = [one[1][place] for one in noted if type(one[0]) is Replay for place, _ in one[0].fresh]
        empty = [one for one in parts if isinstance(one, torch.Tensor) and not one.numel()]
        made = [*{id(one): one for one in (*(RECORDING.made or ()), *fresh, *empty)}.values()]
        values: list[Any] = [*tensors, *made]
        there = [one for one in values if one is not None]
        if not all(isinstance(one, torch.Tensor) for one in there):
            return None
        if any(not one.is_inference() and one._version for one in made):
            return None  # PyTorch changed it in place; tensors of inference mode do not count their changes
        places = {one.data_ptr(): at for at, one in enumerate(values) if one is not None and one.numel()}
        if len(places) != sum(one.numel() > 0 for one in there):
            return None  # two of them begin at one address

        def place_of(value: Any) -> int:
            """Return the index of an argument among the values; -1 if PyTorch computed it, or for an object.

            A number is added to the values.
            """
            if not isinstance(value, torch.Tensor):
                values.append(value)
                return len(values) - 1 if type(value) in PASSED else -1
            same = (at for at, one in enumerate(values) if one is value)
            return next(same, places.get(value.data_ptr(), -1) if value.numel() else -1)

        launches, first = list[Any](), len(tensors)
        for run, arguments, stored in steps:
            found = [place_of(one) for one in arguments]
            arrays = [at for at, one in zip(found, arguments, strict=True) if isinstance(one, torch.Tensor)]
            if min(found) < 0 or not arrays or any(arrays[at] < first for at in stored):
                return None
            launches.append((run, selector(found), selector(arrays)))
        chosen = [place_of(one) for one in parts]
        for at, one in zip(chosen, parts, strict=True):
            if one is None:
                continue
            if at < first or chosen.count(at) > 1:
                return None
            if torch.empty_like(one, device="meta").stride() != one.stride():
                return None
            if (one.numel(), one.dtype) != (values[at].numel(), values[at].dtype):
                return None
            values[at] = one
        news = values[first : first + len(made)]
        return LaunchSequence(
            tuple(launches),
            tuple(partial(one.new_empty(0).new_empty_strided, one.shape, one.stride()) for one in news),
            tuple(values[first + len(made) :]),
            selector(chosen) if isinstance(result, tuple) else itemgetter(chosen[0]),
            tuple(
                launch
                for launched, *_ in noted
                for launch in (launched.prepared_launches if isinstance(launched, Replay) else (launched,))
            ),
        )


def _step_of(launched: Any, values: Sequence[Any], more: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """Return the function of a recorded launch, its arguments, and which of its arrays must be new.

    Args:
        launched: the `Replay` of a call, or the prepared launch of a kernel.
        values: the arrays of the call, or the arguments of the kernel.
        more: the numbers of the call, or the places of the kernel's arrays that must be new.
    """
    if not isinstance(launched, Replay):
        return launched.launch, values, more
    numbers = (*launched.numbers, *more) if launched.takes_more else launched.numbers or more
    first = launched.launches[0]
    used = sorted({at for one in launched.launches for at in one.places} - {IN_SCRATCH})
    is_single = len(launched.launches) == 1 and not first.offsets
    order = first.places if is_single else used
    arrays = [values[at] for at in order]
    stored = [order.index(one.stored) for one in launched.clear if one.stored in order]
    if is_single:
        return first.prepared.launch, (*arrays, *first.own, *numbers), stored
    own = tuple(
        ReplayedLaunch.of(
            one.prepared,
            tuple(at if at == IN_SCRATCH else used.index(at) for at in one.places),
            one.offsets,
            one.own,
        )
        for one in launched.launches
    )
    record = replace(launched, launches=own, clear=(), fresh=(), numbers=numbers, takes_more=False)

    def run(arguments: Sequence[Any], addresses: Sequence[int], stream: Any) -> None:
        record.run(arguments, addresses, (), stream)

    return run, arrays, stored


def is_new(made: torch.Tensor) -> torch.Tensor:
    """Return a new tensor without contents, which a function of `with_replay` made for a kernel to fill."""
    if RECORDING.made is not None:
        RECORDING.made.append(made)
    return made


def with_replay(
    function: FunctionType, tensors: Sequence[int], words: Sequence[int] = (), floats: Sequence[int] = ()
) -> FunctionType:
    """Return a function of tensors whose launches are repeated if a call is like an earlier one.

    A key has the metadata of each tensor, and the other arguments.  The second call of a key is recorded.
    The function stores only into new tensors, which it passes to `is_new`, or which operations return; its
    views of a tensor begin where the tensor begins.

    Args:
        function: takes positional arguments, and depends on nothing else. If PyTorch computes a part of a
            call, the function is called each time.
        tensors: places of the arguments that are tensors or None.
        words: places of the other arguments.
        floats: places of those among them that may be -0.0, which is equal to 0.0.
    """
    if CALL_LOG is not None:
        return function
    of_tensors, of_words = selector(tensors), selector(words) if words else lambda args: ()
    plans = Plans[LaunchSequence]()
    tries = dict[Hashable, int]()
    find, locate = plans.find, TORCH.locate

    @wraps(function)
    def call(*args: Any) -> Any:
        if RECORDING.launches is not None or is_recorded() or is_observed():
            return function(*args)
        given = of_tensors(args)
        key: list[Any] = [of_words(args)]
        every: list[Any] = [*given]
        at: list[Any] = []
        try:
            for one in given:
                if one is None:
                    key.append(None)
                    at.append(0)
                elif type(one) in PLAIN:
                    exact, address = locate(one, 0)
                    key.append(exact)
                    at.append(address)
                else:
                    return function(*args)
            for place in floats:
                value = args[place]
                if not value or type(value) is complex:
                    key.append(repr(value))
            whole = tuple(key)
            known = find(whole)
        except (LaunchError, RuntimeError, TypeError):  # the function says what is wrong
            return function(*args)
        if known is None:
            return record(whole, given, args)
        for make in known.makers:
            made = make()
            address = made.data_ptr()
            if address & 15:  # the kernels were compiled for multiples of 16
                return function(*args)
            every.append(made)
            at.append(address)
        every += known.constants
        for launch, arguments_of, pointers_of in known.launches:
            launch(arguments_of(every), pointers_of(at), None)
        return known.results(every)

    def record(key: Hashable, given: Sequence[Any], args: Sequence[Any]) -> Any:
        count = tries.get(key, 0)
        if count > MOST_TRIES:
            return function(*args)
        if len(tries) >= MOST_KEYS:
            tries.clear()
        tries[key] = count + 1
        if not count:  # numbers that never repeat, such as seeds, are not recorded
            return function(*args)
        RECORDING.launches, RECORDING.made = [], []
        try:
            result = function(*args)
            found = LaunchSequence.of(given, result)
        finally:
            RECORDING.launches = RECORDING.made = None
        if found is not None:
            plans.keep(key, found)
            tries.pop(key, None)  # another thread may have kept the same call
        return result

    return cast(FunctionType, call)


# ---------------------------------------------------------------- operations


class Operation:
    """An operation of PyTorch whose kernel is a call of this library.

    Args:
        schema: its name, its arguments without defaults, and its result, in PyTorch's spelling.
        run: computes it on tensors without gradients.
        fake: makes tensors like the results, from the shapes and dtypes of the arguments.
        differentiate: computes it on tensors if some want gradients, or a `torch.autograd.Function` with the
            gradient, whose ``forward`` is `inside`; None: the operation refuses them.
        batched: its rule for `torch.func.vmap`: takes the size of the batch, the batched dimension of each
            argument, and the arguments; returns the results, with the batch first, or None for a loop.
        cast: places of the tensors that autocast converts.
        refusal: why it refuses gradients, and the nearest legal choice.
    """

    def __init__(
        self,
        schema: str,
        run: Callable[..., Any],
        fake: Callable[..., Any],
        differentiate: Callable[..., Any] | None = None,
        batched: Callable[..., Any] | None = None,
        cast: Sequence[int] = (),
        refusal: str = "",
    ) -> None:
        self.name = schema.partition("(")[0]
        self.refusal = refusal
        self._apply: Callable[..., Any] | None = None
        if isinstance(differentiate, type):
            gradient: Any = differentiate
            gradient.forward = staticmethod(self.inside)
            differentiate = partial(recorded, gradient)
            directly = {"forward": staticmethod(lambda *args: self.run(*args))}
            self._apply = apply_of(type(gradient.__name__, (gradient,), directly))
        self._differentiate = differentiate
        self._batched = batched
        LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        self.overload = getattr(torch.ops.tilewright, self.name).default
        declared = [(one.name, "Tensor" in str(one.type)) for one in self.overload._schema.arguments]
        OPERATIONS[self.name] = self
        self._words = {at: name for at, (name, is_tensor) in enumerate(declared) if not is_tensor}
        kinds = [str(one.type) for one in self.overload._schema.arguments]
        tensors = [at for at, kind in enumerate(kinds) if "Tensor" in kind]
        floats = [at for at, kind in enumerate(kinds) if "float" in kind or "number" in kind]
        self.run = run = with_replay(run, tensors, [*self._words], floats)
        for device in DEVICES:
            LIBRARY.impl(self.name, run, device)
            if cast:
                LIBRARY.impl(self.name, self._autocast_rule(device, cast), f"Autocast{device}")
        LIBRARY.impl(self.name, self._autograd_rule, "Autograd")
        torch.library.register_fake(f"tilewright::{self.name}", self._fake_rule(fake), lib=LIBRARY)
        torch.library.register_vmap(f"tilewright::{self.name}", self._vmap_rule, lib=LIBRARY)

    def __call__(self, *args: Any) -> Any:
        """Compute the operation; arguments are positional and complete.

        Raises:
            LaunchError: a tensor has a tangent, or wants a gradient that the operation does not have; or a
                number is a tensor.
        """
        if is_compiling() or is_observed():
            return self._dispatched(*args)
        wanted = False
        for at, one in enumerate(args):
            kind = type(one)
            if kind in WORDS:
                continue
            if kind in PLAIN:
                if at in self._words or one.is_conj() or one.is_neg() or one.is_meta or one.is_nested:
                    return self._dispatched(*args)
                if one.requires_grad:
                    wanted = True
            elif isinstance(one, torch.Tensor):
                return self._dispatched(*args)
        if forward_ad._current_level >= 0:
            check_no_tangents(self.name, args)
        if wanted and torch.is_grad_enabled():
            return (self._apply or self.differentiate)(*args)
        try:
            return self.run(*args)
        except (LaunchError, AttributeError):
            self._check_tensors(args)
            raise

    def _check_tensors(self, args: Sequence[Any]) -> None:
        """Refuse arguments that are no tensors, with PyTorch's nearest choice."""
        for given, declared in zip(args, self.overload._schema.arguments, strict=True):
            kinds = (torch.Tensor, type(None)) if str(declared.type) == "Optional[Tensor]" else torch.Tensor
            if "Tensor" in str(declared.type) and not isinstance(given, kinds):
                name = declared.name
                raise LaunchError(
                    f"tilewright.torch.{self.name}: {name} is a {type(given).__name__}",
                    "a tensor" if given is None else f"torch.as_tensor({name})",
                )

    def _dispatched(self, *args: Any) -> Any:
        """Call PyTorch's dispatcher; refuse tensors as numbers, whose gradients the dispatcher would lose."""
        for at, name in self._words.items():
            if isinstance(args[at], torch.Tensor):
                raise LaunchError(
                    f"tilewright.torch.{self.name}: {name} is a tensor, and has no gradient",
                    f"{name}.item(), or a product with the tensor by PyTorch",
                )
        if is_compiling():
            return self.overload(*args)
        for given, declared in zip(args, self.overload._schema.arguments, strict=True):
            if isinstance(given, torch.Tensor) and given.is_nested:
                raise LaunchError(
                    f"tilewright.torch.{self.name}: {declared.name} is a nested tensor",
                    "tensor.to_padded_tensor(0.0), tensor.values(), or a call for each of tensor.unbind()",
                )
        try:
            return self.overload(*args)
        except NotImplementedError:
            placed = [one for one in tensors_of(args) if hasattr(one, "placements")]
            if not placed:
                raise
            raise LaunchError(
                f"tilewright.torch.{self.name}: a tensor is a DTensor, and the operation has no rule for "
                "placements",
                "the functions and layers of tilewright.distributed, tensor.to_local(), or "
                f"torch.distributed.tensor.experimental.register_sharding(torch.ops.tilewright.{self.name}"
                ".default)",
            ) from None

    def inside(self, *args: Any) -> Any:
        """Compute the operation from the ``forward`` of its `torch.autograd.Function`, which records it.

        Transforms of `torch.func` nest: the transforms below the current one record the operation too.
        """
        if not _is_below_transform():
            return self(*args)
        with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
            return self.overload(*args)

    def differentiate(self, *args: Any) -> Any:
        """Compute the operation so that PyTorch records its gradient.

        Raises:
            LaunchError: it has no gradient.
        """
        if self._differentiate is None:
            raise LaunchError(f"tilewright.torch.{self.name}: {self.refusal}")
        return self._differentiate(*args)

    def _fake_rule(self, fake: Callable[..., Any]) -> Callable[..., Any]:
        """Return the rule for tensors without memory; it refuses calls that mix them with other tensors."""

        def made(*args: Any) -> Any:
            there = {one.is_meta for one in tensors_of(args)}
            if len(there) > 1:
                raise LaunchError(
                    f"tilewright.torch.{self.name}: tensors on the device meta have no elements, and others "
                    "do",
                    "all tensors on one device",
                )
            return fake(*args)

        return made

    def _autograd_rule(self, *args: Any) -> Any:
        check_no_tangents(self.name, args)
        if wants_gradient(args):
            return self.differentiate(*args)
        with torch._C._AutoDispatchBelowAutograd():
            return self.overload(*args)

    def _autocast_rule(self, device: str, cast: Sequence[int]) -> Callable[..., Any]:
        key = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device}"))

        def autocast(*args: Any) -> Any:
            kind = torch.get_autocast_dtype(device.lower())
            made = [
                one.to(kind) if at in cast and one is not None and one.dtype in NARROWED else one
                for at, one in enumerate(args)
            ]
            with torch._C._ExcludeDispatchKeyGuard(key):
                return self.overload(*made)

        return autocast

    def _vmap_rule(self, how: Any, dims: Sequence[Any], *args: Any) -> Any:
        made = None if self._batched is None else self._batched(how.batch_size, dims, *args)
        if made is None and not how.batch_size:
            one = self(*_selected(args, dims, None))
            parts = one if isinstance(one, tuple) else (one,)
            empty = tuple(part.new_empty((0, *part.shape)) for part in parts)
            made = empty if isinstance(one, tuple) else empty[0]
        elif made is None:
            each = [self(*_selected(args, dims, at)) for at in range(how.batch_size)]
            if not isinstance(each[0], tuple):
                made = torch.stack(each)
            else:
                made = tuple(torch.stack(parts) for parts in zip(*each, strict=True))
        return made, (0,) * len(made) if isinstance(made, tuple) else 0


def _selected(args: Sequence[Any], dims: Sequence[Any], at: int | None) -> list[Any]:
    """Return the arguments of call ``at`` of a batch; zeros if ``at`` is None, for an empty batch."""
    made = list[Any]()
    for one, dim in zip(args, dims, strict=True):
        if not isinstance(one, torch.Tensor) or dim is None:
            made.append(one)
        elif at is None:
            made.append(one.new_zeros([extent for place, extent in enumerate(one.shape) if place != dim]))
        else:
            made.append(one.select(dim, at))
    return made
