"""Pictures of layouts, maps, bank conflicts and timelines; shown by notebooks, saved as SVG or PNG."""

from tilewright.inspect.draw.banks import bank_requests, draw_banks
from tilewright.inspect.draw.layouts import draw_distribution, draw_layout, offset_table
from tilewright.inspect.draw.picture import Picture
from tilewright.inspect.draw.timelines import draw_ranks, draw_timeline
from tilewright.namespaces import namespace
from tilewright.targets.reference.rank_times import Costs

__all__ = [
    "Costs",
    "Picture",
    "bank_requests",
    "draw_banks",
    "draw_distribution",
    "draw_layout",
    "draw_ranks",
    "draw_timeline",
    "offset_table",
]

__getattr__, __dir__ = namespace(__name__, __all__)
