"""The options that several verbs have."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli.console import choose
from tilewright.ops.ending import ACTIVATIONS

TargetName = Annotated[str, typer.Option(help="Which target runs it: cpu, cuda, hip or reference.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the random numbers.")]
EveryElement = Annotated[bool, typer.Option(help="Compare every element under a bound for each.")]
Activation = Annotated[str | None, typer.Option(help=f"One of {', '.join(ACTIVATIONS)}.", show_default=False)]
ScheduleText = Annotated[
    str | None,
    typer.Option(metavar="EXPRESSION", help="How it is computed: tw.Schedule(...).", show_default=False),
]
Element = Annotated[str, typer.Option(help="Element type, as of tilewright gemm.")]
OperandLayout = Annotated[str, typer.Option(help="How A and B lie in memory: nn, nt, tn or tt.")]
ExactOrTf32 = Annotated[str, typer.Option(help="How f32 is multiplied: exact or tf32.")]
MostCandidates = Annotated[
    int | None,
    typer.Option(min=1, help="How many candidates are measured. Default: all.", show_default=False),
]
Processes = Annotated[
    int | None,
    typer.Option(min=1, help="Processes that compile. Default: one for each processor.", show_default=False),
]


def choose_activation(given: str | None) -> None:
    """Refuse an activation that does not exist."""
    if given is not None:
        choose("activation", given, tuple(ACTIVATIONS))
