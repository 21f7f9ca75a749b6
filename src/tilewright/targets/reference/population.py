"""Making blocks: their shared memory, their warps with all agents, and their transaction barriers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilewright.ir.async_ops import Arrive, MBarrier
from tilewright.ir.kernel import Kernel, layout_shared
from tilewright.ir.ops import Shared
from tilewright.ir.types import Value
from tilewright.layout.nodes import Sym
from tilewright.targets.reference.agents import Agent, Clocks, Message, Proxy
from tilewright.targets.reference.barriers import TransactionBarrier
from tilewright.targets.reference.memory import Buffer, shared_buffer
from tilewright.targets.reference.state import BlockState, Warp

STORE_WAIT = "no bulk_wait covers its group"
STORE_SHOWN = "bulk_wait is the first thread's; a role_barrier after it shows others"
LANDING_WAIT = "bulk_wait waits until shared memory has been read; no wait in a kernel covers the writes"


@dataclass(frozen=True)
class Slots:
    """Who has which slot in the clocks of a block: four agents of every warp, MMA units, barrier stages."""

    warps: int
    stages: int

    @property
    def copies(self) -> int:
        """The asynchronous copies of warp 0."""
        return self.warps

    @property
    def stores(self) -> int:
        """What the bulk stores of warp 0 read."""
        return 2 * self.warps

    @property
    def landings(self) -> int:
        """What the bulk stores of warp 0 write."""
        return 3 * self.warps

    @property
    def units(self) -> int:
        """The MMA unit of the warpgroup that begins with warp 0."""
        return 4 * self.warps

    @property
    def barriers(self) -> int:
        """The first stage of the first transaction barrier."""
        return 5 * self.warps

    @cached_property
    def homes(self) -> list[int]:
        """For each slot, the slot of the warp whose lanes the agent serves."""
        own = list(range(self.warps))
        return [*own * 4, *range(self.units, self.barriers + self.stages)]


class Population:
    """Makes the blocks of a kernel."""

    def __init__(self, kernel: Kernel, lanes: int, check: bool) -> None:
        ops = list(kernel.walk())
        self._check = check
        self._shared = [op for op in ops if isinstance(op, Shared)]
        self._mbarriers = [op for op in ops if isinstance(op, MBarrier)]
        self._arrivals = [op for op in ops if isinstance(op, Arrive)]
        self._addresses = layout_shared(kernel)[0]
        self.slots = Slots(-(-kernel.threads // lanes), sum(op.stages for op in self._mbarriers))

    def block(
        self,
        index: tuple[int, ...],
        buffers: Mapping[Value, Buffer],
        scalars: Mapping[Value, Any],
        env: Mapping[Sym, int],
    ) -> BlockState:
        """A block that has not begun."""
        shared = {
            op.result: shared_buffer(op.result, op.elems, self._addresses[op.result], self._check)
            for op in self._shared
        }
        block = BlockState(index, {**buffers, **shared}, mbarriers=self._transaction_barriers())
        for number in range(self.slots.warps):
            block.warps.append(self._warp(block, number, scalars, env))
        return block

    def _warp(
        self, block: BlockState, number: int, scalars: Mapping[Value, Any], env: Mapping[Sym, int]
    ) -> Warp:
        slots = self.slots
        clocks, issues = (Clocks.of(len(slots.homes)) for _ in range(2))
        own = (number, block.index, number)
        agent = Agent(number, *own, "warp", clocks, issues=issues)
        copies = Agent(slots.copies + number, *own, "asynchronous copy", clocks)
        bulk = ("TMA store", issues, Proxy.ASYNC)
        stores, landings = (
            Agent(first + number, *own, *bulk, issuer=clocks, missing=missing, shown=shown)
            for first, missing, shown in (
                (slots.stores, STORE_WAIT, STORE_SHOWN),
                (slots.landings, LANDING_WAIT, ""),
            )
        )
        warp = Warp(number, block, agent, copies, stores, landings, dict(env), number, slots.warps)
        warp.scalars = dict(scalars)
        return warp

    def _transaction_barriers(self) -> dict[Value, list[TransactionBarrier]]:
        made: dict[Value, list[TransactionBarrier]] = {}
        slot = self.slots.barriers
        for op in self._mbarriers:
            bytes_of = [arrival.expect_bytes for arrival in self._arrivals if arrival.barrier is op.result]
            usual = max(bytes_of, default=0)
            made[op.result] = []
            for stage in range(op.stages):
                told, heard = (Message.of(len(self.slots.homes)) for _ in range(2))
                name = f"{op.result}[{stage}]"
                made[op.result].append(TransactionBarrier(name, stage, slot, usual, op.arrivals, told, heard))
                slot += 1
        return made
