"""Proposals for NVIDIA GPUs: which families are proposed for a problem, and in which order.

Hopper's forms come first if its multiply takes the operands.  Otherwise, and for operands that it takes
neither from memory nor decoded, ``mma.sync`` or multiply-adds multiply, with copies in the background.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.schedule.proposals_fma import small_tiles
from tilewright.schedule.proposals_mma import background_copies, f64_tiles, is_f64, small_products
from tilewright.schedule.proposals_packed import packed_weights
from tilewright.schedule.proposals_several import several_products
from tilewright.schedule.proposals_wgmma import decoded_forms, takes_wgmma, whole_forms
from tilewright.schedule.question import Candidate, Question


def candidates(question: Question) -> Iterator[Candidate]:
    """Candidate schedules, the first of which is the choice.

    Small products of many batch items come first, then f64, packed weights and decoded operands, which have
    forms of their own.
    """
    if not question.form.is_single:
        if is_f64(question):
            yield from f64_tiles(question)
        yield from several_products(question)
        return
    yield from small_products(question)
    if is_f64(question):
        yield from f64_tiles(question)
    yield from packed_weights(question)
    if "wgmma" in question.arch.features and question.decodes:
        yield from decoded_forms(question)
    if not takes_wgmma(question):
        yield from small_tiles(question)
        yield from background_copies(question)
        return
    forms, refused = whole_forms(question)
    yield from forms
    yield next(background_copies(question))
    yield from refused
