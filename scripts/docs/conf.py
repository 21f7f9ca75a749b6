"""Sphinx's configuration of the site; `python -m scripts.docs` calls it."""

from __future__ import annotations

from typing import Any

project = "tilewright"
author = "The tilewright authors"
html_title = "tilewright"
language = "en"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence", "fieldlist", "deflist", "attrs_block"]
myst_heading_anchors = 6
myst_number_code_blocks = []
suppress_warnings = []

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["plots.js", "boxes.js"]
templates_path = ["templates"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": False}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
smartquotes = False
nitpicky = False


def setup(app: Any) -> None:
    """Show only the open part of the navigation below each page, so that pages stay small.

    Its captions have the role of headings; they get a level, which the role needs.
    """

    def collapse(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
        whole = context.get("toctree")
        if whole is not None:
            context["toctree"] = lambda **options: whole(**{**options, "collapse": True}).replace(
                'role="heading"', 'role="heading" aria-level="2"'
            )

    app.connect("html-page-context", collapse, priority=100)
