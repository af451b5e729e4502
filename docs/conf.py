"""How the site is built: `make docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "extensions")]

import polynext

project = "polynext"
author = "the polynext contributors"
copyright = "the polynext contributors, Apache-2.0"
version = release = polynext.__version__
html_title = "polynext"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_design",
    "sphinx_copybutton",
    # ours, in docs/extensions
    "commands",
    "docstrings",
    "mathematics",
    "reference",
    "repository",
    "tables",
]
repository, repository_branch = "https://github.com/polynext/polynext", "main"
exclude_patterns = ["build", "extensions", "templates"]
templates_path = ["templates"]

# The pages are read as files too: what they are written in is what a repository's host shows.
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 3
smartquotes_action = "qe"  # not dashes: options begin with two hyphens

autodoc_member_order = "bysource"
napoleon_use_ivar = True
autodoc_inherit_docstrings = False
add_module_names = False
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"
viewcode_line_numbers = True

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["polynext.css"]
html_js_files = ["versions.js"]
html_logo = "static/logo.svg"
html_favicon = "static/logo.svg"
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
        "sidebar/versions.html",
    ]
}
html_theme_options = {
    "source_repository": repository,
    "source_branch": repository_branch,
    "source_directory": "docs/",
    "light_css_variables": {
        "color-brand-primary": "#b3470f",
        "color-brand-content": "#b3470f",
        "color-brand-visited": "#8a4a2b",
    },
    "dark_css_variables": {
        "color-brand-primary": "#f2a05c",
        "color-brand-content": "#f2a05c",
        "color-brand-visited": "#d9a07a",
    },
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
