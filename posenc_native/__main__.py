"""``python -m posenc_native``: see `posenc_native.cli`."""

import sys

from .cli import main

sys.exit(main(program="python -m posenc_native"))
