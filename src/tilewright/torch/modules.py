"""Modules of PyTorch that call the library, and `convert`, which puts them into a model."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.fx
from torch import nn

from tilewright.errors import LaunchError
from tilewright.ops.wanted import Wanted, check_words
from tilewright.torch.attending import attend, attention
from tilewright.torch.kernels import LayerNorm, RMSNorm, is_rms_norm, of_norm
from tilewright.torch.layers import gated_matmul, scaled_mm, two_layers
from tilewright.torch.products import linear, matmul
from tilewright.torch.terms import (
    ACTIVATION_MODULES,
    FORMATS,
    HOOKS,
    IN_GROUPS,
    activated,
    activation_of,
    is_observed,
    numbers_of_codes,
    quantized,
)

# ---------------------------------------------------------------- layers with gradients


class Linear(nn.Linear):
    """`torch.nn.Linear` by the library's kernels: ``activation(x @ weightᵀ + bias)``.

    It has the parameters of `torch.nn.Linear`, and the same state dict.

    Args:
        activation: as in `linear`; None: none.
        precision: as in `linear`.
        words: the other arguments of `torch.nn.Linear`.

    Example:
        >>> layer = Linear(64, 32, activation="silu")
        >>> layer(torch.zeros(5, 64)).shape
        torch.Size([5, 32])
    """

    activation: str | None = None

    def __init__(
        self, *sizes: int, activation: str | None = None, precision: str = "exact", **words: Any
    ) -> None:
        super().__init__(*sizes, **words)
        self.activation, self.precision = activation, precision

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer of a tensor (..., K)."""
        words: dict[str, Any] = {"activation": self.activation, "precision": self.precision}
        return linear(x, self.weight, self.bias, **words)


class Conv1D(nn.Module):
    """``x @ weight + bias`` with a weight (K, N), like the layers of GPT-2 in `transformers`.

    It has the parameters of `transformers.pytorch_utils.Conv1D`, and the same state dict.

    Args:
        nf: extent of the result.
        nx: extent of ``x`` along K.
        precision: as in `matmul`.

    Example:
        >>> layer = Conv1D(32, 64)
        >>> layer(torch.zeros(5, 64)).shape, layer.weight.shape
        (torch.Size([5, 32]), torch.Size([64, 32]))
    """

    def __init__(self, nf: int, nx: int, *, precision: str = "exact") -> None:
        super().__init__()
        self.nf, self.nx, self.precision = nf, nx, precision
        self.weight = nn.Parameter(torch.empty(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer of a tensor (..., K)."""
        return matmul(x, self.weight, bias=self.bias, precision=self.precision)


class GatedLinear(nn.Module):
    """``activation(x @ gateᵀ) * (x @ upᵀ)``, in one kernel if no gradient is wanted.

    Args:
        in_features: extent of ``x`` along K.
        out_features: extent of the result.
        bias: whether both products have a bias.
        activation: as in `matmul`.
        precision: as in `gated_matmul`.
        words: ``device`` and ``dtype`` of the parameters.

    Example:
        >>> layer = GatedLinear(64, 96)
        >>> sorted(layer.state_dict()), layer(torch.zeros(5, 64)).shape
        (['gate.weight', 'up.weight'], torch.Size([5, 96]))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        activation: str = "silu",
        precision: str = "exact",
        **words: Any,
    ) -> None:
        super().__init__()
        self.activation, self.precision = activation, precision
        self.gate = nn.Linear(in_features, out_features, bias, **words)
        self.up = nn.Linear(in_features, out_features, bias, **words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer of a tensor (..., K)."""
        gate, up = self.gate, self.up
        if not all(_is_product(one, (nn.Linear, Linear, QuantizedLinear)) for one in (gate, up)):
            return activated(self.activation, gate(x)) * up(x)
        if isinstance(gate, QuantizedLinear) or isinstance(up, QuantizedLinear):
            return _product(up, x, multiply=_product(gate, x, activation=self.activation))
        words: dict[str, Any] = {"activation": self.activation, "precision": self.precision}
        return gated_matmul(x, gate.weight.mT, up.weight.mT, bias_b=gate.bias, bias_c=up.bias, **words)


class Attention(nn.Module):
    """Self-attention of several heads, with the parameters of `torch.nn.MultiheadAttention`.

    State dicts load both ways. It has no dropout, and its batches come first.

    Args:
        embed_dim: extent of a token.
        num_heads: number of heads, a divisor of ``embed_dim``.
        bias: whether the projections have biases.
        causal: whether a token sees only those before it, and itself.
        precision: as in `linear`, for the projections.
        words: ``device`` and ``dtype`` of the parameters.

    Raises:
        LaunchError: ``num_heads`` does not divide ``embed_dim``.

    Example:
        >>> layer = Attention(64, 4, causal=True)
        >>> _ = layer.load_state_dict(torch.nn.MultiheadAttention(64, 4).state_dict())
        >>> layer(torch.zeros(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        bias: bool = True,
        causal: bool = False,
        precision: str = "exact",
        **words: Any,
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            near = max(heads for heads in range(1, max(num_heads, 2)) if not embed_dim % heads)
            raise LaunchError(
                f"Attention: num_heads={num_heads} does not divide embed_dim={embed_dim}", f"num_heads={near}"
            )
        self.num_heads = num_heads
        self.causal = causal
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim, **words))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim, **words)) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, precision=precision, **words)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer of a tensor (B, M, embed_dim)."""
        precision = getattr(self.out_proj, "precision", "exact")  # it may be another layer by now
        whole = linear(x, self.in_proj_weight, self.in_proj_bias, precision=precision)
        q, k, v = whole.unflatten(-1, (3, self.num_heads, -1)).movedim(-3, 0).transpose(-2, -3).unbind()
        out = attention(q, k, v, causal=self.causal)
        return self.out_proj(out.transpose(-2, -3).flatten(-2))


# ---------------------------------------------------------------- quantised layers


class QuantizedLinear(nn.Module):
    """``x @ weightᵀ + bias`` with weights of 8 or 4 bits; only ``x`` has a gradient.

    ``"f8e4m3"`` and ``"i8"`` have a scale for each row of the weight, ``"f8e4m3_blocks"`` one for each block
    of 128 x 128 numbers, ``"i4"`` and ``"nf4"`` one for each ``group`` neighbours along K.  The scale is the
    largest magnitude divided by the largest number of the format.  A state dict of `torch.nn.Linear` loads:
    its weight is quantised.  `dequantized` returns a `torch.nn.Linear`.

    Args:
        in_features: extent of ``x`` along K.
        out_features: extent of the result.
        bias: whether there is a bias.
        weights: the format: ``"f8e4m3"``, ``"f8e4m3_blocks"``, ``"i8"``, ``"i4"`` or ``"nf4"``.
        group: neighbours that share a scale, for ``"i4"`` and ``"nf4"``; a divisor of ``in_features``.
        dtype: dtype of the scales of ``"i4"`` and ``"nf4"``, and of the bias.
        device: where the buffers lie.

    Raises:
        LaunchError: another format; or 4 bits with an odd ``in_features``, or a ``group`` that does not
            divide it.

    Example:
        >>> plain = torch.nn.Linear(64, 32)
        >>> layer = QuantizedLinear.of(plain, "i4", group=32)
        >>> layer.load_state_dict(plain.state_dict()), layer(torch.ones(5, 64)).shape
        (<All keys matched successfully>, torch.Size([5, 32]))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        weights: str = "f8e4m3",
        group: int = 128,
        dtype: torch.dtype | None = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        if weights not in FORMATS:
            raise LaunchError(f"QuantizedLinear: weights={weights!r}", f"one of {', '.join(FORMATS)}")
        if weights in IN_GROUPS and not _fits_bytes(in_features, group):
            raise LaunchError(
                f"QuantizedLinear: in_features={in_features} is no even multiple of group={group}",
                "weights='i8', or a divisor as group if in_features is even",
            )
        self.in_features, self.out_features = in_features, out_features
        self.weights, self.group = weights, group if weights in IN_GROUPS else None
        number = dtype or torch.get_default_dtype()
        empty = torch.zeros(out_features, in_features, device=device)
        codes, scales = self._quantized(empty, number)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.register_buffer("bias", torch.zeros(out_features, dtype=number, device=device) if bias else None)

    @classmethod
    def of(cls, layer: nn.Module, weights: str = "f8e4m3", group: int = 128) -> QuantizedLinear:
        """Return a quantised copy of a layer.

        Args:
            layer: a `torch.nn.Linear`, or a `Conv1D`, whose weight is turned.
            weights: as for the class.
            group: as for the class.
        """
        state = dict(layer.state_dict())
        if not isinstance(layer, nn.Linear):
            state["weight"] = state["weight"].mT
        held = state["weight"]
        words: dict[str, Any] = {"weights": weights, "group": group}
        words |= {"dtype": held.dtype, "device": held.device}
        made = cls(held.shape[1], held.shape[0], state.get("bias") is not None, **words)
        made.load_state_dict(state)
        return made

    def _quantized(self, weight: torch.Tensor, number: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """The codes and scales of a weight (N, K)."""
        return quantized(weight, self.weights, self.group, number)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer of a tensor (..., K) of f32, f16 or bf16."""
        return self.product(x)

    def product(self, x: torch.Tensor, **terms: Any) -> torch.Tensor:
        """Return the layer of a tensor (..., K), with terms after the product.

        Args:
            x: the tensor.
            terms: arguments of `scaled_mm`, such as ``activation`` and ``multiply``.
        """
        held = self._buffers  # reading an attribute of a module takes longer
        codes, scales, bias = held["codes"], held["scales"], held["bias"]
        assert codes is not None
        assert scales is not None
        words = {"scale_b": scales if scales.dim() == 1 else scales.mT, "out_dtype": x.dtype, **terms}
        if bias is not None:
            words["bias"] = bias
        if self.group is not None:
            words |= {"group": self.group, "packed": self.weights}
        return scaled_mm(x, codes.mT, **words)

    def extra_repr(self) -> str:
        """Return the extents and the format, which `print` shows."""
        group = "" if self.group is None else f", group={self.group}"
        extents = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{extents}, bias={self.bias is not None}, weights={self.weights!r}{group}"

    def dequantized_weight(self) -> torch.Tensor:
        """Return the weight (N, K) that the codes and scales stand for, in f32."""
        scales = self.scales if self.scales.dim() == 1 else self.scales.mT
        packed = self.weights if self.weights in IN_GROUPS else None
        return numbers_of_codes(self.codes.mT, scales, None, self.group, packed).mT.contiguous()

    def dequantized(self) -> nn.Linear:
        """Return a `torch.nn.Linear` with the weight that the codes and scales stand for."""
        there = self.codes.device
        words: dict[str, Any] = {"device": there, "dtype": torch.get_default_dtype()}
        made = nn.Linear(self.in_features, self.out_features, self.bias is not None, **words)
        with torch.no_grad():
            made.weight.copy_(self.dequantized_weight())
            if self.bias is not None:
                made.bias.copy_(self.bias)
        return made

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Move the layer to another device or dtype; codes, and scales in f32, keep their dtypes.

        `double` makes the other scales and the bias f32, because products with codes take no f64.
        """
        kept = {"codes": self.codes} | ({} if self.weights in IN_GROUPS else {"scales": self.scales})

        def changed(one: torch.Tensor) -> torch.Tensor:
            if not any(one is other for other in kept.values()):
                made = fn(one)
                return made.float() if made.dtype == torch.float64 else made
            integers = torch.uint8 if one.element_size() == 1 else torch.int32
            return fn(one.view(integers)).view(one.dtype)

        return super()._apply(changed, recurse)

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        weight, sizes = state.get(f"{prefix}weight"), (self.out_features, self.in_features)
        if weight is not None and weight.shape == sizes:
            there = weight if self.codes.is_meta else weight.to(self.codes.device)
            del state[f"{prefix}weight"]
            state[f"{prefix}codes"], state[f"{prefix}scales"] = self._quantized(there, self.scales.dtype)
        elif weight is not None:
            rest[-1].append(f"{prefix}weight has shape {tuple(weight.shape)}, and the layer {sizes}")
            return
        super()._load_from_state_dict(state, prefix, *rest)


def _fits_bytes(in_features: int, group: int) -> bool:
    """Return whether numbers of 4 bits fill whole bytes and groups along K."""
    return group > 0 and in_features % group == 0 and in_features % 2 == 0


def _with_class(layer: nn.Module, new: Any, **words: Any) -> nn.Module:
    """Return a layer of class ``new`` with the same parameters, hooks and mode."""
    made: nn.Module = new.__new__(new)
    nn.Module.__init__(made)
    made.__dict__.update(layer.__dict__, **words)
    return made


# ---------------------------------------------------------------- layers that follow each other


class WholeLayers(torch.fx.Tracer):
    """Traces a module, but not its layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Record every layer as one call."""
        return True


class Order(NamedTuple):
    """Names of the layers of ``after(second(activation(first(x)) * up(x)))``.

    Args:
        first: a product.
        activation: the module of the activation.
        up: a product; None: there is no factor.
        second: a product.
        after: the modules that follow, such as dropout.
    """

    first: str
    activation: str
    up: str | None
    second: str
    after: tuple[str, ...]

    @staticmethod
    def of(module: nn.Module) -> Order | None:
        """The order of a module's layers, the same in training and not; None if it computes anything else."""
        mode, orders = module.training, set[Order | None]()
        try:
            for one in (True, False):
                module.training = one
                orders.add(Order._traced(module))
        finally:
            module.training = mode
        return orders.pop() if len(orders) == 1 else None

    @staticmethod
    def _traced(module: nn.Module) -> Order | None:
        """The order in the module's graph; None if it computes anything else."""
        try:
            graph = WholeLayers().trace(module)
        except Exception:  # noqa: BLE001
            return None  # the graph depends on values
        *inputs, end = (one for one in graph.nodes if one.op in ("placeholder", "output"))

        def walked(node: Any) -> tuple[list[str], Any]:
            """The layers before a node, the last one first, and the input of the first layer."""
            names = list[str]()
            while isinstance(node, torch.fx.Node) and node.op == "call_module" and len(node.users) == 1:
                if len(node.args) != 1 or node.kwargs or node.target not in module._modules:
                    break
                names.append(node.target)
                node = node.args[0]
            return names, node

        (found, start), up = walked(end.args[0]), None
        if isinstance(start, torch.fx.Node) and start.target is operator.mul and len(start.users) == 1:
            sides = [walked(one) for one in start.args]
            (inner, first), (outer, second) = sorted(sides, key=lambda side: -len(side[0]))
            if (len(inner), len(outer)) == (2, 1) and first is second:
                found, start, up = found + inner, first, outer[0]
        calls = len(found) + 2 * (up is not None)
        if [start] != inputs or len(found) < 3 or len(graph.nodes) != calls + 2:
            return None
        if len({*found, up}) != len(found) + 1:
            return None  # a layer is called twice
        *after, last, activation, first_one = found
        return Order(first_one, activation, up, last, tuple(reversed(after)))


PRODUCTS = (Linear, Conv1D, QuantizedLinear)
"""The layers that `FeedForward` multiplies by itself."""


def _is_product(layer: nn.Module, kinds: tuple[type, ...] = PRODUCTS) -> bool:
    """Return whether a call of a layer is only the product with its weight, which a kernel may do instead."""
    is_known = type(layer) in kinds and getattr(layer, "activation", None) is None
    return is_known and "forward" not in layer.__dict__ and not is_observed(layer)


def _product(layer: Any, x: torch.Tensor, **terms: Any) -> torch.Tensor:
    """Multiply ``x`` by the weight of a layer of `PRODUCTS`; ``terms`` are more arguments of `matmul`."""
    if isinstance(layer, QuantizedLinear):
        return layer.product(x, **terms)
    precision = getattr(layer, "precision", "exact")
    return matmul(x, _turned(layer), bias=layer.bias, precision=precision, **terms)


def _turned(layer: Any) -> torch.Tensor:
    """The weight (K, N) of a layer."""
    made: torch.Tensor = layer.weight if isinstance(layer, Conv1D) else layer.weight.mT
    return made


class FeedForward(nn.Module):
    """A module of a model whose layers are ``after(second(activation(first(x)) * up(x)))``, by few kernels.

    `convert` puts it in place of modules with this order, such as the MLP of GPT-2 or Llama in
    `transformers`; ``up`` and ``after`` may be missing.  It has the same layers under the same names, and the
    same state dict.  If one of its layers was replaced or has hooks, it calls them one after the other.  If
    another attribute of the module is set, the module becomes an instance of the replaced class again, whose
    code may read it.

    Example:
        >>> class Mlp(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.up, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)
        ...         self.act = torch.nn.GELU()
        ...     def forward(self, x):
        ...         return self.down(self.act(self.up(x)))
        >>> model = torch.nn.Sequential(Mlp())
        >>> convert(model)
        {'0.up': 'Linear', '0.down': 'Linear', '0': 'FeedForward'}
    """

    order: Order
    function: str
    kind: type[nn.Module]
    replaced: type[nn.Module]

    def __setattr__(self, name: str, value: Any) -> None:
        held, absent = self.__dict__, object()
        before = held.get(name, getattr(held.get("replaced"), name, absent))
        is_own = name.startswith("_") or name in ("training", "forward") or isinstance(value, nn.Module)
        if not is_own and before is not absent and before is not value:
            self.__class__ = self.replaced
            return setattr(self, name, value)
        return super().__setattr__(name, value)

    def is_plain(self) -> bool:
        """Return whether the layers have no hooks, and all are still as `convert` left them."""
        order, layers = self.order, self._modules
        products = [layers[name] for name in (order.first, order.up, order.second) if name is not None]
        activation: Any = layers[order.activation]
        known = type(activation) is self.kind and "forward" not in activation.__dict__
        known = known and (self.kind not in ACTIVATION_MODULES or activation_of(activation) == self.function)
        return known and not is_observed(activation) and all(_is_product(one) for one in products)

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the layers of a tensor (..., K).

        Raises:
            LaunchError: no argument, or several.
        """
        if len(given := (*args, *kwargs.values())) != 1:
            raise LaunchError(
                f"FeedForward: {len(given)} arguments", "one tensor (..., K), as the replaced module takes it"
            )
        [x], order, function = given, self.order, self.function
        layers: dict[str | None, Any] = {None: None, **self._modules}
        is_traced = torch.jit.is_tracing() or not isinstance(x, torch.Tensor)
        if is_traced or not self.is_plain():
            y = layers[order.activation](layers[order.first](x))
            y = y if order.up is None else y * layers[order.up](x)
            for name in (order.second, *order.after):
                y = layers[name](y)
            return y
        first, up, second = layers[order.first], layers[order.up], layers[order.second]
        held = [one for one in (first, up, second) if one is not None]
        shared = {getattr(one, "precision", "exact") for one in held}
        is_plain = len(shared) == 1 and not any(isinstance(one, QuantizedLinear) for one in held)
        if up is None and is_plain:
            y = two_layers(
                x, _turned(first), _turned(second), first.bias, second.bias, function, shared.pop()
            )
        elif is_plain:
            words = {"bias_b": first.bias, "bias_c": up.bias, "precision": shared.pop()}
            y = _product(second, gated_matmul(x, _turned(first), _turned(up), activation=function, **words))
        else:
            hidden = _product(first, x, activation=function)
            hidden = hidden if up is None else _product(up, x, multiply=hidden)
            y = _product(second, hidden)
        for name in order.after:
            y = layers[name](y)
        return y


def _as_feed_forward(module: nn.Module) -> FeedForward | None:
    """Return a module as a `FeedForward`; None if its graph has another form."""
    is_kept = isinstance(module, FeedForward | nn.Sequential)
    if is_kept or "forward" in module.__dict__ or sum(type(one) in PRODUCTS for one in module.children()) < 2:
        return None
    order = Order.of(module)
    if order is None:
        return None
    activation = module.get_submodule(order.activation)
    function = activation_of(activation)
    words = {"order": order, "function": function, "kind": type(activation)}
    made = _with_class(module, FeedForward, **words, replaced=type(module))
    assert isinstance(made, FeedForward)
    return made if function is not None and made.is_plain() else None


# ---------------------------------------------------------------- models

TRANSFORMERS = "modeling_utils", "masking_utils", "pytorch_utils"
"""Modules of `transformers` with its models and attention, its masks, and its layer `Conv1D`."""

OF_LIBRARY = "tilewright"
"""The name of this library's attention in the configuration of a model of `transformers`."""


class Replacements(dict[str, str]):
    """The result of `convert`: the class of each new layer, by the name of the layer that it replaced.

    Args:
        replaced: these classes.
        left: for the other layers with parameters, the reason why each stayed.

    Example:
        >>> convert(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.PReLU())).left
        {'1': 'the library has no module in place of PReLU'}
    """

    def __init__(self, replaced: dict[str, str], left: dict[str, str]) -> None:
        super().__init__(replaced)
        self.left = left


QUANTIZED_FROM = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes of the weights that `convert` quantises: products with codes have no others."""


def _refusal(layer: nn.Module, weights: str, group: int) -> str:
    """Return why a layer cannot be quantised; empty if it can."""
    held: Any = layer.weight
    if held.dtype not in QUANTIZED_FROM:
        return f"{weights} does not stand for weights of {held.dtype}"
    if not layer.state_dict().keys() <= {"weight", "bias"}:
        return "its weight is computed from other parameters"
    depth = held.shape[1] if isinstance(layer, nn.Linear) else held.shape[0]
    if weights in IN_GROUPS and not _fits_bytes(depth, group):
        return f"its {depth} inputs are no even multiple of group={group}"
    return ""


def convert(
    model: nn.Module,
    *,
    weights: str | None = None,
    group: int = 128,
    only: Callable[[str, nn.Module], bool] | None = None,
    attention: bool = True,
    precision: str = "exact",
) -> Replacements:
    """Replace the layers of a model by those of the library, in place.

    Modules that are two products around an activation, or a gate, become a `FeedForward`, of fewer kernels.
    Every `torch.nn.Linear` itself, not a subclass, becomes a `Linear` with the same parameters, or with
    ``weights`` a `QuantizedLinear`.  In inference `torch.nn.TransformerEncoderLayer` then calls its layers
    instead of reading their weights, and `torch.nn.TransformerEncoder` passes padded tensors to them instead
    of nested ones.

    `torch.nn.LayerNorm` and `torch.nn.RMSNorm` become a `LayerNorm` and an `RMSNorm`.  In a model of
    `transformers`, layers `Conv1D` and norms like Llama's are replaced too, and `attention` serves all layers
    that ask `transformers.AttentionInterface`: the model's configuration then names it.

    Args:
        model: the model; a model that is itself such a layer is not replaced.
        weights: a format of `QuantizedLinear`; None: layers keep their parameters, and have gradients. Layers
            with weights in f64 or complex numbers, or computed from other parameters, are not quantised.
        group: as in `QuantizedLinear`; layers that it does not divide stay as they are.
        only: takes the name of a layer and the layer; returns whether to replace it.
        attention: whether to set the attention of a model of `transformers`.
        precision: that of the layers with parameters, as in `matmul`.

    Returns:
        The classes of the new layers by the names of the replaced ones, and in ``left`` why others stayed.

    Raises:
        LaunchError: an unknown format or precision.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> done = convert(model, only=lambda name, layer: layer.out_features > 2)
        >>> done, done.left
        ({'0': 'Linear'}, {'2': 'left out by only='})
    """
    if weights is not None and weights not in FORMATS:
        raise LaunchError(f"convert: weights={weights!r}", f"one of {', '.join(FORMATS)}")
    check_words(Wanted(precision=precision))
    models, masks, layers = (sys.modules.get(f"transformers.{name}") for name in TRANSFORMERS)
    done = Replacements({}, {})
    news: dict[type, type[nn.Module]] = {nn.Linear: Linear, nn.LayerNorm: LayerNorm, nn.RMSNorm: RMSNorm}
    if layers is not None:
        news[layers.Conv1D] = Conv1D
    made: dict[nn.Module, nn.Module] = {}  # a layer that has two places stays one layer
    for path, parent in list(model.named_modules(remove_duplicate=False)):
        for name, layer in list(parent._modules.items()):
            whole = f"{path}.{name}" if path else name
            if layer is None or not layer._parameters:
                continue
            new, why = news.get(type(layer)) or (RMSNorm if is_rms_norm(layer) else None), ""
            if new is None:
                is_own = type(layer).__module__.startswith("tilewright.")
                why = f"the library has no module in place of {type(layer).__name__}"
                done.left[whole] = "it is a module of the library" if is_own else why
                continue
            if only is not None and not only(whole, layer):
                why = "left out by only="
            elif weights is not None and new in PRODUCTS:
                why = _refusal(layer, weights, group)
            if why:
                done.left[whole] = why
                continue
            if layer not in made:
                if weights is not None and new in PRODUCTS:
                    made[layer] = QuantizedLinear.of(layer, weights, group).train(layer.training)
                    for hook in HOOKS:
                        setattr(made[layer], hook, getattr(layer, hook))
                else:
                    words = {"precision": precision} if new in PRODUCTS else of_norm(layer)
                    made[layer] = _with_class(layer, new, **words)
            setattr(parent, name, made[layer])
            done[whole] = type(made[layer]).__name__
            if new in PRODUCTS and isinstance(parent, nn.TransformerEncoderLayer):
                parent.activation_relu_or_gelu = 0  # else it reads the weights of its layers
    for path, parent in list(model.named_modules(remove_duplicate=False)):
        for name, module in list(parent._modules.items()):
            if module is None:  # its products were chosen by ``only``
                continue
            together = made.get(module) or _as_feed_forward(module)
            if together is not None:
                made[module] = together
                setattr(parent, name, together)
                done[f"{path}.{name}" if path else name] = type(together).__name__
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            bypassed = [getattr(one, "activation_relu_or_gelu", 0) for one in module.layers]
            module.use_nested_tensor = module.use_nested_tensor and all(bypassed)
    if attention and models is not None and masks is not None and isinstance(model, models.PreTrainedModel):
        models.AttentionInterface.register(OF_LIBRARY, attend)
        masks.AttentionMaskInterface.register(OF_LIBRARY, masks.sdpa_mask)
        config: Any = model.config
        model.set_attn_implementation(OF_LIBRARY)
        if config._attn_implementation == OF_LIBRARY:
            done["config"] = "attention"
        else:
            done.left["config"] = f"{type(model).__name__} does not ask transformers.AttentionInterface"
    return done
