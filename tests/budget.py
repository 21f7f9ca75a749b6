"""Random campaigns of the suite and their time limits: 15 seconds on two processors, for all together.

The seed comes from the commit; ``--fuzz-seed`` repeats it.  Scripts run for any time:
`scripts/fuzz_calls.py`, `scripts/try_schedules.py`, `scripts/try_problems.py`.
"""

from __future__ import annotations

PROCESSORS, SECONDS = 2, 15

SHARES = {
    "calls": 7.0,
    "interleavings": 5.0,
    "movers": 4.0,
    "problems on reference": 7.0,
    "problems on cpu": 7.0,
}
"""Seconds of one processor.  Problems and movers stop when they have had them; of calls and interleavings so
many are tried as take about as long."""

assert sum(SHARES.values()) <= PROCESSORS * SECONDS
