"""Modules whose weights are spread over the ranks of a group; their state dicts load whole and in shards.

A column-parallel layer holds rows of its weight, which are columns of ``weightᵀ``; a row-parallel layer holds
columns.  A pair of them exchanges rows before the first layer, sums after the second, and nothing between.

A module draws its initial parameters as `torch.nn.Linear` does: seed all ranks alike, or load one state dict,
because biases after a sum must be the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from tilewright.distributed.calls import PARTS, How
from tilewright.distributed.exchange import chunks, ranks_of
from tilewright.distributed.functions import (
    all_gather_matmul,
    matmul_all_reduce,
    matmul_reduce_scatter,
    replicated_matmul,
)
from tilewright.distributed.gradients import SharedParameter
from tilewright.errors import LaunchError
from tilewright.torch.attending import attention
from tilewright.torch.layers import gated_matmul
from tilewright.torch.terms import activated

Rows = tuple[int, int]
"""The first row of a shard, and the one after the last."""


def shares(extent: int, size: int, *, rank_invariant: bool = False) -> tuple[int, ...]:
    """Return each rank's extent of a dimension: the parts of `torch.chunk`, or neighbouring eighths.

    Args:
        extent: the extent of the whole.
        size: number of ranks.
        rank_invariant: whether a rank has whole eighths, as ``rank_invariant=True`` needs.

    Example:
        >>> shares(20, 2), shares(20, 2, rank_invariant=True)
        ((10, 10), (12, 8))
    """
    if not rank_invariant or PARTS % size:
        return chunks(extent, size)
    parts, each = chunks(extent, PARTS), PARTS // size
    return tuple(sum(parts[rank * each : (rank + 1) * each]) for rank in range(size))


class _Parallel(nn.Module):
    """A module of one rank of a group.

    Args:
        group: as in `all_gather_matmul`.
        sequence_parallel: whether ranks hold different rows of tensors outside of the module.
        words: ``rank_invariant``, ``timeout``, ``check`` and ``precision`` of its calls; ``equal_rows``,
            whether all ranks have as many rows as this one, so that calls need no headers; ``wire_dtype``.

    Raises:
        LaunchError: ``words`` has another name.
    """

    takes: ClassVar[tuple[str, ...]] = ("precision", "rank_invariant", "timeout", "check", "equal_rows")
    """Names of ``words``."""

    def __init__(self, group: Any, sequence_parallel: bool, words: dict[str, Any]) -> None:
        super().__init__()
        if wrong := [name for name in words if name not in self.takes]:
            raise LaunchError(
                f"{type(self).__name__}: {wrong[0]}={words[wrong[0]]!r}", f"one of {', '.join(self.takes)}"
            )
        self.ranks = ranks_of(group)
        self.sequence_parallel = sequence_parallel
        self.words = {name: word for name, word in words.items() if name not in ("equal_rows", "wire_dtype")}
        self.equal_rows, self.wire_dtype = bool(words.get("equal_rows")), words.get("wire_dtype")

    @property
    def group(self) -> Any:
        """The process group."""
        return self.ranks.group

    def _own(self, extent: int) -> Rows:
        """Return the range of a dimension that belongs to this rank."""
        sizes = shares(extent, self.ranks.size, rank_invariant=bool(self.words.get("rank_invariant")))
        first = sum(sizes[: self.ranks.rank])
        return first, first + sizes[self.ranks.rank]

    def _spread(self, x: torch.Tensor, weights: Any, **words: Any) -> Any:
        """Multiply by this rank's columns; the rows are gathered, or the same on all ranks."""
        if not self.sequence_parallel:
            return replicated_matmul(x, weights, group=self.group, **self.words, **words)
        sizes = [x.shape[-2]] * self.ranks.size if self.equal_rows else None
        return all_gather_matmul(x, weights, group=self.group, sizes=sizes, **self.words, **words)

    def _together(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        """Return the sums over ranks: this rank's rows, or all rows."""
        words = {**self.words, "wire_dtype": self.wire_dtype}
        if not self.sequence_parallel:
            return matmul_all_reduce(x, weight.mT, group=self.group, bias=bias, **words)
        if bias is not None and torch.is_grad_enabled() and bias.requires_grad:
            timeout, check = self.words.get("timeout"), self.words.get("check")
            how = How("bias", self.ranks, timeout=timeout, check=check)
            bias = SharedParameter.apply(how, bias)
        return matmul_reduce_scatter(x, weight.mT, group=self.group, bias=bias, **words)


def _cut_when_loaded(
    state: dict[str, Any], key: str, own: torch.Tensor | None, whole: Sequence[int], parts: Sequence[Any]
) -> None:
    """Replace the tensor of a whole module in a state dict by this rank's part of it."""
    given = state.get(key)
    if own is None or given is None or given.shape == own.shape or list(given.shape) != list(whole):
        return
    state[key] = given[tuple(parts)]


class ColumnParallelLinear(_Parallel):
    """This rank's columns of ``activation(x @ weightᵀ + bias)``.

    The ranks together have the parameters of `torch.nn.Linear`. A state dict may have the whole weight and
    bias, which are cut, or this rank's.

    Args:
        in_features: extent of ``x`` along K.
        out_features: extent of the whole result; a rank has its share of `torch.chunk`.
        bias: whether there is a bias.
        group: as in `all_gather_matmul`.
        sequence_parallel: whether ``x`` has this rank's rows, which are gathered; otherwise all ranks have
            the same ``x``, and its gradient is added over ranks.
        activation: as in `tilewright.torch.matmul`.
        device: where the parameters lie.
        dtype: dtype of the parameters.
        words: ``precision``, ``rank_invariant``, ``timeout`` and ``check`` of `all_gather_matmul`;
            ``equal_rows=True`` if all ranks always have as many rows of ``x`` as this one, so that calls need
            no headers.

    Example:
        >>> import torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> layer = ColumnParallelLinear(64, 32, activation="relu")
        >>> layer.load_state_dict(torch.nn.Linear(64, 32).state_dict())
        <All keys matched successfully>
        >>> layer(torch.zeros(5, 64)).shape
        torch.Size([5, 32])
        >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        group: Any = None,
        sequence_parallel: bool = False,
        activation: str | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **words: Any,
    ) -> None:
        super().__init__(group, sequence_parallel, words)
        self.in_features, self.out_features = in_features, out_features
        self.activation = activation
        begin, end = self._own(out_features)
        made = nn.Linear(in_features, out_features, bias, device=device, dtype=dtype)
        self.weight = nn.Parameter(made.weight.detach()[begin:end].clone())
        self.bias = nn.Parameter(made.bias.detach()[begin:end].clone()) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's columns for a tensor (..., K)."""
        made: torch.Tensor = self._spread(x, self.weight.mT, bias=self.bias, activation=self.activation)
        return made

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        rows = slice(*self._own(self.out_features))
        whole = (self.out_features, self.in_features)
        _cut_when_loaded(state, f"{prefix}weight", self.weight, whole, (rows,))
        _cut_when_loaded(state, f"{prefix}bias", self.bias, whole[:1], (rows,))
        super()._load_from_state_dict(state, prefix, *rest)


class RowParallelLinear(_Parallel):
    """``x @ weightᵀ + bias``, whose K is spread over the ranks.

    The weight has this rank's columns, and the bias is the same on all ranks. A state dict may have the whole
    weight, which is cut, or this rank's.

    Args:
        in_features: extent of the whole K; a rank has its share of `torch.chunk`.
        out_features: extent of the result.
        bias: whether there is a bias.
        group: as in `all_gather_matmul`.
        sequence_parallel: whether a rank gets its rows of the result; otherwise all ranks get the whole.
        device: where the parameters lie.
        dtype: dtype of the parameters.
        words: ``precision``, ``rank_invariant``, ``timeout``, ``check`` and ``wire_dtype`` of
            `matmul_reduce_scatter`.

    Example:
        >>> import torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> RowParallelLinear(64, 32)(torch.zeros(5, 64)).shape
        torch.Size([5, 32])
        >>> dist.destroy_process_group()
    """

    takes: ClassVar[tuple[str, ...]] = (*_Parallel.takes, "wire_dtype")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        group: Any = None,
        sequence_parallel: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **words: Any,
    ) -> None:
        super().__init__(group, sequence_parallel, words)
        self.in_features, self.out_features = in_features, out_features
        begin, end = self._own(in_features)
        made = nn.Linear(in_features, out_features, bias, device=device, dtype=dtype)
        self.weight = nn.Parameter(made.weight.detach()[:, begin:end].clone())
        self.bias = made.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer of a tensor (..., K of this rank)."""
        made: torch.Tensor = self._together(x, self.weight, self.bias)
        return made

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        columns = slice(*self._own(self.in_features))
        whole = (self.out_features, self.in_features)
        _cut_when_loaded(state, f"{prefix}weight", self.weight, whole, (slice(None), columns))
        super()._load_from_state_dict(state, prefix, *rest)


class ParallelGatedMLP(_Parallel):
    """``down(activation(x @ gateᵀ) * (x @ upᵀ))``: gate and up are column parallel, down is row parallel.

    Args:
        features: extent of ``x`` and of the result.
        hidden: extent between the layers; a rank has its share of `torch.chunk`.
        bias: whether the layers have biases.
        activation: as in `tilewright.torch.matmul`.
        group: as in `all_gather_matmul`.
        sequence_parallel: whether ``x`` and the result have this rank's rows.
        device: where the parameters lie.
        dtype: dtype of the parameters.
        words: as in `ColumnParallelLinear` and `RowParallelLinear`.

    Example:
        >>> import torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> layer = ParallelGatedMLP(64, 96)
        >>> sorted(layer.state_dict()), layer(torch.zeros(5, 64)).shape
        (['down.weight', 'gate.weight', 'up.weight'], torch.Size([5, 64]))
        >>> dist.destroy_process_group()
    """

    takes: ClassVar[tuple[str, ...]] = RowParallelLinear.takes

    def __init__(
        self,
        features: int,
        hidden: int,
        *,
        bias: bool = False,
        activation: str = "silu",
        group: Any = None,
        sequence_parallel: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **words: Any,
    ) -> None:
        super().__init__(group, sequence_parallel, words)
        self.activation = activation
        given: dict[str, Any] = {
            "group": group,
            "sequence_parallel": sequence_parallel,
            "device": device,
            "dtype": dtype,
        }
        spread = {name: word for name, word in words.items() if name != "wire_dtype"}
        self.gate = ColumnParallelLinear(features, hidden, bias, **given, **spread)
        self.up = ColumnParallelLinear(features, hidden, bias, **given, **spread)
        self.down = RowParallelLinear(hidden, features, bias, **given, **words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer of a tensor (..., features)."""
        gate, up = self.gate, self.up
        wanted = torch.is_grad_enabled() and any(one.requires_grad for one in (x, *self.parameters()))
        is_plain = not self.words.get("rank_invariant") and self.words.get("precision", "exact") == "exact"
        if is_plain and not wanted and not self.sequence_parallel:
            words: dict[str, Any] = {"bias_b": gate.bias, "bias_c": up.bias, "activation": self.activation}
            return self.down(gated_matmul(x, gate.weight.mT, up.weight.mT, **words))
        biases = None if gate.bias is None else [gate.bias, up.bias]
        one, other = self._spread(x, [gate.weight.mT, up.weight.mT], bias=biases)
        return self.down(activated(self.activation, one) * other)


class ParallelAttention(_Parallel):
    """Self-attention whose heads are spread over the ranks; its output layer is row parallel.

    The ranks together have the parameters of `tilewright.torch.Attention` and `torch.nn.MultiheadAttention`,
    whose state dicts load.

    Args:
        embed_dim: extent of a token.
        num_heads: number of heads, a divisor of ``embed_dim``; a rank has its share of `torch.chunk`.
        bias: whether the projections have biases.
        causal: whether a token sees only those before it, and itself.
        group: as in `all_gather_matmul`.
        sequence_parallel: whether ``x`` and the result have this rank's tokens.
        device: where the parameters lie.
        dtype: dtype of the parameters.
        words: as in `ColumnParallelLinear` and `RowParallelLinear`, without ``rank_invariant``.

    Raises:
        LaunchError: ``num_heads`` does not divide ``embed_dim``.

    Example:
        >>> import torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> layer = ParallelAttention(64, 4, causal=True)
        >>> _ = layer.load_state_dict(torch.nn.MultiheadAttention(64, 4).state_dict())
        >>> layer(torch.zeros(2, 10, 64)).shape
        torch.Size([2, 10, 64])
        >>> dist.destroy_process_group()
    """

    takes: ClassVar[tuple[str, ...]] = ("precision", "timeout", "check", "equal_rows", "wire_dtype")

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        bias: bool = True,
        causal: bool = False,
        group: Any = None,
        sequence_parallel: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **words: Any,
    ) -> None:
        super().__init__(group, sequence_parallel, words)
        if num_heads < 1 or embed_dim % num_heads:
            near = max(heads for heads in range(1, max(num_heads, 2)) if not embed_dim % heads)
            raise LaunchError(
                f"ParallelAttention: num_heads={num_heads} does not divide embed_dim={embed_dim}",
                f"num_heads={near}",
            )
        self.embed_dim, self.num_heads, self.causal = embed_dim, num_heads, causal
        each = embed_dim // num_heads
        begin, end = (each * head for head in self._own(num_heads))
        self._columns = begin, end
        whole = torch.empty(3, embed_dim, embed_dim, device=device, dtype=dtype)
        nn.init.xavier_uniform_(whole.view(-1, embed_dim))
        self.in_proj_weight = nn.Parameter(whole[:, begin:end].reshape(-1, embed_dim).clone())
        zeros = torch.zeros(3 * (end - begin), device=device, dtype=dtype)
        self.in_proj_bias = nn.Parameter(zeros) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias, device=device, dtype=dtype)
        self.out_proj.weight = nn.Parameter(self.out_proj.weight.detach()[:, begin:end].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer of a tensor (B, M, embed_dim)."""
        begin, end = self._columns
        whole = self._spread(x, self.in_proj_weight.mT, bias=self.in_proj_bias)
        heads = self.num_heads * (end - begin) // self.embed_dim
        if heads:
            q, k, v = whole.unflatten(-1, (3, heads, -1)).movedim(-3, 0).transpose(-2, -3).unbind()
            seen = attention(q, k, v, causal=self.causal).transpose(-2, -3).flatten(-2)
        else:  # more ranks than heads
            seen = whole
        made: torch.Tensor = self._together(seen, self.out_proj.weight, self.out_proj.bias)
        return made

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        """Cut a whole state dict: rows of the projections, and columns of the output layer."""
        size, part = self.embed_dim, slice(*self._columns)
        for key, own, trail in (
            ("in_proj_weight", self.in_proj_weight, (size,)),
            ("in_proj_bias", self.in_proj_bias, ()),
        ):
            given = state.get(prefix + key)
            if own is not None and given is not None and given.shape == (3 * size, *trail) != own.shape:
                state[prefix + key] = given.view(3, size, *trail)[:, part].reshape(own.shape)
        output = self.out_proj.weight
        _cut_when_loaded(state, f"{prefix}out_proj.weight", output, (size, size), (slice(None), part))
        super()._load_from_state_dict(state, prefix, *rest)
