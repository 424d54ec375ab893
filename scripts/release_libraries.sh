#!/usr/bin/env bash
# What all wheels of a platform share, made once before the first: the headers of Highway and the
# torch operators, which know no Python. cibuildwheel runs it (before-all, in pyproject.toml), in a
# manylinux_2_28 image or on macOS; its settings tell the builds where to find both.
#
#   scripts/release_libraries.sh DIRECTORY     leaves DIRECTORY/highway, DIRECTORY/_torch_ops.so
#                                              and what is compiled into it, _torch_ops.cdx.json
#
# Environment: POSENC_CUDA (ON on Linux, OFF on macOS), CUDA_VERSION (12-9)

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
directory=$1
mkdir -p "$directory"
cd "$root"

# The release that cmake/Highway.cmake names, and its checksum, from there.
url=$(sed -n 's/.*URL \(https[^ ]*\)$/\1/p' cmake/Highway.cmake)
sum=$(sed -n 's/.*URL_HASH SHA256=\([0-9a-f]*\)$/\1/p' cmake/Highway.cmake)
curl --fail --location --silent --show-error --retry 3 --output "$directory/highway.tar.gz" "$url"
if [[ $(uname) == Darwin ]]; then checksum=(shasum -a 256); else checksum=(sha256sum); fi
echo "$sum  $directory/highway.tar.gz" | "${checksum[@]}" --check
mkdir -p "$directory/highway"
tar xzf "$directory/highway.tar.gz" -C "$directory/highway" --strip-components 1

if [[ $(uname) == Darwin ]]; then
  export POSENC_CUDA=OFF
  python=python3
else
  export POSENC_CUDA=${POSENC_CUDA:-ON}
  python=/opt/python/cp312-cp312/bin/python
  if [[ $POSENC_CUDA == ON ]]; then # compiler and runtime only; the driver's part is not needed
    version=${CUDA_VERSION:-12-9}
    architecture=$([[ $(uname -m) == aarch64 ]] && echo sbsa || echo x86_64)
    dnf -q -y install dnf-plugins-core
    dnf -q -y config-manager --add-repo \
      "https://developer.download.nvidia.com/compute/cuda/repos/rhel8/$architecture/cuda-rhel8.repo"
    dnf -q -y install "cuda-nvcc-$version" "cuda-cudart-devel-$version"
    export CUDACXX=/usr/local/cuda-${version/-/.}/bin/nvcc
  fi
fi

# An environment of its own, with the torch that is tested against: the stable ABI makes the result
# one for torch 2.10 and everything later.
"$python" -m venv "$directory/python"
pip=("$directory/python/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install -q --constraint requirements/constraints.txt \
  --extra-index-url https://download.pytorch.org/whl/cpu -r requirements/torch.txt
"${pip[@]}" install -q --constraint requirements/constraints.txt -r requirements/build.txt
PATH="$directory/python/bin:$PATH" POSENC_TORCH=ON POSENC_TORCH_LIBRARY='' \
  CMAKE_ARGS="-DFETCHCONTENT_SOURCE_DIR_HIGHWAY=$directory/highway" \
  "${pip[@]}" wheel -q --no-build-isolation --no-deps --wheel-dir "$directory/wheel" .
"$directory/python/bin/python" - "$directory" <<'PY'
import pathlib, sys, zipfile
directory = pathlib.Path(sys.argv[1])
[wheel] = (directory / "wheel").glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    [sbom] = [name for name in archive.namelist() if name.endswith("posenc_native.cdx.json")]
    (directory / "_torch_ops.so").write_bytes(archive.read("posenc_native/_torch_ops.so"))
    (directory / "_torch_ops.cdx.json").write_bytes(archive.read(sbom))
PY
