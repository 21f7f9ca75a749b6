"""Making clusters of blocks: their shared memory, their warps with all agents, their transaction barriers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.ir.async_ops import FENCED, Arrive, MBarrier
from tilewright.ir.clusters import cluster_blocks
from tilewright.ir.kernel import Kernel, layout_shared
from tilewright.ir.ops import Shared
from tilewright.ir.types import Value
from tilewright.symbolic.nodes import Sym
from tilewright.targets.reference.agents import Agent, Clocks, Message, Proxy, no_clocks
from tilewright.targets.reference.barriers import TransactionBarrier
from tilewright.targets.reference.memory import Buffer, overlay, shared_buffer
from tilewright.targets.reference.numbers import NUMBERS, Numbers
from tilewright.targets.reference.schedules import Skeleton
from tilewright.targets.reference.state import BlockState, ClusterState, Slots, Warp

RECORDED = 1
"""Of how many clusters other schedules are tried."""

STORE_WAIT = "no bulk_wait covers its group"
STORE_SHOWN = "bulk_wait is the first thread's; a role_barrier after it shows others"
LANDING_WAIT = "bulk_wait waits until shared memory has been read; no wait in a kernel covers the writes"


class Population:
    """Makes the clusters of a kernel; without clusters, of one block each.

    Args:
        kernel: the kernel.
        lanes: threads per warp.
        check: whether memory remembers who touched it.
        numbers: what numbers are.
    """

    def __init__(self, kernel: Kernel, lanes: int, check: bool, numbers: Numbers = NUMBERS) -> None:
        ops = list(kernel.walk())
        self._check, self._numbers = check, numbers
        self._shared = [op for op in ops if isinstance(op, Shared)]
        self._mbarriers = [op for op in ops if isinstance(op, MBarrier)]
        self._arrivals = [op for op in ops if isinstance(op, Arrive)]
        self._addresses = layout_shared(kernel)[0]
        self._splits = kernel.splits_cluster_barriers
        self._in_cluster = bool(kernel.cluster)
        self._recorded = self._clusters = 0
        one = Slots(-(-kernel.threads // lanes), sum(op.stages for op in self._mbarriers))
        self._slots = [replace(one, first=rank * one.end) for rank in range(cluster_blocks(kernel.cluster))]

    @property
    def homes(self) -> list[int]:
        """For each slot, the slot of the warp whose lanes the agent serves."""
        return [home for slots in self._slots for home in slots.homes]

    @property
    def agents(self) -> int:
        """How many slots there are."""
        return self._slots[-1].end

    def cluster(
        self,
        members: Sequence[tuple[tuple[int, ...], Mapping[Sym, int]]],
        buffers: Mapping[Value, Buffer],
        scalars: Mapping[Value, Any],
    ) -> ClusterState:
        """A cluster that has not begun.

        Args:
            members: each block's index and the values of its symbols, by rank.
            buffers: global memory.
            scalars: the caller's numbers.
        """
        cluster = ClusterState()
        self._clusters += 1
        for rank, (index, env) in enumerate(members):
            shared = {op.result: self._shared_buffer(op) for op in self._shared}
            if self._numbers.in_bytes:
                overlay(shared.values())
            block = BlockState(index, rank, cluster, self._slots[rank], {**buffers, **shared})
            block.mbarriers = self._transaction_barriers(block)
            block.warps += (self._warp(block, number, scalars, env) for number in range(block.slots.warps))
            block.barrier.warps += block.warps
            cluster.blocks.append(block)
            cluster.barrier.warps += block.warps
        # Other schedules of warps that go on between the halves of a barrier are not tried.
        if self._check and self._mbarriers and not self._splits and self._recorded < RECORDED:
            self._recorded += 1
            stages = [stage for b in cluster.blocks for each in b.mbarriers.values() for stage in each]
            cluster.skeleton = Skeleton(arrivals={stage.slot: stage.arrivals for stage in stages})
        return cluster

    def _shared_buffer(self, op: Shared) -> Buffer:
        address = self._addresses[op.result]
        return shared_buffer(op.result, op.elems, address, self._check, self._numbers)

    def _warp(
        self, block: BlockState, number: int, scalars: Mapping[Value, Any], env: Mapping[Sym, int]
    ) -> Warp:
        slots = block.slots
        every = no_clocks(self.agents)
        clocks, *others = (Clocks(known) for known in every)
        issues = dict(zip(FENCED, others, strict=True))
        order = np.zeros(self.agents, np.int64)
        slot = slots.first + number
        own = (slot, block.index, number)
        rank, group = block.rank if self._in_cluster else None, self._clusters
        agent = Agent(slot, *own, "warp", clocks, issues=issues, every=every, order=order)
        copies = Agent(slots.copies + number, *own, "asynchronous copy", clocks)
        bulk = ("TMA store", clocks, Proxy.ASYNC)
        stores, landings = (
            Agent(
                first + number,
                *own,
                *bulk,
                issues=issues,
                issuer=clocks,
                missing=missing,
                shown=shown,
            )
            for first, missing, shown in (
                (slots.stores, STORE_WAIT, STORE_SHOWN),
                (slots.landings, LANDING_WAIT, ""),
            )
        )
        for each in (agent, copies, stores, landings):
            each.rank, each.group = rank, group
        warp = Warp(number, block, agent, copies, stores, landings, dict(env), number, slots.warps)
        warp.scalars = dict(scalars)
        return warp

    def _transaction_barriers(self, block: BlockState) -> dict[Value, list[TransactionBarrier]]:
        made: dict[Value, list[TransactionBarrier]] = {}
        slot = block.slots.barriers
        for op in self._mbarriers:
            bytes_of = [arrival.expect_bytes for arrival in self._arrivals if arrival.barrier is op.result]
            usual = max(bytes_of, default=0)
            made[op.result] = []
            for stage in range(op.stages):
                told, heard = (Message.of(self.agents) for _ in range(2))
                name = f"{op.result}[{stage}]"
                made[op.result].append(TransactionBarrier(name, stage, slot, usual, op.arrivals, told, heard))
                slot += 1
        return made
