"""The public functions: products of tensors and of `DTensor`, over the ranks of a group."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from tilewright.distributed.calls import SCALED, How
from tilewright.distributed.exchange import ranks_of
from tilewright.distributed.gradients import GatherProducts, ReduceProducts, SharedParameter
from tilewright.distributed.products import gather_products, reduce_products
from tilewright.errors import LaunchError
from tilewright.ops.wanted import Wanted, check_derivative, check_words
from tilewright.targets.target import HOST
from tilewright.torch.registry import NARROWED, check_no_tangents, wants_gradient
from tilewright.torch.terms import finished, is_last, present

Tensors: TypeAlias = torch.Tensor | Sequence[torch.Tensor]


def _listed(given: Any) -> list[Any]:
    return [given] if isinstance(given, torch.Tensor) or not isinstance(given, Sequence) else list(given)


def _cast(tensors: Sequence[Any]) -> list[Any]:
    """Return tensors as autocast converts them."""
    first = next((one for one in tensors if isinstance(one, torch.Tensor)), None)
    if first is None or not torch.is_autocast_enabled(first.device.type):
        return list(tensors)
    kind = torch.get_autocast_dtype(first.device.type)
    return [
        one.to(kind) if isinstance(one, torch.Tensor) and one.dtype in NARROWED else one for one in tensors
    ]


def _how(name: str, group: Any, words: Mapping[str, Any], scales: Sequence[Any], **more: Any) -> How:
    """Return how ranks compute a call, from its arguments."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise LaunchError(
            f"{name}: torch.func transforms the call, and ranks exchange no tensors inside of a transform",
            "torch.autograd.grad instead of torch.func.grad, or the call outside of torch.func.vmap",
        )
    given = {one: word for one, word in zip(SCALED, scales, strict=True) if word is not None}
    if more.get("sizes") is not None:
        more["sizes"] = tuple(int(one) for one in more["sizes"])
    return How(name, ranks_of(group), words=words, scaled=given, **more)


@contextmanager
def _refusals(how: How, tensors: Sequence[Any], *, is_uneven: bool) -> Iterator[None]:
    """Tell the other ranks if a check refuses the arguments of this rank."""
    try:
        yield
    except Exception as refusal:
        if how.ranks.size == 1 or not how.gathers:
            raise
        tensor = next((one for one in tensors if isinstance(one, torch.Tensor)), None)
        device = torch.device(HOST) if tensor is None else tensor.device
        raised = refusal

        def describe() -> Any:
            raise raised

        with how.ranks.call(how.name, how.timeout) as call:
            call.agree(device, describe, how.check, is_uneven=is_uneven)


def _check_words(how: How, beta: Any, activation: str | None, derivative: str | None, multiply: Any) -> None:
    for name, number in (("alpha", how.words.get("alpha")), ("beta", beta)):
        if isinstance(number, torch.Tensor):  # records of calls keep numbers, and not the values of tensors
            raise LaunchError(f"{how.name}: {name} is a tensor, and has no gradient", f"{name}.item()")
    if how.scaled and how.words:
        raise LaunchError(
            f"{how.name}: quantised numbers with {' and '.join(how.words)}",
            "a number scale_a instead of alpha, and no precision",
        )
    check_derivative(how.name, derivative, multiplies=multiply is not None)
    if activation is not None:
        check_words(Wanted(activation=activation))


def _words(alpha: float, precision: str) -> dict[str, Any]:
    made: dict[str, Any] = {} if alpha == 1 else {"alpha": alpha}
    return made if precision == "exact" else {**made, "precision": precision}


def _check_no_gradient(how: How, tensors: Sequence[Any]) -> None:
    if wants_gradient(tensors):
        raise LaunchError(
            f"{how.name}: products of quantised numbers have no gradients", "detach(), or torch.no_grad()"
        )


# ---------------------------------------------------------------- DTensor


def _is_placed(one: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(one, module.DTensor)


UNPLACED = {torch.Tensor, torch.nn.Parameter, type(None), bool, int, float, str, torch.dtype}
"""Types of arguments that are no `DTensor`, and have none in them."""


def _local(of: str, name: str, one: Any, at: int | None) -> torch.Tensor:
    """Return this rank's part of an argument along a dimension, counted from the end; None: the whole.

    A replicated argument is cut on each rank, without an exchange.

    Raises:
        LaunchError: it is sharded along another dimension, or partial.
    """
    tensor = dist.tensor
    wanted = tensor.Replicate() if at is None else tensor.Shard(one.dim() + at)
    [found] = one.placements
    if found != wanted and found != tensor.Replicate():
        raise LaunchError(
            f"{of}: {name} has the placement {found}", f"{name}.redistribute(placements=[{wanted}])"
        )
    made: torch.Tensor = one.redistribute(placements=[wanted]).to_local()
    return made


def _placed(of_a: int | None, of_b: int, of_bias: int | None, result: int | None) -> Callable[[Any], Any]:
    """Decorator: a function takes and returns `DTensor` too.

    Args:
        of_a: the sharded dimension of ``a``, from the end; None: ``dim``.
        of_b: the sharded dimension of ``b``.
        of_bias: the sharded dimension of the bias; None: all ranks have the whole bias.
        result: the sharded dimension of the result and of the other terms; None: ``dim``; 0: the result is
            whole.
    """

    def decorate(function: Any) -> Any:
        of, of_operands = function.__name__, list(inspect.signature(function).parameters)[:2]

        @wraps(function)
        def call(*operands: Any, **words: Any) -> Any:
            all_of = (*operands, *words.values())
            if not any(type(one) not in UNPLACED and any(map(_is_placed, _listed(one))) for one in all_of):
                return function(*operands, **words)
            named = [name for name in of_operands[len(operands) :] if name in words]
            operands = (*operands, *(words.pop(name) for name in named))
            for name in SCALED:
                if _is_placed(words.get(name)):
                    raise LaunchError(
                        f"{of}: {name} is a DTensor",
                        f"{name}.to_local(), if it has the scales of this rank's part of the operand",
                    )
            terms = {name: words[name] for name in ARRAYS if words.get(name) is not None}
            arrays = {**dict(zip(of_operands, operands, strict=False)), **terms}
            flat = [
                (name, one) for name, given in arrays.items() for one in _listed(given) if one is not None
            ]
            if len(operands) != 2 or not any(_is_placed(one) for _, one in flat):
                return function(*operands, **words)
            mesh = _mesh_of(of, flat, words)
            a, b = operands
            ones, others = _listed(a), _listed(b)
            dim = words.get("dim", -2)
            place = dim if result is None else result or None
            shapes = [
                (*torch.broadcast_shapes(one.shape[:-2], other.shape[:-2]), one.shape[-2], other.shape[-1])
                for one, other in zip(ones * len(others) if len(ones) == 1 else ones, others, strict=False)
            ]
            limit, check = words.get("timeout"), words.get("check")
            how = How(f"{of} of a DTensor", ranks_of(mesh), timeout=limit, check=check)

            def part_of_term(name: str, one: Any) -> torch.Tensor:
                """Return a term's part; if ranks share the whole term, all of them add to its gradient."""
                at = of_bias if name == "bias" else place
                is_repeated = (
                    at is not None
                    and name != "bias"
                    and (one.dim() < -at or (one.shape[at] == 1 and shapes[0][at] != 1))
                )
                made = _local(of, name, one, None if is_repeated else at)
                shared = is_repeated or (at is None and place is not None)
                return SharedParameter.apply(how, made) if shared else made

            given = {**words, "group": mesh}
            for name, term in terms.items():
                parts = [None if one is None else part_of_term(name, one) for one in _listed(term)]
                given[name] = parts[0] if isinstance(term, torch.Tensor) else parts
            right = [_local(of, of_operands[1], one, of_b) for one in others]
            second = right[0] if isinstance(b, torch.Tensor) else right
            # Rows of a replicated operand need not travel.
            if of_a is None and all(one.placements[0].is_replicate() for one in ones):
                given = {name: word for name, word in given.items() if name not in ("dim", "sizes")}
                y = replicated_matmul(ones[0].to_local(), second, **given)
            else:
                left = [_local(of, of_operands[0], one, dim if of_a is None else of_a) for one in ones]
                y = function(left[0] if isinstance(a, torch.Tensor) else left, second, **given)
            made = [_wrapped(one, mesh, shape, place) for one, shape in zip(_listed(y), shapes, strict=False)]
            return made[0] if isinstance(y, torch.Tensor) else made

        return call

    return decorate


ARRAYS = ("c", "bias", "multiply", "residual")
"""Terms that are tensors."""


def _mesh_of(name: str, tensors: Sequence[tuple[str, Any]], words: Mapping[str, Any]) -> Any:
    """Return the mesh of all tensors; refuse calls that mix them with others."""
    for key, one in tensors:
        if not _is_placed(one):
            raise LaunchError(
                f"{name}: {key} is no DTensor, and others are",
                f"torch.distributed.tensor.distribute_tensor({key}, mesh, placements)",
            )
    mesh = tensors[0][1].device_mesh
    if mesh.ndim != 1 or any(one.device_mesh != mesh for _, one in tensors):
        raise LaunchError(
            f"{name}: DTensors on several meshes, or on a mesh of {mesh.ndim} dimensions",
            "DTensors on one mesh of one dimension, such as mesh['tp']",
        )
    if words.get("sizes") is not None:
        raise LaunchError(
            f"{name}: sizes={list(words['sizes'])} with DTensors, whose shards have the extents of "
            "torch.chunk",
            "sizes=None",
        )
    return mesh


def _wrapped(one: torch.Tensor, mesh: Any, shape: Sequence[int], dim: int | None) -> Any:
    """Return a `DTensor` of this rank's part along ``dim``; None: ``one`` is the whole."""
    tensor = dist.tensor
    placement = tensor.Replicate() if dim is None else tensor.Shard(len(shape) + dim)
    size = torch.Size(shape)
    stride = torch.empty(size, device="meta").stride()
    words = {"run_check": False, "shape": size, "stride": stride}
    return tensor.DTensor.from_local(one.contiguous(), mesh, [placement], **words)


# ---------------------------------------------------------------- functions


@_placed(None, -1, -1, -1)
@torch.compiler.disable
def all_gather_matmul(
    a_shard: torch.Tensor,
    b: Tensors,
    *,
    group: Any = None,
    dim: int = -2,
    sizes: Sequence[int] | None = None,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float | None = None,
    bias: Any = None,
    activation: str | None = None,
    multiply: torch.Tensor | None = None,
    derivative: str | None = None,
    residual: torch.Tensor | None = None,
    precision: str = "exact",
    out_dtype: torch.dtype | None = None,
    scale_a: torch.Tensor | float | None = None,
    scale_b: torch.Tensor | float | None = None,
    zero_b: torch.Tensor | None = None,
    scale_group: int | None = None,
    packed: str | None = None,
    rank_invariant: bool = False,
    timeout: float | None = None,
    check: bool | None = None,
) -> Any:
    """``activation(alpha * (A @ b) + beta * c + bias) * multiply + residual`` for the rows of all ranks.

    ``A`` is the concatenation of the shards of all ranks along ``dim``.  Each rank multiplies it by its own
    ``b``, usually its columns of a weight.  Several matrices ``b`` share one exchange.

    The gradient of ``a_shard`` is `matmul_reduce_scatter` of the result's gradient and ``bᵀ``; that of ``b``
    is the product of the gathered rows, which are gathered again, with the result's gradient.

    Args:
        a_shard: tensor (..., M of this rank, K). M may differ from rank to rank.
        b: tensor (..., K, N), or a list of them. N may differ from rank to rank.
        group: the process group, or a `DeviceMesh` of one dimension; default: all ranks.
        dim: the dimension of the shards, counted from the end; any but the last one.
        sizes: extents of the shards of all ranks along ``dim``; default: the ranks tell each other.
        c: tensor that is broadcast to the result; only for a single ``b``, as are ``multiply`` and
            ``residual``.
        alpha: a number.
        beta: a number; default: 1.
        bias: tensor (N,); for a list of ``b`` a list of them, or of None.
        activation: as in `tilewright.torch.matmul`.
        multiply: tensor that is broadcast to the result.
        derivative: as in `tilewright.torch.matmul`.
        residual: tensor that is broadcast to the result.
        precision: as in `tilewright.torch.matmul`.
        out_dtype: dtype of the result.
        scale_a: a number, or a tensor with the scales of this rank's rows, of the shape of ``a_shard``
            without K or with 1 there, or of one element.
        scale_b: scales of ``b`` as in `tilewright.torch.scaled_mm`. Quantised numbers have no gradients.
        zero_b: zero points, with ``scale_group``.
        scale_group: the ``group`` of `tilewright.torch.scaled_mm`: neighbours along K that share a scale.
        packed: as in `tilewright.torch.scaled_mm`.
        rank_invariant: whether bits must not depend on the number of ranks, which is then 1, 2, 4 or 8.
        timeout: seconds that a rank waits for the others in each exchange; default: 120.
        check: whether ranks exchange headers and compare them, the same on all ranks; default: at each call
            on processors; on GPUs at each call without ``sizes``, and else at the first call with these
            shapes and options. Without headers, all shards must have the extent of this rank's, or ``sizes``
            must give their extents.

    Returns:
        A new tensor (..., M, N), or a list of them.

    Raises:
        LaunchError: shapes, dtypes or options do not fit, on this rank or between ranks; nothing is computed.
        RankError: another rank refused its arguments, called something else, ended, or was late.

    Example:
        >>> import torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> all_gather_matmul(torch.ones(2, 3), torch.ones(3, 1), bias=torch.tensor([0.5])).tolist()
        [[3.5], [3.5]]
        >>> dist.destroy_process_group()
    """
    scales = (scale_a, scale_b, zero_b, scale_group, packed)
    exchange = {"dim": dim, "sizes": sizes, "timeout": timeout, "check": check, "invariant": rank_invariant}
    how = _how("all_gather_matmul", group, _words(alpha, precision), scales, **exchange)
    terms = (c, beta, bias, activation, multiply, derivative, residual, out_dtype)
    return _multiplied(how, a_shard, b, *terms)


@torch.compiler.disable
def replicated_matmul(
    a: torch.Tensor,
    b: Tensors,
    *,
    group: Any = None,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float | None = None,
    bias: Any = None,
    activation: str | None = None,
    multiply: torch.Tensor | None = None,
    derivative: str | None = None,
    residual: torch.Tensor | None = None,
    precision: str = "exact",
    out_dtype: torch.dtype | None = None,
    scale_a: torch.Tensor | float | None = None,
    scale_b: torch.Tensor | float | None = None,
    zero_b: torch.Tensor | None = None,
    scale_group: int | None = None,
    packed: str | None = None,
    rank_invariant: bool = False,
    timeout: float | None = None,
    check: bool | None = None,
) -> Any:
    """``activation(alpha * (a @ b) + beta * c + bias) * multiply + residual``; all ranks have the same ``a``.

    It exchanges nothing; the gradient of ``a`` is `matmul_all_reduce` of the result's gradient and ``bᵀ``.

    Args:
        a: tensor (..., M, K), the same on all ranks.
        b: tensor (..., K, N), or a list of them: this rank's columns.
        group: as in `all_gather_matmul`.
        c: as in `all_gather_matmul`.
        alpha: a number.
        beta: a number; default: 1.
        bias: as in `all_gather_matmul`.
        activation: as in `tilewright.torch.matmul`.
        multiply: as in `all_gather_matmul`.
        derivative: as in `tilewright.torch.matmul`.
        residual: as in `all_gather_matmul`.
        precision: as in `tilewright.torch.matmul`.
        out_dtype: dtype of the result.
        scale_a: as in `tilewright.torch.scaled_mm`.
        scale_b: as in `tilewright.torch.scaled_mm`.
        zero_b: zero points, with ``scale_group``.
        scale_group: the ``group`` of `tilewright.torch.scaled_mm`.
        packed: as in `tilewright.torch.scaled_mm`.
        rank_invariant: as in `all_gather_matmul`.
        timeout: as in `all_gather_matmul`, for the gradient.
        check: as in `all_gather_matmul`, for the gradient.

    Returns:
        A new tensor (..., M, N), or a list of them.

    Raises:
        LaunchError: shapes, dtypes or options do not fit.

    Example:
        >>> import torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> replicated_matmul(torch.ones(2, 3), torch.ones(3, 1)).tolist()
        [[3.0], [3.0]]
        >>> dist.destroy_process_group()
    """
    scales = (scale_a, scale_b, zero_b, scale_group, packed)
    exchange = {"timeout": timeout, "check": check, "invariant": rank_invariant, "gathers": False}
    how = _how("replicated_matmul", group, _words(alpha, precision), scales, **exchange)
    terms = (c, beta, bias, activation, multiply, derivative, residual, out_dtype)
    return _multiplied(how, a, b, *terms)


def _multiplied(
    how: How,
    a: Any,
    b: Any,
    c: Any,
    beta: float | None,
    bias: Any,
    activation: str | None,
    multiply: Any,
    derivative: str | None,
    residual: Any,
    out_dtype: torch.dtype | None,
) -> Any:
    """Compute `all_gather_matmul` or `replicated_matmul`."""
    name = how.name
    is_single, bs = isinstance(b, torch.Tensor), _listed(b)
    biases = [bias] if is_single else [None] * len(bs) if bias is None else _listed(bias)
    others = {"c": c, "multiply": multiply, "residual": residual}
    with _refusals(how, [a, *bs], is_uneven=how.sizes is None):
        if not bs or len(biases) != len(bs):
            raise LaunchError(
                f"{name}: {len(bs)} matrices b and {len(biases)} biases",
                "one or more b, and a bias or None for each",
            )
        if len(bs) > 1 and ("scale_b" in how.scaled or any(one is not None for one in others.values())):
            raise LaunchError(
                f"{name}: {len(bs)} matrices b with c, multiply, residual or scales", "a call for each b"
            )
        _check_words(how, beta, activation, derivative, multiply)
        check_no_tangents(name, [a, *bs])
        if how.scaled:
            _check_no_gradient(how, [a, *bs, *biases, *others.values()])
    if not how.scaled:
        a, *rest = _cast([a, *bs, *biases, c, multiply, residual])
        bs, biases, (c, multiply, residual) = rest[: len(bs)], rest[len(bs) : 2 * len(bs)], rest[-3:]
    tensors = [a, *bs, *biases, c, multiply, residual]
    if not wants_gradient(tensors):
        words = {"activation": activation, "derivative": derivative, "beta": beta}
        given = [present(**words, c=c, bias=one, multiply=multiply, residual=residual) for one in biases]
        ys, _ = gather_products(how, a, bs, given, out_dtype, [False, False])
        return ys[0] if is_single else ys
    ends = is_last(activation, multiply, residual)
    added = [[c, one, residual if ends else None] for one in biases]
    flat = [one for three in added for one in three]
    inside = (activation if ends else None, beta)
    made = GatherProducts.apply(how, len(bs), out_dtype, inside, a, *bs, *flat)
    ys = list(made) if ends else [finished(y, activation, multiply, derivative, residual) for y in made]
    return ys[0] if is_single else ys


def _reduced(
    how: How,
    a: Any,
    b: Any,
    c: Any,
    beta: float | None,
    bias: Any,
    activation: str | None,
    multiply: Any,
    derivative: str | None,
    residual: Any,
    out_dtype: torch.dtype | None,
) -> Any:
    """Compute `matmul_reduce_scatter` or `matmul_all_reduce`."""
    ones, bs = _listed(a), _listed(b)
    with _refusals(how, [*ones, *bs], is_uneven=how.invariant):
        _check_words(how, beta, activation, derivative, multiply)
        if not ones or len(ones) != len(bs):
            raise LaunchError(
                f"{how.name}: {len(ones)} operands a and {len(bs)} operands b", "as many of both, one or more"
            )
        if how.scaled and len(ones) > 1:
            raise LaunchError(f"{how.name}: {len(ones)} products with scales", "one product")
        check_no_tangents(how.name, [*ones, *bs])
        if how.scaled:
            _check_no_gradient(how, [*ones, *bs, c, bias, multiply, residual])
    count = len(ones)
    if not how.scaled:
        made = _cast([*ones, *bs, c, bias, multiply, residual])
        ones, bs, (c, bias, multiply, residual) = made[:count], made[count : 2 * count], made[2 * count :]
    tensors = [*ones, *bs, c, bias, multiply, residual]
    if not wants_gradient(tensors):
        words = {"activation": activation, "derivative": derivative, "beta": beta}
        given = present(**words, c=c, bias=bias, multiply=multiply, residual=residual)
        return reduce_products(how, list(zip(ones, bs, strict=True)), given, out_dtype, [False, False])
    ends = is_last(activation, multiply, residual)
    added = [c, bias, residual if ends else None]
    inside = (activation if ends else None, beta)
    y = ReduceProducts.apply(how, count, out_dtype, inside, *ones, *bs, *added)
    return y if ends else finished(y, activation, multiply, derivative, residual)


@_placed(-1, -2, None, None)
@torch.compiler.disable
def matmul_reduce_scatter(
    a: Tensors,
    b_shard: Tensors,
    *,
    group: Any = None,
    dim: int = -2,
    sizes: Sequence[int] | None = None,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    multiply: torch.Tensor | None = None,
    derivative: str | None = None,
    residual: torch.Tensor | None = None,
    precision: str = "exact",
    out_dtype: torch.dtype | None = None,
    scale_a: torch.Tensor | float | None = None,
    scale_b: torch.Tensor | float | None = None,
    zero_b: torch.Tensor | None = None,
    scale_group: int | None = None,
    packed: str | None = None,
    rank_invariant: bool = False,
    wire_dtype: torch.dtype | None = None,
    timeout: float | None = None,
    check: bool | None = None,
) -> Any:
    """This rank's rows of ``activation(alpha * S + beta * c + bias) * multiply + residual``.

    ``S`` is the sum over ranks of ``a @ b_shard``.  Each rank sends its partial sums to the ranks that own
    their rows, in ``wire_dtype``; the owner adds them in the order of the ranks, so that bits are equal at
    every run.

    The gradient of ``a`` is `all_gather_matmul` of the result's gradient and ``b_shardᵀ``; that of
    ``b_shard`` is ``aᵀ`` times the gathered gradient.  The gradient of a bias is the sum of this rank's rows.

    Args:
        a: tensor (..., M, K of this rank), or a list whose products are added. K may differ from rank to
            rank.
        b_shard: tensor (..., K of this rank, N), or a list of them.
        group: as in `all_gather_matmul`.
        dim: the dimension that is scattered, counted from the end; any but the last one.
        sizes: the ranks' extents of the result along ``dim``; default: those of `torch.chunk`.
        c: tensor that is broadcast to this rank's rows, as are ``multiply`` and ``residual``.
        alpha: a number.
        beta: a number; default: 1.
        bias: tensor (N,).
        activation: as in `tilewright.torch.matmul`.
        multiply: as in `tilewright.torch.matmul`.
        derivative: as in `tilewright.torch.matmul`.
        residual: as in `tilewright.torch.matmul`.
        precision: as in `tilewright.torch.matmul`.
        out_dtype: dtype of the result.
        scale_a: as in `tilewright.torch.scaled_mm`.
        scale_b: as in `tilewright.torch.scaled_mm`. Quantised numbers have no gradients.
        zero_b: zero points, with ``scale_group``.
        scale_group: the ``group`` of `tilewright.torch.scaled_mm`.
        packed: as in `tilewright.torch.scaled_mm`.
        rank_invariant: whether bits must not depend on the number of ranks, which is then 1, 2, 4 or 8: K is
            cut into eight parts, whose sums are added as a tree. Each rank's K must be its share of the
            parts of `torch.chunk`.
        wire_dtype: dtype in which ranks send partial sums; default: `torch.bfloat16` for results in bf16,
            except with ``rank_invariant`` and for sums of integers; in all other cases that of sums. A
            narrower one moves fewer bytes: each part of another rank is then rounded once more. This rank's
            own part is not rounded, and the order in which parts are added is the same. `torch.float32`
            rounds no part of f32.
        timeout: as in `all_gather_matmul`.
        check: whether ranks exchange headers and compare them, the same on all ranks; default: at each call
            on processors; on GPUs at each call with ``rank_invariant``, and else at the first call with these
            shapes and options.

    Returns:
        A new tensor (..., M of this rank, N).

    Raises:
        LaunchError: shapes, dtypes or options do not fit, on this rank or between ranks; nothing is computed.
        RankError: another rank refused its arguments, called something else, ended, or was late.

    Example:
        >>> import torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> matmul_reduce_scatter(torch.ones(2, 3), torch.ones(3, 1)).tolist()
        [[3.0], [3.0]]
        >>> dist.destroy_process_group()
    """
    scales = (scale_a, scale_b, zero_b, scale_group, packed)
    exchange = {
        "dim": dim,
        "sizes": sizes,
        "timeout": timeout,
        "check": check,
        "wire": wire_dtype,
        "invariant": rank_invariant,
    }
    how = _how("matmul_reduce_scatter", group, _words(alpha, precision), scales, **exchange)
    return _reduced(how, a, b_shard, c, beta, bias, activation, multiply, derivative, residual, out_dtype)


@_placed(-1, -2, None, 0)
@torch.compiler.disable
def matmul_all_reduce(
    a: Tensors,
    b_shard: Tensors,
    *,
    group: Any = None,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    multiply: torch.Tensor | None = None,
    derivative: str | None = None,
    residual: torch.Tensor | None = None,
    precision: str = "exact",
    out_dtype: torch.dtype | None = None,
    scale_a: torch.Tensor | float | None = None,
    scale_b: torch.Tensor | float | None = None,
    zero_b: torch.Tensor | None = None,
    scale_group: int | None = None,
    packed: str | None = None,
    rank_invariant: bool = False,
    wire_dtype: torch.dtype | None = None,
    timeout: float | None = None,
    check: bool | None = None,
) -> Any:
    """``activation(alpha * S + beta * c + bias) * multiply + residual`` on all ranks.

    ``S`` is the sum over ranks of ``a @ b_shard``, added as by `matmul_reduce_scatter`; then the finished
    rows are gathered.  All ranks must give the same terms, and have bitwise the same result.

    The gradients are those of a function whose result is the same on all ranks: ``dY b_shardᵀ`` and ``aᵀ dY``
    of the rank's own operands, without an exchange.

    Args:
        a: tensor (..., M, K of this rank), or a list whose products are added.
        b_shard: tensor (..., K of this rank, N), or a list of them.
        group: as in `all_gather_matmul`.
        c: tensor that is broadcast to the result.
        alpha: a number.
        beta: a number; default: 1.
        bias: tensor (N,).
        activation: as in `tilewright.torch.matmul`.
        multiply: as in `tilewright.torch.matmul`.
        derivative: as in `tilewright.torch.matmul`.
        residual: as in `tilewright.torch.matmul`.
        precision: as in `tilewright.torch.matmul`.
        out_dtype: dtype of the result.
        scale_a: as in `tilewright.torch.scaled_mm`.
        scale_b: as in `tilewright.torch.scaled_mm`. Quantised numbers have no gradients.
        zero_b: zero points, with ``scale_group``.
        scale_group: the ``group`` of `tilewright.torch.scaled_mm`.
        packed: as in `tilewright.torch.scaled_mm`.
        rank_invariant: as in `matmul_reduce_scatter`.
        wire_dtype: as in `matmul_reduce_scatter`; finished rows are sent in the dtype of the result.
        timeout: as in `all_gather_matmul`.
        check: as in `matmul_reduce_scatter`.

    Returns:
        A new tensor (..., M, N), the same on all ranks.

    Raises:
        LaunchError: shapes, dtypes or options do not fit, on this rank or between ranks; nothing is computed.
        RankError: another rank refused its arguments, called something else, ended, or was late.

    Example:
        >>> import torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> matmul_all_reduce(torch.ones(2, 3), torch.ones(3, 1), activation="relu").tolist()
        [[3.0], [3.0]]
        >>> dist.destroy_process_group()
    """
    scales = (scale_a, scale_b, zero_b, scale_group, packed)
    exchange = {
        "timeout": timeout,
        "check": check,
        "wire": wire_dtype,
        "invariant": rank_invariant,
        "scatters": False,
    }
    how = _how("matmul_all_reduce", group, _words(alpha, precision), scales, **exchange)
    return _reduced(how, a, b_shard, c, beta, bias, activation, multiply, derivative, residual, out_dtype)
