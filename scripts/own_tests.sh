#!/usr/bin/env bash
# timm's own tests of its models, with every model that rotates patched: forward, backward, features,
# checkpoints. They come with its source package, which pip gets. Those of torch.jit.script are left
# out: it takes no patched model.
#
#     scripts/own_tests.sh                 the smaller models, half an hour
#     scripts/own_tests.sh -k eva02_tiny   some of them
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=${VENV:-$root/.venv}/bin/python
folder=$root/build/own-tests
version=$("$python" -c 'import importlib.metadata as m; print(m.version("timm"))')

mkdir -p "$folder"
if [ ! -d "$folder/timm-$version" ]; then
  "$python" -m pip download --quiet --no-deps --no-binary timm "timm==$version" --dest "$folder"
  tar -xzf "$folder/timm-$version.tar.gz" -C "$folder"
fi

models='eva02_tiny or eva02_small or rope_224 or rope_mixed or rope_reg1 or rope_ape or dinov3
  or pe_core_tiny or pe_core_small or naflexvit or qwen3_vit_88m or gemma4_vit_167m'
large='large or huge or giant or gigantic or so150m or so400m or base_patch16_rope_mixed'
cd "$folder/timm-$version"
PYTHONPATH=$root/tests/shared "$python" -m pytest tests/test_models.py -p patched_timm \
  --numprocesses "${TEST_JOBS:-2}" --quiet -p no:cacheprovider \
  -m "forward or backward or features or base" \
  -k "(${models//$'\n'/ }) and not (${large} or inference or script or fx)" "$@"
