#!/usr/bin/env bash
# Build with a sanitizer and run tests on that build.
#
#   scripts/sanitize.sh address|thread [PYTEST_ARGUMENT...]
#
#   address   AddressSanitizer and UndefinedBehaviorSanitizer: memory, and arithmetic of C++
#   thread    ThreadSanitizer: memory that two threads use without order
#
# Everything that is ours is built with it: the NumPy module, the torch operators, the CUDA bodies on
# the host. Python, NumPy and torch are as they are. Without arguments for pytest the tests below run.
#
# Environment:
#   POSENC_TARGETS  the SIMD targets to build: some of AVX3;AVX2;SSE4 (default: the best that runs here)
#   TEST_JOBS       processes that share the test files (default: 2)
#   VENV            the virtual environment of scripts/setup.sh (default: .venv)

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
say() { printf '==> %s\n' "$*"; }
die() {
  printf 'sanitize: %s\n' "$@" >&2
  exit 1
}

case ${1:-} in
  address) sanitizers=address,undefined library=libasan.so ;;
  thread) sanitizers=thread library=libtsan.so ;;
  *) die "expected address or thread, got '${1:-}'" ;;
esac
name=$1
shift
venv=$(realpath "${VENV:-.venv}")
python=$venv/bin/python
work=$root/build/sanitize-$name
mkdir -p "$work"

POSENC_TARGETS=${POSENC_TARGETS:-native}
say "Building for $POSENC_TARGETS with -fsanitize=$sanitizers: some minutes from nothing"
# Only gcc's and clang's own runtimes know the code they make: found by asking the same compiler.
runtime=$("${CXX:-c++}" -print-file-name=$library)
[[ $runtime == /* ]] || die "${CXX:-c++} has no $library: set CXX to a compiler that has, as g++ does"
"$venv/bin/cmake" -S . -B "$work/cmake" -G Ninja -DCMAKE_MAKE_PROGRAM="$venv/bin/ninja" \
  -DCMAKE_BUILD_TYPE=Release -DSKBUILD_PROJECT_NAME=posenc_native -DSKBUILD_PROJECT_VERSION=0 \
  -DPOSENC_TORCH=ON -DPOSENC_CUDA=OFF -DPOSENC_CUDA_ON_HOST=ON \
  -DPOSENC_SANITIZE="$sanitizers" -DPOSENC_TARGETS="$POSENC_TARGETS" -DPython_EXECUTABLE="$python" \
  -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" >"$work/cmake.log" || die "see $work/cmake.log"
"$venv/bin/cmake" --build "$work/cmake"

# A copy of the repository with these modules in it, and a Python that sees it first: the virtual
# environment's own would find the modules that it has installed.
rm -rf "$work/repository"
mkdir "$work/repository"
git ls-files -z --cached --others --exclude-standard |
  xargs -0 cp --parents --target-directory "$work/repository"
cp "$work"/cmake/_core.*.so "$work"/cmake/_cuda_on_host.*.so "$work"/cmake/_torch_ops.so \
  "$work/repository/posenc_native/"
"$python" -m venv --without-pip --clear "$work/venv"
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
own=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\n' "$work/repository" "$packages" >"$own/sanitize.pth"

# Compilers that tests start do without the runtime, which would make them slow, and CMake hang.
mkdir -p "$work/bin"
for program in c++ g++ cc gcc nvcc cmake ninja; do
  if path=$(command -v "$program"); then
    printf '#!/bin/sh\nexec env -u LD_PRELOAD %q "$@"\n' "$path" >"$work/bin/$program"
    chmod +x "$work/bin/$program"
  fi
done
export PATH=$work/bin:$PATH

# The runtime has to be there before Python. libstdc++ too, else it does not see what is thrown.
LD_PRELOAD="$runtime $("${CXX:-c++}" -print-file-name=libstdc++.so)"
export LD_PRELOAD
# Python and torch leave memory behind at exit, which is nobody's error.
reports=$work/reports
rm -rf "$reports"
mkdir "$reports"
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:log_path=$reports/address:${ASAN_OPTIONS:-}
export UBSAN_OPTIONS=print_stacktrace=1:log_path=$reports/undefined:${UBSAN_OPTIONS:-}
# A child of fork that starts threads, as torch's data loaders are, is watched too.
TSAN_OPTIONS=allocator_may_return_null=1:die_after_fork=0:ignore_noninstrumented_modules=1:${TSAN_OPTIONS:-}
export TSAN_OPTIONS=log_path=$reports/thread:exitcode=0:$TSAN_OPTIONS
# A pool of one thread for torch: waiting in OpenMP is futexes of libgomp, which are not seen, so that
# whatever a thread of the pool reads would look unordered to what the caller wrote before. The same
# kernels are watched on threads of the NumPy module, and operators on threads that tests start.
if [[ $name == thread ]]; then
  export OMP_THREAD_LIMIT=1 # whatever a test asks torch for
  # Beside ThreadSanitizer products of bfloat16 read what nobody has written (torch 2.13, Zen 5).
  export ONEDNN_MAX_CPU_ISA=AVX512_CORE
fi
reported() {
  grep -lrE 'ERROR: AddressSanitizer|runtime error:|WARNING: ThreadSanitizer' "$reports" || true
}
export HYPOTHESIS_PROFILE=${HYPOTHESIS_PROFILE:-few}
export PYTHONDONTWRITEBYTECODE=1 POSENC_SANITIZED=$name
cd "$work/repository"

say "Whether it finds what is planted"
plant() {
  case $name in
    address) # an input of which half is beyond the end of its memory
      cat <<'PY'
import numpy as np
import posenc_native as pn

x = np.lib.stride_tricks.as_strided(np.ones((1, 1, 32, 64)), (1, 1, 64, 64))
pn.apply_rotary(x, None, np.ones(32))
PY
      ;;
    thread) # two threads that rotate the same array, or the same tensor
      cat <<PY
import threading
import numpy as np
import torch
import posenc_native as pn

x = $1.ones((64, 1, 512, 64), dtype=$1.float32)
threads = [
    threading.Thread(target=pn.apply_rotary, args=(x, None, $1.ones(32)), kwargs={"out": x})
    for _ in range(2)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
PY
      ;;
  esac
}
for library in np torch; do
  plant $library | TSAN_OPTIONS=$TSAN_OPTIONS:halt_on_error=1 "$work/venv/bin/python" - >/dev/null 2>&1 || true
  [[ -n $(reported) ]] ||
    die "the sanitizer did not find an error planted for $library: is its runtime the right one?"
  rm -f "$reports"/*
done

if (($# == 0)); then
  set -- tests
fi
say "Testing"
status=0
"$work/venv/bin/python" -m pytest -p no:cacheprovider --numprocesses "${TEST_JOBS:-2}" \
  --dist loadfile "$@" || status=$?
# What a test does not fail of: processes that tests start, and races.
mapfile -t found < <(reported)
if ((${#found[@]})); then
  head -n 60 "${found[@]}"
  die "${#found[@]} reports in $reports"
fi
exit "$status"
