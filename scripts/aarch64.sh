#!/usr/bin/env bash
# Build the NumPy module for Arm (NEON) on an x86-64 machine, run tests of it under an emulator and
# compare the bits of its results with those of this machine's module. `make aarch64` does the set-up
# first; what is fetched and built lies in build/aarch64 and is used again the next time.
#
#   scripts/aarch64.sh [PYTEST_ARGUMENTS]     default: the tests of kernels that need no torch
#
# The compiler, with its C library, is zig, from PyPI. Python for Arm is Debian's, unpacked and not
# installed: this needs apt-get and a network, and runs on Debian and what is made of it.
#
# Environment:
#   VENV        as for scripts/setup.sh
#   TEST_JOBS   processes that share the test files (default: 2)

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

venv=${VENV:-.venv}
[[ $venv == /* ]] || venv=$root/$venv
work=$root/build/aarch64
system=$work/system     # Debian's packages
packages=$work/packages # Python's
python=$work/python     # of Arm: runs as one of this machine would

export PATH="$venv/bin:$PATH"
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '==> %s\n' "$*"; }
die() {
  printf 'aarch64: %s\n' "$@" >&2
  exit 1
}

# --- Python for Arm ---------------------------------------------------------------------------

fetch_python() {
  [[ ! -e $system/complete ]] || return 0
  say "Fetching Debian's Python for Arm"
  rm -rf "$system" "$work/apt"
  mkdir -p "$system" "$work/apt/lists/partial" "$work/apt/archives/partial"
  local mirror=http://deb.debian.org/debian keys=/usr/share/keyrings/debian-archive-keyring.gpg
  echo "deb [signed-by=$keys] $mirror bookworm main" >"$work/apt/sources.list"
  # Lists and settings of its own: this machine's packages stay as they are.
  local apt=(apt-get -q -o "Dir::Etc::sourcelist=$work/apt/sources.list" -o "Dir::Cache=$work/apt"
    -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$work/apt/lists"
    -o Dir::State::status=/dev/null -o APT::Architecture=arm64 -o APT::Architectures=arm64
    -o APT::Sandbox::User="$(id -un)")
  "${apt[@]}" update
  (
    cd "$work/apt"
    "${apt[@]}" download libc6 libstdc++6 libgcc-s1 zlib1g libexpat1 libffi8 libssl3 libbz2-1.0 \
      liblzma5 libuuid1 libcrypt1 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib \
      libpython3.11-dev
  )
  local package
  for package in "$work"/apt/*.deb; do dpkg-deb -x "$package" "$system"; done
  touch "$system/complete"
}

# What it starts by sys.executable, as pytest-xdist does, is this script again.
write_launcher() {
  printf '#!/bin/sh\nexec qemu-aarch64 -0 "%s" -E PYTHONHOME="%s" -L "%s" "%s" "$@"\n' \
    "$python" "$system/usr" "$system" "$system/usr/bin/python3.11" >"$python"
  chmod +x "$python"
}

fetch_packages() {
  local wanted=(allpairspy hypothesis ml_dtypes mpmath numpy pytest pytest-xdist) state
  state=$(echo "${wanted[*]}" | cat - requirements/constraints.txt | sha256sum)
  [[ $(cat "$packages/complete" 2>/dev/null) != "$state" ]] || return 0
  say "Fetching Python packages for Arm"
  rm -rf "$packages"
  python -m pip install --quiet --no-warn-conflicts --constraint requirements/constraints.txt \
    --python-version 3.11 --only-binary :all: --platform manylinux_2_17_aarch64 \
    --platform manylinux2014_aarch64 --platform manylinux_2_27_aarch64 \
    --platform manylinux_2_28_aarch64 --target "$packages" "${wanted[@]}"
  echo "$state" >"$packages/complete"
}

# --- The module -------------------------------------------------------------------------------

build_module() {
  say "Building the NumPy module for Arm"
  local highway=()
  if [[ -e /usr/include/hwy/highway.h ]]; then # alone: beside it are headers of this machine
    mkdir -p "$work/highway"
    ln -sfn /usr/include/hwy "$work/highway/hwy"
    highway=("-DFETCHCONTENT_SOURCE_DIR_HIGHWAY=$work/highway")
  fi
  # The emulator is within $python, and `env` adds nothing to it: pybind11 calls no emulator.
  CXX="$venv/bin/python-zig c++ -target aarch64-linux-gnu.2.28" \
    CXXFLAGS="-idirafter $system/usr/include" ZIG_GLOBAL_CACHE_DIR=$work/zig \
    cmake -S . -B "$work/cmake" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DSKBUILD_PROJECT_NAME=posenc_native -DSKBUILD_PROJECT_VERSION=0 \
    -DPOSENC_TORCH=OFF -DPOSENC_CUDA=OFF \
    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CROSSCOMPILING_EMULATOR=env -DPython_EXECUTABLE="$python" \
    -DCMAKE_DISABLE_FIND_PACKAGE_hwy=ON "${highway[@]}" \
    -Dpybind11_DIR="$(python -m pybind11 --cmakedir)"
  ZIG_GLOBAL_CACHE_DIR=$work/zig cmake --build "$work/cmake"
}

# A copy, since ./posenc_native may have the module of this machine.
copy_repository() {
  rm -rf "$work/repository"
  mkdir -p "$work/repository"
  git ls-files -z --cached --others --exclude-standard -- posenc_native scripts tests pyproject.toml |
    xargs -0 cp --parents --target-directory "$work/repository"
  cp "$work"/cmake/_core.*.so "$work/repository/posenc_native/"
}

# --- Main -------------------------------------------------------------------------------------

mkdir -p "$work"
fetch_python
write_launcher
fetch_packages
build_module
copy_repository

say "Comparing bits"
export PYTHONDONTWRITEBYTECODE=1
PYTHONPATH=$work/repository:$packages "$python" scripts/result_bits.py >"$work/bits.NEON"
names=$(python -c 'from posenc_native.engines import backend; print(*backend.native.available_targets())')
compared=()
for target in $names; do
  [[ $target != SSE4 ]] || continue # without fused multiply-add there are other last bits
  POSENC_ISA=$target python scripts/result_bits.py >"$work/bits.$target"
  diff "$work/bits.$target" "$work/bits.NEON" || die "these results of $target and NEON differ"
  compared+=("$target")
done
((${#compared[@]})) || die "this machine has neither AVX2 nor AVX-512 to compare with"
echo "the bits of $(wc -l <"$work/bits.NEON") results are those of ${compared[*]}"

if (($# == 0)); then
  set -- tests/core/calls/test_errors.py tests/encodings/sinusoids/test_{errors,tables}.py \
    tests/encodings/relative/test_{errors,relative,large_calls}.py \
    tests/engines/test_{phase,plain,properties}.py \
    tests/encodings/rotary/test_{errors,rotary,same_bits,rounding,heads_and_axes,backward}.py
fi
say "Running tests under the emulator: some minutes"
cd "$work/repository"
PYTHONPATH=$work/repository:$packages "$python" -m pytest -q -p no:cacheprovider \
  --numprocesses "${TEST_JOBS:-2}" --dist loadfile "$@"
