"""Sphinx configuration: `make docs` builds everything, with warnings as errors."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "groupsparse"
author = "The groupsparse authors"
project_copyright = f"2026, {author}"
version = release = installed_version("groupsparse")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
    "formulas",
]
exclude_patterns = ["examples", "extensions", "templates"]
templates_path = ["templates"]
nitpicky = False  # numpydoc's type words ("array", "optional") are prose, not targets

html_theme = "furo"
html_title = f"groupsparse {version}"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["formulas.css"]
html_copy_source = False

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say it, with shapes
numpydoc_show_class_members = False

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"\.py$",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "capture_repr": (),
    "show_memory": False,
    "min_reported_time": 5,
}


def setup(app: Sphinx) -> None:
    """Leave out the methods that come from other libraries' base classes."""

    def skip(app: Sphinx, what: str, name: str, thing: object, skipped: bool, options: Any) -> Any:
        module = getattr(thing, "__module__", None) or "groupsparse"
        return None if module.startswith("groupsparse") else True

    app.connect("autodoc-skip-member", skip)
