#!/usr/bin/env bash
# The plugin inside vLLM, on tiny models with random weights: `make engine-vllm`. vLLM has the
# environment of `make engines` (.engines/vllm). The package is installed beside it, as a wheel, so
# that vLLM finds the plugin by its entry point, as at a user's.
#
#     scripts/engine_vllm.sh                       everything, half an hour on two cores
#     scripts/engine_vllm.sh check_classes.py      each rotary class, 15 seconds
#     scripts/engine_vllm.sh check_own_tests.py    vLLM's own tests of them, a minute
#     scripts/engine_vllm.sh -k far
#     scripts/engine_vllm.sh check_classes.py --sources 0.33.0
#
# vLLM's own tests are in its source package (sources.py), which comes from PyPI once, 45 MB:
# test_pos_encoding, test_rotary_embedding and test_rotary_embedding_compile. They run on the CPU;
# plugged_in.py says which stay out, and why. The last line takes the rotary layers of another
# version from its source package too: a version may have no wheel for CPUs. All other code is that
# of the installed version, and only check_classes.py sees these layers.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=${VENV:-$root/.venv}/bin/python
work=$root/build/engine-vllm
export PIP_DISABLE_PIP_VERSION_CHECK=1 POSENC_TARGETS=${POSENC_TARGETS:-native}

engine=$("$python" "$root/tests/engines_at_hand" vllm --environment)
rm -rf "$work/wheel"
"$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/wheel" \
  --config-settings "build-dir=$work/build" "$root"
"$engine" -m pip install --quiet --no-deps --upgrade --target "$work/site" "$work"/wheel/*.whl
"$engine" -m pip install --quiet --upgrade --target "$work/site" \
  --constraint "$root/requirements/constraints.txt" pytest

cd "$root/tests/in_vllm"
PYTHONPATH=$work/site HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES='' "$engine" -m pytest \
  -c pytest.ini --rootdir=. --confcutdir=. "$@"
