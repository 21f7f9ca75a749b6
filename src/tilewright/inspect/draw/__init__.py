"""Pictures: layouts, maps of threads and values, bank conflicts; shown by notebooks, saved as SVG or PNG."""

from tilewright.inspect.draw.banks import bank_requests, draw_banks
from tilewright.inspect.draw.layouts import draw_layout, offset_table
from tilewright.inspect.draw.maps import draw_distribution
from tilewright.inspect.draw.picture import Picture

__all__ = ["Picture", "bank_requests", "draw_banks", "draw_distribution", "draw_layout", "offset_table"]
