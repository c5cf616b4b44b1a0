"""The site: `make docs` builds it into docs/_build/html, which opens from the file system and fetches nothing."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from duoplda import __version__  # noqa: E402

project, author, version, release = "duoplda", "The duoplda developers", __version__, __version__
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx_gallery.gen_gallery"]
extensions += ["sphinx_copybutton", "docstrings", "names", "drawings", "commands", "mathml", "figures_first"]
exclude_patterns = [
    "_build",
    "_ext",
    "_templates",
    "gallery/**/*.ipynb",
    "gallery/**/*.py",
    "gallery/sg_execution_times.rst",
]
exclude_patterns += ["api/backreferences", "sg_execution_times.rst"]
templates_path = ["_templates"]
nitpicky = True
suppress_warnings = ["config.cache"]  # options of the gallery are objects

# -- pages

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
copybutton_exclude = ".linenos, .gp, .go"
html_math_renderer = "mathml"
highlight_language = "text"
smartquotes = False  # "auto" is a value, and V' a transposed matrix

# -- reference

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # shapes and meanings are in the text
autodoc_preserve_defaults = True
add_module_names = False
python_maximum_signature_line_length = 80
default_role = "code"

# -- gallery

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "backreferences_dir": "api/backreferences",
    "doc_module": ("duoplda",),
    "inspect_global_variables": False,
    "reference_url": {"duoplda": None},  # names in the code link to the reference
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "only_warn_on_example_error": False,
    "image_srcset": ["2x"],
    "matplotlib_animations": False,
    "within_subsection_order": "gallery_order.Order",
}

# -- how it looks

html_theme = "furo"
html_title = "duoplda"
html_logo = "_static/logo.svg"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_search_summary = False  # a page that is opened from the file system may not fetch other pages
html_search_scorer = str(HERE / "_ext/scorer.js")
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e74", "color-brand-content": "#0b6e74"},
    "dark_css_variables": {"color-brand-primary": "#5cc8ce", "color-brand-content": "#5cc8ce"},
    "navigation_with_keys": False,
}


def without_leftovers() -> None:
    """Remove pages that an earlier build made of names and examples that are no longer there."""
    listed = {line.strip() for page in (HERE / "api").glob("*.rst") for line in page.read_text().splitlines()}
    for page in (HERE / "api/generated").glob("*.rst"):
        if page.stem.rpartition(".")[2] not in listed:
            page.unlink()
    for page in (HERE / "gallery").glob("plot_*.rst"):
        if not (HERE.parent / "examples/gallery" / f"{page.stem}.py").exists():
            page.unlink()


without_leftovers()
