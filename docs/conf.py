"""Settings of the documentation: `make docs` builds it, and a warning is an error."""

import logging
from importlib.metadata import version as version_of

project = "shieldtx"
author = "the shieldtx maintainers"
release = version = version_of("shieldtx")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["diagrams", "README.md"]

# Markdown: links between pages and to their headings are checked.
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

# The API reference. In docstrings, single backticks are code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
# Alembic announces each of its plugins when the API reference imports it.
logging.getLogger("alembic").setLevel(logging.WARNING)

# Everything that a page loads is in its own folder: no fonts or scripts from other hosts.
html_theme = "furo"
html_title = f"shieldtx {release}"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
