"""A build with warnings is not built upon.

Sphinx reads and writes what has changed since the last build. The warnings of pages that have not
are said once and then never again, so that `make docs`, repeated, would pass.
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
