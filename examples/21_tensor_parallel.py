"""A small transformer, trained by two processes that each hold half of its heads and hidden columns.

    python examples/21_tensor_parallel.py [--ranks 2] [--steps 12]

It needs PyTorch.  The processes communicate over gloo, on CPUs.  The parent process trains the same model
alone and compares the loss curves.  They differ by rounding only, because sums over ranks are added in
another order.  Every rank has the same embeddings, norms and output layer.  Their gradients are equal on all
ranks, so the ranks do not exchange them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import tilewright.distributed as td
import tilewright.torch as tt

WORDS, WIDTH, HEADS, HIDDEN, BATCH, LENGTH = 29, 32, 4, 48, 4, 24


class GatedMLP(nn.Module):
    """The layers of `td.ParallelGatedMLP` in one process."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = tt.Linear(WIDTH, HIDDEN, bias=False), tt.Linear(WIDTH, HIDDEN, bias=False)
        self.down = tt.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Transformer(nn.Module):
    """One block between embeddings and an output layer."""

    def __init__(self, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = attention, mlp
        self.out = tt.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places.weight
        x = x + self.attention(self.before_attention(x))
        return self.out(x + self.mlp(self.before_mlp(x)))


def train(model: nn.Module, steps: int) -> list[float]:
    """Return the loss of each step; all processes draw the same tokens."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    drawn = torch.Generator().manual_seed(7)
    losses = []
    for _ in range(steps):
        first = torch.randint(WORDS, (BATCH, 1), generator=drawn)
        tokens = (first + torch.arange(LENGTH + 1) ** 2) % WORDS
        scores = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def work(rank: int, ranks: int, folder: str, state: dict[str, torch.Tensor], steps: int) -> None:
    """What each process does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    attention = td.ParallelAttention(WIDTH, HEADS, causal=True)
    model = Transformer(attention, td.ParallelGatedMLP(WIDTH, HIDDEN))
    model.load_state_dict(state)  # each rank takes its part
    torch.save((train(model, steps), sum(one.numel() for one in model.parameters())), f"{folder}/{rank}")
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2, help="number of processes")
    parser.add_argument("--steps", type=int, default=12, help="steps of training")
    asked = parser.parse_args()
    torch.manual_seed(0)
    model = Transformer(tt.Attention(WIDTH, HEADS, causal=True), GatedMLP())
    state = {name: one.detach().clone() for name, one in model.state_dict().items()}
    whole = sum(one.numel() for one in model.parameters())
    with TemporaryDirectory() as folder:
        given: Any = (asked.ranks, folder, state, asked.steps)
        mp.start_processes(work, given, asked.ranks, start_method="spawn")
        found = [torch.load(Path(folder) / str(rank)) for rank in range(asked.ranks)]
    alone = train(model, asked.steps)
    for step, loss in enumerate(alone):
        print(f"step {step:2}: one process {loss:.5f}, {asked.ranks} ranks {found[0][0][step]:.5f}")
    print(
        f"parameters: {whole} in one process, {' and '.join(str(count) for _, count in found)} on the ranks"
    )
    same = all(losses == found[0][0] for losses, _ in found)
    far = max(abs(one - other) for one, other in zip(alone, found[0][0], strict=True))
    falls = alone[-1] < alone[0]
    print(f"all ranks have the same losses: {same}; largest difference from one process: {far:.1e}")
    return 0 if same and falls and far < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
