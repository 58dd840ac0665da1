"""Sphinx's configuration of the manual, which scripts/ops/build_docs.py builds; nothing in the site asks the network."""

import logging
from typing import Any

project = "transduce"
html_title = "transduce"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
exclude_patterns = [".doctrees"]
default_role = "code"  # `x` in docstrings
highlight_language = "text"
smartquotes = False  # --flags and "quotes" stand in prose, too

myst_heading_anchors = 3  # links to headings are checked

autodoc_class_signature = "separated"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"

html_theme = "furo"
html_theme_options = {"light_css_variables": {"code-font-size": "75%"}}  # lines of 97 characters fit
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False


def setup(app: Any) -> None:
    """Let a section of the index be without a page, "|" in docstrings be what it is, and code in tables be broken."""
    log = logging.getLogger("sphinx.sphinx.directives.other")
    log.addFilter(lambda record: "glob pattern" not in str(record.msg))
    app.connect("autodoc-process-docstring", as_it_is)
    app.connect("html-page-context", break_code)


def as_it_is(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """reStructuredText would take <|en|> for the name of a text."""
    lines[:] = [line if "`" in line else line.replace("|", r"\|") for line in lines]


def break_code(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """A long name in one column of a table would leave no room for the others."""
    style = "<style>td code { overflow-wrap: anywhere }</style>"
    context["metatags"] = context.get("metatags", "") + style
