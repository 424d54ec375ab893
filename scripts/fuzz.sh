#!/usr/bin/env bash
# Fuzz csrc/core with libFuzzer and sanitizers: random descriptions of calls against brute force.
#
#   scripts/fuzz.sh [SECONDS] [HARNESS...]
#
#   SECONDS   for each harness (default: 60); 0 runs the corpus alone
#   HARNESS   a file of fuzz/core without its suffix: views, calls, numbers (default: all)
#
# Prints how many inputs each has run. An input that fails is written to build/fuzz/, and its path
# printed; `build/fuzz/HARNESS FILE` runs it again. What has reached new code is kept from run to run
# in build/fuzz/corpus. Environment: CXX (a clang++ with libFuzzer), JOBS (processes a harness).

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

find_clang() {
  local name
  for name in "${CXX:-}" clang++ clang++-{21,20,19,18,17,16,15,14}; do
    if [[ -n $name ]] && "$name" --version 2>/dev/null | grep -q clang; then
      echo "$name"
      return 0
    fi
  done
  return 1
}

if ! clang=$(find_clang); then
  echo "fuzz: there is no clang++: as root, apt-get install -y clang libclang-rt-19-dev" >&2
  exit 1
fi

seconds=60
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
  seconds=$1
  shift
fi
harnesses=("$@")
if ((${#harnesses[@]} == 0)); then harnesses=(views calls numbers); fi

build=build/fuzz
mkdir -p "$build"
flags=(-std=c++17 -O1 -g1 -Icsrc -Ifuzz/core -ffp-contract=off -fno-omit-frame-pointer
  "-fsanitize=address,undefined" -fno-sanitize-recover=all -Wall -Wextra)
# Objects that are older than any source are made anew.
newest=$(find csrc/core fuzz/core -name '*.h' -newer "$build/.made" -print -quit 2>/dev/null || echo yes)
objects=()
for source in csrc/core/*.cc; do
  object=$build/$(basename "$source" .cc).o
  if [[ -n $newest || ! -e $object || $source -nt $object ]]; then
    "$clang" "${flags[@]}" -fsanitize=fuzzer-no-link -c "$source" -o "$object"
  fi
  objects+=("$object")
done
for harness in "${harnesses[@]}"; do
  "$clang" "${flags[@]}" -fsanitize=fuzzer "fuzz/core/$harness.cc" "${objects[@]}" \
    -o "$build/$harness" || {
    echo "fuzz: if libFuzzer is missing: as root, apt-get install -y libclang-rt-19-dev" >&2
    exit 1
  }
done
touch "$build/.made"

failed=0
for harness in "${harnesses[@]}"; do
  corpus=$build/corpus/$harness log=$build/$harness.log
  mkdir -p "$corpus"
  runs=(-max_total_time="$seconds")
  if ((seconds == 0)); then runs=(-runs=0); fi
  if ! "$build/$harness" "${runs[@]}" -max_len=600 -print_final_stats=1 -timeout=20 \
    -artifact_prefix="$build/" "$corpus" "fuzz/core/corpus/$harness" >"$log" 2>&1; then
    failed=1
    grep -E 'ERROR|runtime error|fuzz/core.*: |Test unit written' "$log" || tail -n 20 "$log"
  fi
  awk -v name="$harness" '/stat::number_of_executed_units/ { n = $2 }
    END { printf "%-10s%15d inputs\n", name, n }' "$log"
done
exit $failed
