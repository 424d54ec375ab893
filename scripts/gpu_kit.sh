#!/usr/bin/env bash
# Make a folder with all that a bare machine with a GPU lacks to run `make gpu`: no network, no pip.
# `make gpu-kit` does the set-up first. A copy of the repository and this folder are what to bring;
# `make gpu` finds it by itself. In it:
#
#   posenc_native-*.whl   this working copy, with CUDA kernels, and the .json that says of which sources
#   *.whl                 what the tests import: requirements/gpu.txt
#   highway/              Highway's headers, for a build over there
#
# Environment:
#   KIT_PYTHON    the Python over there (default: 3.12)
#   CUDAARCHS     the GPUs to compile for (default: 90, which runs on newer ones too; one is quick to
#                 build and small. "80;90" takes twice as long; all that wheels have takes six times)
#   KIT           the folder (default: build/gpu-kit)
#   VENV          as for scripts/setup.sh

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

venv=${VENV:-.venv}
kit=${KIT:-build/gpu-kit}
[[ $kit == /* ]] || kit=$root/$kit
version=${KIT_PYTHON:-3.12}
export CUDAARCHS=${CUDAARCHS:-90}
# Of a folder for each choice of GPUs: what is built remembers them.
work=build/gpu-kit-work/${CUDAARCHS//[^0-9a-z]/-}
most=$((40 << 20)) # bytes of all files: it may have to travel with each call
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '==> %s\n' "$*"; }
die() {
  printf 'gpu-kit: %s\n' "$@" >&2
  exit 1
}

[[ $version =~ ^3\.[0-9]+$ ]] || die "KIT_PYTHON: expected a version such as 3.12, got $version"
sources=$("$venv/bin/python" -m benchmarks.gpu.kit digest)
rm -rf "$kit"/*.whl "$kit"/*.whl.json "$kit/highway" # nothing else: KIT may be any folder
PYTHONS=$version WHEEL_TESTS=none POSENC_CUDA=ON DIST=$kit WORK=$work VENV=$venv scripts/wheels.sh

say "Collecting what the tests import, for Python $version"
python=$work/python$version/bin/python # wheels.sh made it, where .venv has another version
[[ -x $python ]] || python=$venv/bin/python
download=("$python" -m pip download --quiet --only-binary :all: --dest "$kit"
  --constraint requirements/constraints.txt)
"${download[@]}" -r <(sed -n '/^# --no-deps$/q; p' requirements/gpu.txt)
"${download[@]}" --no-deps -r <(sed -n '/^# --no-deps$/,$ p' requirements/gpu.txt)

builds=("$work"/*-build) # the same Highway in all of them
headers=$(sed -n 's/^posenc_highway_headers:INTERNAL=//p' "${builds[0]}/CMakeCache.txt")
mkdir -p "$kit/highway"
(cd "$headers" && find hwy -name '*.h' -print0 | xargs -0 cp --parents --target-directory "$kit/highway")

# Reads it as `make gpu` will, and writes down which sources it was made of.
"$python" -m benchmarks.gpu.kit check "$kit" "$sources" "$CUDAARCHS"
bytes=$(find "$kit" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
((bytes <= most)) || die "$kit has $((bytes >> 20)) MiB, more than $((most >> 20))"
say "In $kit: $((bytes >> 20)) MiB for Python $version, GPUs $CUDAARCHS"
(cd "$kit" && ls -l -- *.whl)
say "Bring it along with a copy of this repository, and there: make gpu"
