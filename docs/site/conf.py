# SPDX-License-Identifier: Apache-2.0
"""The site: every page of the repository in its place, the reference from the sources' comments.

The source folder is the root of the repository, so that the links of the pages hold on the site.
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]

project = "Convoy"
author = "The Convoy authors"
copyright = author
_version = (ROOT / "include/convoy/version.hpp").read_text()
release = ".".join(
    re.search(rf"CONVOY_VERSION_{part} (\d+)", _version)[1] for part in ("MAJOR", "MINOR", "PATCH")
)

root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "*.md",
    "data/tuning/README.md",
    "python/README.md",
    "vgpu/*.md",
    "vgpu/probe/*.md",
]
exclude_patterns = ["build*", ".*", "docs/site", "install", "demo-output"]

extensions = ["myst_parser", "breathe", "autoapi.extension", "sphinx_copybutton"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
highlight_language = "text"
default_role = "literal"  # Docstrings write `name` for code.
# NOTE: Sphinx takes the namespace that each header opens for a declaration of its own, and the C
# struct and function convoy_plan_info for the same name.
suppress_warnings = ["duplicate_declaration.c", "duplicate_declaration.cpp"]

breathe_projects = {"convoy": str(ROOT / "build/docs/doxygen/xml")}
breathe_default_project = "convoy"
breathe_domain_by_extension = {"h": "c", "hpp": "cpp", "cuh": "cpp"}
breathe_show_include = False

autoapi_dirs = [str(ROOT / "python/convoy")]
autoapi_root = "docs/reference/python"
autoapi_options = ["members", "undoc-members", "imported-members", "show-module-summary"]
autoapi_ignore = ["*/_lib/*"]
autoapi_add_toctree_entry = False
autoapi_member_order = "bysource"
autoapi_own_page_level = "module"
autoapi_python_class_content = "class"

html_theme = "furo"
html_title = f"Convoy {release}"
html_extra_path = ["index.html"]
html_static_path = ["static"]
html_css_files = ["convoy.css"]
html_show_sourcelink = False
copybutton_exclude = ".linenos, .gp, .go"

_LINK = re.compile(r"(!?\[[^\]\n]*\])\(([^)\s#]+)(#[^)\s]*)?\)")


def _plain_folders(app, docname, source):
    """A link to a folder of the repository has no page on the site: its text alone stays."""
    here = (ROOT / (docname + ".md")).parent

    def replace(match):
        target = match[2]
        if "://" in target or not (here / target).is_dir():
            return match[0]
        return match[1][1:-1]

    source[0] = _LINK.sub(replace, source[0])


def setup(app):
    app.connect("source-read", _plain_folders)
