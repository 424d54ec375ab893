"""A build with warnings is not built upon.

Sphinx reads and writes only what has changed since the last build. It says the warnings of the
other pages once and never again, so a repeated `make docs` would pass.
"""

from __future__ import annotations

from pathlib import Path

from sphinx.application import ENV_PICKLE_FILENAME, Sphinx


def _forget_what_failed(app: Sphinx, exception: Exception | None) -> None:
    if exception or app._warncount:
        (Path(app.doctreedir) / ENV_PICKLE_FILENAME).unlink(missing_ok=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", _forget_what_failed)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
