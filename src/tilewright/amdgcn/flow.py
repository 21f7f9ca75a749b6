"""Branches, barriers, waits, and what changes nothing that is modelled here."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.amdgcn.faults import ListingParseError
from tilewright.amdgcn.operands import EXEC, SCC, SGPR, VCC
from tilewright.amdgcn.state import Array, Waves
from tilewright.amdgcn.steps import Step
from tilewright.amdgcn.text import Instruction
from tilewright.amdgcn.waits import waited

_NOTHING = """
buffer_gl0_inv buffer_gl1_inv buffer_inv buffer_wbl2 s_clause s_code_end s_dcache_inv s_dcache_wb
s_delay_alu s_icache_inv s_inst_prefetch s_nop s_sendmsg s_set_inst_prefetch_distance s_sethalt s_setprio
s_sleep s_ttracedata s_wait_idle s_waitcnt_depctr s_wakeup v_nop
"""
NOTHING = frozenset(_NOTHING.split())
"""Instructions for time, caches and debugging: they change no register here."""


class Nothing(Step):
    """An instruction that changes no register."""

    def __init__(self, instruction: Instruction) -> None:
        super().__init__(instruction, (), ())

    def run(self, waves: Waves) -> None:
        """Does nothing."""


class Wait(Step):
    """A wait for what is on its way."""

    def __init__(self, instruction: Instruction) -> None:
        super().__init__(instruction, (), ())
        try:
            self.counts = waited(instruction.modifiers["all"], instruction.mnemonic)
        except ListingParseError as error:
            raise ListingParseError(error.message, self.line, self.text) from None

    def run(self, waves: Waves) -> None:
        """Acts on the selected waves."""
        waves.waits.wait(self.counts, waves.at)


class End(Step):
    """The end of a wave."""

    ends = True

    def __init__(self, instruction: Instruction) -> None:
        super().__init__(instruction, (), ())


class Barrier(End):
    """Where the waves of a block wait for each other."""


_CONDITIONS: dict[str, tuple[str, bool]] = {
    "s_cbranch_scc0": ("scc", False),
    "s_cbranch_scc1": ("scc", True),
    "s_cbranch_vccz": ("vcc", False),
    "s_cbranch_vccnz": ("vcc", True),
    "s_cbranch_execz": ("exec", False),
    "s_cbranch_execnz": ("exec", True),
}
BRANCHES = ("s_branch", *_CONDITIONS)


class Branch(Step):
    """A jump, of all waves or of those that a condition holds for.

    Args:
        instruction: as the listing has it.
        target: number of the instruction behind the label.
        words: of a mask of lanes.
    """

    ends = True

    def __init__(self, instruction: Instruction, target: int, words: int) -> None:
        self.target = target
        self.what, self.when = _CONDITIONS.get(instruction.mnemonic, ("", True))
        first = {"scc": SCC, "vcc": VCC, "exec": EXEC}.get(self.what, 0)
        count = 0 if not self.what else (1 if self.what == "scc" else words)
        self.registers = tuple(range(first, first + count))
        super().__init__(instruction, [SGPR + register for register in self.registers], ())

    def jumps(self, waves: Waves) -> Array:
        """Which of the selected waves jump."""
        if not self.what:
            return np.ones(len(waves.mask), np.bool_)
        waves_registers: Any = waves.scalar[list(self.registers)][:, waves.at]
        return np.asarray((waves_registers != 0).any(0) == self.when)

    def check(self, waves: Waves) -> None:
        """Refuses a branch that depends on undefined bits.

        Raises:
            UninitialisedError: it does.
        """
        waves.require_defined(self.reads, "a branch", self.line, self.text)
