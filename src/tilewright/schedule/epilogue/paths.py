"""The ways by which results come to global memory, by the names that schedules have for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.schedule.epilogue.direct import Direct
from tilewright.schedule.epilogue.overlapped import Overlapped
from tilewright.schedule.epilogue.staged import Staged
from tilewright.schedule.epilogue.values import Arguments
from tilewright.schedule.form import Form
from tilewright.schedule.schedule import Schedule

EPILOGUES: Mapping[str, Callable[[Form, Schedule, Arguments], Direct]] = {
    "direct": Direct,
    "staged": Staged,
    "overlapped": Overlapped,
}
