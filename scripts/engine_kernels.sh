#!/usr/bin/env bash
# The tests of posenc_native.hf.kernels with the real package `kernels`. transformers calls only
# some versions of it, and the newest transformers may want one that the index does not have yet. So
# the pair that goes together is beside the environment, and found before it.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=${VENV:-$root/.venv}/bin/python
pair=(transformers==5.22.2 kernels==0.17.2)
folder=${POSENC_ENGINES:-$root/.engines}/kernels

if [[ ! -e $folder/.made || $(<"$folder/.made") != "${pair[*]}" ]]; then
  rm -rf "$folder"
  mkdir -p "$folder"
  grep -v '^transformers==' "$root/requirements/constraints.txt" >"$folder/constraints.txt"
  "$python" -m pip install --quiet --no-warn-conflicts --target "$folder" \
    --constraint "$folder/constraints.txt" "${pair[@]}"
  printf '%s' "${pair[*]}" >"$folder/.made"
fi

cd "$root"
PYTHONPATH=$folder${PYTHONPATH:+:$PYTHONPATH} "$python" -m pytest --quiet tests/hf/test_kernels.py "$@"
