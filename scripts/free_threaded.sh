#!/usr/bin/env bash
# Build and test the NumPy module for a CPython without the interpreter lock: `make free-threaded`.
# The virtual environment, with NumPy and without torch, lies in build/free-threaded and is used again
# the next time.
#
#   scripts/free_threaded.sh [PYTEST_ARGUMENTS]     default: threads, faults, errors, bits
#
# Such a Python has a t in its name. uv, pyenv (3.14t), Fedora (python3.14-freethreading) and
# actions/setup-python have it ready; from the sources of CPython, two commands make one:
#   ./configure --disable-gil --prefix=DIR && make -j2 install
#
# Environment:
#   PYTHON   the interpreter (default: python3.14t or python3.13t, whichever is on PATH)

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
work=$root/build/free-threaded
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1

say() { printf '==> %s\n' "$*"; }
die() {
  printf 'free-threaded: %s\n' "$@" >&2
  exit 1
}

interpreter=$(command -v "${PYTHON:-python3.14t}" || command -v "${PYTHON:-python3.13t}") ||
  die "no ${PYTHON:-python3.14t or python3.13t} on PATH: set PYTHON=..., see scripts/free_threaded.sh"
"$interpreter" -c 'import sys, sysconfig; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED"))' ||
  die "$interpreter has an interpreter lock"
version=$("$interpreter" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
venv=$work/venv-$version
python=$venv/bin/python

if [[ ! -x $python ]]; then
  say "Making $venv"
  "$interpreter" -m venv --clear "$venv"
fi
# For 3.13 not everything is built any more, in the versions of the constraints: an older one will do.
sed -E '/^(hypothesis|ml_dtypes)==/d' requirements/constraints.txt >"$work/constraints.txt"
say "Installing packages"
"$python" -m pip install --quiet --only-binary :all: --constraint "$work/constraints.txt" \
  allpairspy cmake hypothesis ml_dtypes mpmath ninja numpy pybind11 pytest scikit-build-core

say "Building the NumPy module for $("$python" --version), free-threaded"
POSENC_TORCH=OFF POSENC_CUDA=OFF "$python" -m pip install --quiet --no-build-isolation --no-deps \
  --force-reinstall --config-settings "build-dir=$work/build-$version" .

# Away from the sources, where ./posenc_native would hide what is installed.
cd tests
say "Importing it"
"$python" -W error - <<'PY'
import sys

import posenc_native as pn

assert pn.engines.backend.native is not None, pn.engines.backend.missing
assert not sys._is_gil_enabled(), "the module has asked for the interpreter lock"
print(pn.engines.backend.native.__file__)
PY

if (($# == 0)); then
  set -- engines/test_{threads,many_callers,faults,properties}.py core/calls/test_errors.py \
    encodings/{sinusoids,relative}/test_errors.py \
    encodings/rotary/test_{errors,remembered,same_bits}.py
fi
say "Running tests without the lock"
# Whatever else is imported: what is found must not be hidden by a lock that comes back.
PYTHON_GIL=0 "$python" -m pytest -q -p no:cacheprovider "$@"
