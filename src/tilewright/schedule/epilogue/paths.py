"""The ways by which results come to global memory, by the names that schedules have for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.schedule.epilogue.direct import DirectEpilogue
from tilewright.schedule.epilogue.overlapped import OverlappedEpilogue
from tilewright.schedule.epilogue.staged import StagedEpilogue
from tilewright.schedule.epilogue.values import Arguments
from tilewright.schedule.form import Form
from tilewright.schedule.schedule import Schedule

EPILOGUES: Mapping[str, Callable[[Form, Schedule, Arguments], DirectEpilogue]] = {
    "direct": DirectEpilogue,
    "staged": StagedEpilogue,
    "overlapped": OverlappedEpilogue,
}
