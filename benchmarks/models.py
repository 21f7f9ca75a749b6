"""Language models in PyTorch: steps of training and of decoding with `tilewright.torch.convert`, and without.

    python benchmarks/models.py [--device cuda|cpu] [--part columns gpt2 llama decode curve] [--compile]

The models have the layers of GPT-2 and of Llama in their real sizes, but few layers, and random weights in
bf16.  A step of training is forward and backward.  A step of decoding computes one token for each row of a
batch, after 1024 tokens whose keys and values are kept; its weights are bf16, or quantised, and it runs as a
CUDA graph.  ``curve`` trains 200 steps of both, and compares the losses.  Results of both are compared first.
"""

from __future__ import annotations

import copy
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from reporting import arguments, keep, table
from torch import nn

import tilewright.torch as tt
from tilewright.torch.modules import FeedForward
from tilewright.torch.products import GATES, MATMUL_AND_SUMS, column_sums

functional = nn.functional

PARTS = ("columns", "gpt2", "llama", "decode", "curve")
FORMATS = ("f8e4m3", "i4")
BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXT = 1024

EAGER, COMPILED, OURS, OURS_COMPILED, OURS_BUT_ATTENTION = (
    *("eager", "torch.compile", "ours", "ours, torch.compile", "ours, PyTorch's attention"),
)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model; with as many heads of keys as of queries and biases it is GPT-2's, else Llama's."""

    width: int
    inner: int
    heads: int
    heads_of_keys: int
    layers: int
    tokens: int

    @property
    def is_gpt2(self) -> bool:
        return self.heads == self.heads_of_keys


GPT2 = Sizes(768, 3072, 12, 12, 4, 50304)
LLAMA = Sizes(2048, 8192, 32, 8, 4, 32000)
LLAMA_8B = Sizes(4096, 14336, 32, 8, 4, 32000)
SMALL = {True: Sizes(64, 128, 2, 2, 1, 96), False: Sizes(64, 128, 4, 2, 1, 96)}


def by_pytorch(q: Any, k: Any, v: Any, *, causal: bool) -> Any:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


class Mlp(nn.Module):
    """The MLP of a block, as models of `transformers` have it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        layer = functools.partial(nn.Linear, bias=sizes.is_gpt2)
        self.up, self.down = layer(sizes.width, sizes.inner), layer(sizes.inner, sizes.width)
        self.act: nn.Module = nn.GELU(approximate="tanh") if sizes.is_gpt2 else nn.SiLU()
        self.gate = None if sizes.is_gpt2 else layer(sizes.width, sizes.inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gate is None:
            return self.down(self.act(self.up(x)))
        return self.down(self.act(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes, wide = sizes, sizes.width
        self.part = wide // sizes.heads
        of_keys = sizes.heads_of_keys * self.part
        norm = nn.LayerNorm if sizes.is_gpt2 else nn.RMSNorm
        self.before, self.after = norm(wide), norm(wide)
        layer = functools.partial(nn.Linear, bias=sizes.is_gpt2)
        if sizes.is_gpt2:
            self.qkv = layer(wide, wide + 2 * of_keys)
        else:
            self.q, self.k, self.v = layer(wide, wide), layer(wide, of_keys), layer(wide, of_keys)
        self.out, self.mlp = layer(wide, wide), Mlp(sizes)
        self.attend: Any = by_pytorch

    def forward(self, x: torch.Tensor, kept: Any = None, turns: Any = None) -> torch.Tensor:
        y = self.before(x)
        if self.sizes.is_gpt2:
            parts = self.qkv(y).split(self.sizes.width, -1)
        else:
            parts = self.q(y), self.k(y), self.v(y)
        q, k, v = (one.unflatten(-1, (-1, self.part)).transpose(-2, -3) for one in parts)
        if turns is not None:
            q, k = rotated(q, turns), rotated(k, turns)
        if kept is not None:  # the last place is that of this token
            keys, values = kept
            keys[:, :, -1:], values[:, :, -1:] = k, v
            k, v = keys, values
        x = x + self.out(self.attend(q, k, v, causal=kept is None).transpose(-2, -3).flatten(-2))
        return x + self.mlp(self.after(x))


def rotated(x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = turns
    one, other = x.chunk(2, -1)
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)


class Model(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.tokens = nn.Embedding(sizes.tokens, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = (nn.LayerNorm if sizes.is_gpt2 else nn.RMSNorm)(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.tokens, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, text: torch.Tensor, kept: Sequence[Any] | None = None) -> torch.Tensor:
        x = self.tokens(text)
        turns = None
        if not self.sizes.is_gpt2:
            half = self.blocks[0].part // 2
            first = 0 if kept is None else kept[0][0].shape[2] - 1
            places = torch.arange(first, first + text.shape[1], device=text.device)[:, None]
            angles = places * 10000.0 ** (-torch.arange(half, device=text.device) / half)
            turns = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for at, block in enumerate(self.blocks):
            x = block(x, None if kept is None else kept[at], turns)
        return self.head(self.norm(x))

    def converted(self, weights: str | None = None, *, attention: bool = True) -> Model:
        """A copy with layers of the library; with the same parameters, if they are not quantised."""
        made = copy.deepcopy(self)
        if weights is None:
            for one, other in zip(made.parameters(), self.parameters(), strict=True):
                one.data = other.data
        tt.convert(made, weights=weights)
        for block in made.blocks:
            block.attend = tt.attention if attention else by_pytorch
        return made


def jobs_of_mlp(
    layer: FeedForward, rows: int, gradients: bool, kind: Any, device: str
) -> list[Callable[[], Any]]:
    """Calls of the kernels of an MLP, but for those of its layers alone."""
    first, second, act = layer.up, layer.down, layer.function
    x = torch.zeros(1, rows, first.in_features, dtype=kind, device=device)
    if not gradients:
        return [functools.partial(layer, x)]
    y = torch.zeros(1, rows, second.out_features, dtype=kind, device=device)
    hidden = torch.zeros(1, rows, first.out_features, dtype=kind, device=device)
    late = {"multiply": hidden, "derivative": act}
    if layer.gate is None:
        words = (1.0, None, act, None, "exact", None)
        return [
            functools.partial(MATMUL_AND_SUMS.run, x, first.weight.mT, None, first.bias, None, None, *words),
            functools.partial(tt.matmul, y, second.weight, **late),
        ]
    words = (None, None, hidden, None, 1.0, None, act, None, "exact", None)
    return [
        functools.partial(MATMUL_AND_SUMS.run, x, first.weight.mT, *words),
        functools.partial(GATES.run, hidden, hidden, hidden, act),
    ]


def compile_first(model: Model, rows: int, gradients: bool, device: str) -> None:
    """Compile the kernels of a model's products in several threads: the thread of gradients is one."""
    kind = model.tokens.weight.dtype
    done, jobs = set[Any](), list[Callable[[], Any]]()
    for layer in model.modules():
        if isinstance(layer, FeedForward) and FeedForward not in done:  # all have the same sizes
            done.add(FeedForward)
            jobs += jobs_of_mlp(layer, rows, gradients, kind, device)
        if not isinstance(layer, tt.Linear | tt.QuantizedLinear):
            continue
        key = type(layer), layer.in_features, layer.out_features, layer.bias is None
        if key in done:
            continue
        done.add(key)
        x = torch.zeros(1, rows, layer.in_features, dtype=kind, device=device)
        jobs.append(functools.partial(layer, x))
        if gradients:
            dy, weight = (
                torch.zeros(rows, layer.out_features, dtype=kind, device=device),
                layer.weight.detach(),
            )
            jobs += [
                functools.partial(tt.matmul, dy.view(1, *dy.shape), weight),
                functools.partial(tt.matmul, dy.mT, x[0]),
            ]
            if layer.bias is not None:
                jobs.append(functools.partial(column_sums, dy))

    def run(job: Callable[[], Any]) -> None:
        with torch.no_grad():
            job()

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(run, jobs))


def times_ms(calls: dict[str, Callable[[], Any]], device: str, rounds: int) -> dict[str, float]:
    """Median milliseconds of each call, in turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(2):
        for call in calls.values():
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            if device == "cuda":
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda.synchronize()
                begin.record()
                call()
                end.record()
                torch.cuda.synchronize()
                found[name].append(begin.elapsed_time(end))
            else:
                at = time.perf_counter()
                call()
                found[name].append((time.perf_counter() - at) * 1e3)
    return {name: statistics.median(one) for name, one in found.items()}


# ---------------------------------------------------------------- training


def loss_of(model: Any, text: torch.Tensor) -> torch.Tensor:
    logits = model(text[:, :-1]).flatten(0, 1)
    return functional.cross_entropy(logits.float(), text[:, 1:].flatten())


def training(asked: Any, name: str, device: str) -> Iterator[dict[str, Any]]:
    sizes, batch, length = (GPT2, 16, 1024) if name == "gpt2" else (LLAMA, 4, 2048)
    if asked.quick:
        sizes, batch, length = SMALL[name == "gpt2"], 2, 32
    torch.manual_seed(0)
    plain = Model(sizes).to(device, torch.bfloat16)
    own = plain.converted()
    text = torch.randint(sizes.tokens, (batch, length + 1), device=device)
    begin = time.perf_counter()
    compile_first(own, batch * length, True, device)
    losses, norms = [], []
    for model in (plain, own):
        loss = loss_of(model, text)
        found = torch.autograd.grad(loss, [*model.parameters()])
        losses.append(loss.item())
        norms.append(sum(one.float().square().sum().item() for one in found) ** 0.5)
    print(
        f"{name}: losses {losses}, norms of gradients {norms}, {time.perf_counter() - begin:.0f} s",
        flush=True,
    )
    assert abs(losses[0] - losses[1]) < 0.01 * losses[0]
    assert abs(norms[0] - norms[1]) < 0.02 * norms[0]

    def step(model: Any) -> None:
        for one in model.parameters():
            one.grad = None
        loss_of(model, text).backward()

    models: dict[str, Any] = {EAGER: plain, OURS: own, OURS_BUT_ATTENTION: plain.converted(attention=False)}
    if asked.compile:
        models |= {COMPILED: torch.compile(plain), OURS_COMPILED: torch.compile(own)}
    calls = {which: functools.partial(step, model) for which, model in models.items()}
    found = times_ms(calls, device, 2 if asked.quick else 10)
    print(name, {which: round(one, 2) for which, one in found.items()}, flush=True)
    yield {"problem": f"training of {name}, {batch} x {length}, {sizes.layers} layers", "ms": found}


def curve(asked: Any, device: str) -> Iterator[dict[str, Any]]:
    """Losses of 200 steps of training of both models, in f32, on rows that count up."""
    steps = 8 if asked.quick else 200
    for is_gpt2, sizes in SMALL.items():
        torch.manual_seed(0)
        plain = Model(sizes).to(device)
        own = copy.deepcopy(plain)
        tt.convert(own)
        for block in own.blocks:
            block.attend = tt.attention
        found = []
        for model in (plain, own):
            numbers = torch.Generator("cpu").manual_seed(1)
            optimizer, losses = torch.optim.AdamW(model.parameters(), lr=2e-3), []
            for _ in range(steps):
                first = torch.randint(sizes.tokens, (8, 1), generator=numbers)
                text = ((first + torch.arange(33) * 3) % sizes.tokens).to(device)
                loss = loss_of(model, text)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            found.append(losses)
        apart = max(abs(one - other) for one, other in zip(*found, strict=True))
        name = "gpt2" if is_gpt2 else "llama"
        print(
            f"{name}: losses {found[0][0]:.4f} to {found[0][-1]:.4f}, at most {apart:.2g} apart", flush=True
        )
        assert found[0][-1] < found[0][0] - (0.5 if asked.quick else 3)
        assert apart < 0.02
        yield {"problem": f"{steps} steps of training of {name}", "losses": found, "apart": apart}


# ---------------------------------------------------------------- sums of columns


def columns(asked: Any, device: str) -> Iterator[dict[str, Any]]:
    """Sums of the columns of matrices in bf16, beside PyTorch's and a product with ones, as CUDA graphs."""
    for rows, width in [(64, 48)] if asked.quick else [(8192, 4096), (16384, 768), (16384, 3072)]:
        dy = torch.randn(rows, width, device=device).bfloat16()
        ones = dy.new_ones(rows)
        exact, sizes = dy.double().sum(0), dy.double().abs().sum(0)
        assert bool(
            ((column_sums(dy) - exact).abs() <= rows * 2.0**-24 * sizes + 2.0**-8 * exact.abs()).all()
        )
        calls: dict[str, Callable[[], Any]] = {
            EAGER: functools.partial(dy.sum, 0),
            OURS: functools.partial(column_sums, dy),
            "product with ones": functools.partial(tt.matmul, ones, dy),
        }
        if device == "cuda":
            for call in calls.values():
                call()
            torch.cuda.synchronize()
        calls = {name: functools.partial(repeated, call) for name, call in calls.items()}
        if device == "cuda":
            calls = {name: captured(call) for name, call in calls.items()}
        found = {name: ms / REPEATS for name, ms in times_ms(calls, device, 10).items()}
        rate = dy.nbytes / found[OURS] / 1e6
        print(
            f"sums of {rows} x {width}:",
            {k: round(v * 1e3, 1) for k, v in found.items()},
            "us,",
            f"ours {rate:.0f} GB/s",
            flush=True,
        )
        yield {"problem": f"sums of the columns of {rows} x {width}", "ms": found}


REPEATS = 20


def repeated(call: Callable[[], Any]) -> None:
    for _ in range(REPEATS):
        call()


# ---------------------------------------------------------------- decoding


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """A CUDA graph of a call."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def decoding(asked: Any, device: str) -> Iterator[dict[str, Any]]:
    sizes, context = (SMALL[False], 32) if asked.quick else (LLAMA_8B, CONTEXT)
    torch.manual_seed(0)
    plain = Model(sizes).to(device, torch.bfloat16).eval()
    own = {weights: plain.converted(weights) for weights in asked.formats}
    like = {}
    for weights, model in own.items():  # what the codes stand for
        like[weights] = copy.deepcopy(plain)
        for name, layer in model.named_modules():
            if isinstance(layer, tt.QuantizedLinear):
                like[weights].get_submodule(name).weight.data = layer.dequantized_weight().to(torch.bfloat16)
    of_keys = sizes.heads_of_keys, context, sizes.width // sizes.heads
    for batch in asked.batches:
        text = torch.randint(sizes.tokens, (batch, 1), device=device)
        kept = [
            tuple(torch.randn(batch, *of_keys, dtype=torch.bfloat16, device=device) for _ in range(2))
            for _ in range(sizes.layers)
        ]
        calls: dict[str, Callable[[], Any]] = {EAGER: functools.partial(plain, text, kept)}
        begin = time.perf_counter()
        for weights, model in own.items():
            compile_first(model, batch, False, device)
            found, expected = (one(text, kept).float() for one in (model, like[weights]))
            apart = (found - expected).norm() / expected.norm()
            assert apart < 0.03, (weights, batch, apart)
            calls[weights] = functools.partial(model, text, kept)
        seconds = time.perf_counter() - begin
        if device == "cuda":
            for call in calls.values():
                call()
            torch.cuda.synchronize()
            calls |= {f"{name}, graph": captured(call) for name, call in calls.items()}
        found_ms = times_ms(calls, device, 2 if asked.quick else 20)
        print(
            f"batch {batch}:", {k: round(v, 3) for k, v in found_ms.items()}, f"{seconds:.0f} s", flush=True
        )
        yield {"problem": f"decoding, batch {batch}, {sizes.layers} layers of {sizes.width}", "ms": found_ms}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--compile", action="store_true", help="train with torch.compile too")
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    asked = parser.parse_args()
    rows = list[dict[str, Any]]()
    for part in asked.part:
        if part == "curve":
            rows += curve(asked, asked.device)
        elif part == "columns":
            rows += columns(asked, asked.device)
        elif part == "decode":
            with torch.no_grad():
                rows += decoding(asked, asked.device)
        else:
            rows += training(asked, part, asked.device)
    keep(asked, "models", "cpu" if asked.device == "cpu" else "cuda", rows)
    lines = []
    for row in rows:
        for name, ms in row.get("ms", {}).items():
            base = row["ms"][f"{EAGER}, graph" if name.endswith(", graph") else EAGER]
            lines.append((row["problem"], name, f"{ms:.3f}", f"{base / ms:.2f}"))
    print(table(("step", "by", "ms", "of eager"), lines))


if __name__ == "__main__":
    main()
