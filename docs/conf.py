"""How Sphinx builds the documentation: `make docs`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
# The package as it stands here, and what pages are made with.
sys.path[:0] = [str(ROOT), str(HERE / "_extensions")]

import posenc_native  # noqa: E402

project = "posenc_native"
author = "the posenc_native authors"
release = version = posenc_native.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "github",
    "names",
    "signatures",
    "strictly",
]
exclude_patterns = ["_extensions"]

# Every reference is resolved or is a warning, and `make docs` makes warnings errors.
nitpicky = True
# A name in single backticks in a docstring is one of the reference: see names.py.
default_role = "py:obj"

# --- Markdown

myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

# --- The reference

autodoc_member_order = "bysource"
# Signatures get their types from _extensions/signatures.py; docstrings add shape and unit in words.
autodoc_typehints = "none"
# One argument a line where a signature is longer.
maximum_signature_line_length = 80
autosummary_generate = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_attr_annotations = False

# Every name in their __all__ has to be in the reference.
public_modules = [
    "posenc_native",
    *(
        f"posenc_native.{name}"
        for name in (
            *("absolute", "checkpoints", "flex", "hf", "nn", "plot", "positions", "relative"),
            *("rotary", "selective", "sinusoids"),
        )
    ),
]

# Names of other projects in docstrings, and where they are explained: one that is not here is an
# error. (intersphinx would ask the network in every build.)
_NUMPY = "https://numpy.org/doc/stable/reference/"
_PYTHON = "https://docs.python.org/3/library/"
_TORCH = "https://docs.pytorch.org/docs/stable/generated/"
external_names = {
    "Tensor": "https://docs.pytorch.org/docs/stable/tensors.html",
    "Module": _TORCH + "torch.nn.Module.html",
    "device": "https://docs.pytorch.org/docs/stable/tensor_attributes.html",
    "ArrayLike": _NUMPY + "typing.html#numpy.typing.ArrayLike",
    "ndarray": _NUMPY + "generated/numpy.ndarray.html",
    "dtype": _NUMPY + "arrays.dtypes.html",
    "Axes": "https://matplotlib.org/stable/api/axes_api.html",
    "PathLike": _PYTHON + "os.html#os.PathLike",
    **{
        name: f"{_PYTHON}collections.abc.html#collections.abc.{name}"
        for name in ("Callable", "Iterable", "Mapping", "Sequence")
    },
    "numpy.random.Generator": _NUMPY + "random/generator.html#numpy.random.Generator",
    "torch.Generator": _TORCH + "torch.Generator.html",
    "torch.set_num_threads": _TORCH + "torch.set_num_threads.html",
}

# --- Links that `make docs-links` follows

linkcheck_timeout = 20
linkcheck_retries = 2

# --- Pages

# A copied block has no prompt; what a command prints is not copied.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"posenc_native {release}"
# MathJax from a package, so that formulas are drawn without a network. (Not as an extension: it
# does not say whether it is safe for parallel builds.)
_mathjax = find_spec("sphinx-mathjax-offline")
assert _mathjax is not None
assert _mathjax.origin is not None
html_static_path = ["_static", str(Path(_mathjax.origin).parent / "static")]
mathjax_path = "mathjax/tex-chtml.js"
html_css_files = ["posenc.css"]
html_search_scorer = str(HERE / "_extensions" / "search_order.js")
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
