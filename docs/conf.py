"""Sphinx configuration: `make docs` builds everything, with warnings as errors."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

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
