#!/usr/bin/env bash
# Prepare a working copy from nothing: system packages, virtual environment, pinned Python
# packages and, on request, the build of posenc_native. Whatever is already in order is left alone,
# so a second run takes a fraction of a second.
#
#   scripts/setup.sh [NAME...] [valgrind] [qemu] [package]
#
#   NAME      a file of requirements/ without its suffix: demo, test, oracles, lint, docs, bench,
#             wheels, aarch64, audit, workflows
#   valgrind  install valgrind, a system package that only `make instructions` needs
#   qemu      install qemu-user, a system package that only `make aarch64` needs
#   package   build posenc_native and install it, editable, into the virtual environment
#
# Environment:
#   PYTHON                    interpreter that makes the virtual environment (default: python3)
#   VENV                      its directory (default: .venv in the repository)
#   POSENC_TORCH              ON, OFF or AUTO; ON here by default: a torch that the build does not
#                             find is an error, never a silently smaller package
#   POSENC_CUDA               ON, OFF or AUTO: CUDA kernels in the torch operators; AUTO here by
#                             default, which builds them where there is an nvcc
#   CUDAARCHS                 the GPUs to build for, 90 by default; `native`, or 80-real;90-real ...
# pip's own variables (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS ...) and CMake's (CXX,
# CXXFLAGS, CMAKE_PREFIX_PATH, CMAKE_ARGS) work as they do everywhere.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

venv=${VENV:-.venv}
python="$venv/bin/python"
# What has been done, and from which inputs: one small file a step. Inside the virtual environment,
# because it describes that environment and has to vanish with it.
stamps="$venv/.posenc-setup"

export POSENC_TORCH=${POSENC_TORCH:-ON}
export POSENC_CUDA=${POSENC_CUDA:-AUTO}
export CUDAARCHS=${CUDAARCHS:-90} # one is enough to work on; wheels are built for all
export POSENC_CUDA_ON_HOST=ON     # tests/engines/test_cuda_on_host.py
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '==> %s\n' "$*"; }
warn() { printf 'setup: %s\n' "$@" >&2; }
die() {
  warn "$@"
  exit 1
}

# --- System packages --------------------------------------------------------------------------

# Name the Debian packages that are missing, judged by what they provide rather than by dpkg, so
# that a Python or a Highway from elsewhere counts too.
missing_packages() {
  local interpreter=$1
  command -v "${CXX:-c++}" >/dev/null || echo g++
  # Highway, unless the caller points CMake to a copy of it.
  if [[ ! -e /usr/include/hwy/highway.h && -z ${CMAKE_PREFIX_PATH:-} && -z ${hwy_DIR:-} ]]; then
    echo libhwy-dev
  fi
  if [[ -z $interpreter ]]; then
    printf '%s\n' python3 python3-venv python3-dev
  else
    # Debian splits both off from the interpreter; every other distribution of Python has them.
    "$interpreter" - <<'PY'
import os, sys, sysconfig
name = "python%d.%d" % sys.version_info[:2]
try:
    import ensurepip, venv
except ImportError:
    print(name + "-venv")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print(name + "-dev")
PY
  fi
}

# Fails, having said why, where packages cannot be installed.
apt_install() {
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0)
  if ! command -v apt-get >/dev/null; then
    warn "there is no apt-get here; the names are Debian's"
    return 1
  fi
  if [[ $EUID -ne 0 ]]; then
    if ! command -v sudo >/dev/null; then
      warn "not root, and there is no sudo"
      return 1
    fi
    sudo true || return 1
    apt=(sudo "${apt[@]}")
  fi
  # A package source that fails here (a third party's, most often) need not matter below.
  "${apt[@]}" update || warn "apt-get update failed; going on with the old lists"
  "${apt[@]}" install --no-install-recommends "$@"
}

install_system_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$1")
  ((${#missing[@]})) || return 0
  say "Installing system packages: ${missing[*]}"
  if apt_install "${missing[@]}"; then return 0; fi
  if [[ ${missing[*]} == libhwy-dev ]]; then
    warn "going on without libhwy-dev: CMake will download a pinned release of Highway instead"
    return 0
  fi
  die "cannot install what is missing: ${missing[*]}" \
    "install it, as root with  apt-get install -y ${missing[*]}  and repeat the command"
}

# install_program PROGRAM PACKAGE
install_program() {
  if command -v "$1" >/dev/null; then return 0; fi
  say "Installing a system package: $2"
  apt_install "$2" || die "cannot install $2" \
    "install it, as root with  apt-get install -y $2  and repeat the command"
}

# --- Virtual environment ----------------------------------------------------------------------

# "3.11" for an interpreter, nothing if it does not run.
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

make_virtual_environment() {
  local interpreter wanted present
  present=$(version_of "$python")
  if [[ -n $present ]]; then
    if [[ -n ${PYTHON:-} ]]; then
      wanted=$(version_of "$PYTHON")
      [[ $wanted == "$present" ]] || die "$venv has Python $present, but PYTHON=$PYTHON is" \
        "'$wanted': remove $venv, or name another directory with VENV=..."
    fi
    interpreter=$python
  else
    interpreter=$(command -v "${PYTHON:-python3}") || interpreter=
    [[ -n $interpreter || -z ${PYTHON:-} ]] || die "PYTHON=$PYTHON: no such program"
  fi

  if [[ -n $present && -e $stamps/venv && -e $stamps/system ]]; then return 0; fi

  install_system_packages "$interpreter"
  [[ -n $interpreter ]] || interpreter=$(command -v python3)
  "$interpreter" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    die "Python >= 3.10 is needed, $interpreter is $(version_of "$interpreter"): set PYTHON=..."

  if [[ -z $present ]]; then
    say "Making $venv with $interpreter"
    # --clear: there may be the remains of an environment whose interpreter has gone.
    "$interpreter" -m venv --clear "$venv"
  elif ! "$python" -m pip --version >/dev/null 2>&1; then
    "$python" -m ensurepip --upgrade >/dev/null # made by hand without pip, or interrupted
  fi
  mkdir -p "$stamps"
  touch "$stamps/venv"
  if [[ -z $(missing_packages "$python") ]]; then touch "$stamps/system"; fi
}

# --- Python packages --------------------------------------------------------------------------

pip_install() { "$python" -m pip install --constraint requirements/constraints.txt "$@"; }

# A file of requirements/. What stands below a line "# --no-deps" is installed without its
# dependencies: those that are needed are listed there, and none can replace torch.
install_file() {
  local file=requirements/$1.txt
  if grep -q '^# --no-deps$' "$file"; then
    pip_install --quiet -r <(sed -n '/^# --no-deps$/q; p' "$file")
    pip_install --quiet --no-deps -r <(sed -n '/^# --no-deps$/,$ p' "$file")
  else
    pip_install --quiet -r "$file"
  fi
}

install_requirements() {
  local name state
  # Any change of a pin repeats every step; pip finds out by itself what is in order.
  state=$(cat requirements/*.txt | sha256sum)
  # torch first and alone, so that no other package's wishes take part in choosing its build.
  for name in torch build "$@"; do
    [[ -e requirements/$name.txt ]] || die "no file requirements/$name.txt"
    if [[ $(cat "$stamps/$name" 2>/dev/null) != "$state" ]]; then
      say "Installing requirements/$name.txt"
      if [[ $name == torch ]]; then # its progress is worth seeing: gigabytes, with CUDA
        pip_install -r "requirements/$name.txt"
      else
        install_file "$name"
      fi
      echo "$state" >"$stamps/$name"
    fi
  done
}

# --- The package ------------------------------------------------------------------------------

# Editable, because tests and demo run from the repository's root, where ./posenc_native would
# otherwise hide an installed copy, compiled parts and all. Not rebuilt on import: tests start many
# interpreters, and each would ask CMake first. This function is what rebuilds, incrementally.
install_package() {
  local state
  # Everything beside the sources that the result depends on.
  state=$(
    printf '%s\n' "$root" "$(version_of "$python")" "$POSENC_TORCH" "$POSENC_CUDA" "$CUDAARCHS" \
      "${CXX:-}" "${CXXFLAGS:-}" "${CUDACXX:-}" "${CMAKE_ARGS:-}" "${CMAKE_PREFIX_PATH:-}"
    cat "$stamps/torch" "$stamps/build"
    find posenc_native -name '*.py' | sort # an editable install knows the modules by name
  )
  if [[ $(cat "$stamps/package" 2>/dev/null) == "$state" ]] &&
    # Directories are compared too: their time changes when a file is removed.
    [[ -z $(find CMakeLists.txt pyproject.toml cmake csrc -newer "$stamps/package" -print -quit) ]]
  then
    return 0
  fi
  say "Building posenc_native (torch operators: $POSENC_TORCH, CUDA: $POSENC_CUDA);" \
    "a minute or two from nothing"
  rm -f "$stamps/package"
  # The time that counts is that of the start: a file saved while the compiler runs is newer.
  echo "$state" >"$stamps/package.new"
  # No build isolation: the operators are compiled against the torch of this environment, and
  # torch is not among the build requirements, where it would cost every build gigabytes.
  "$python" -m pip install --quiet --no-build-isolation --no-deps --editable .
  mv "$stamps/package.new" "$stamps/package"
  touch "$stamps/system" # whatever may be missing, it was not needed
}

# --- Main -------------------------------------------------------------------------------------

names=()
package=false
valgrind=false
qemu=false
for argument in "$@"; do
  case $argument in
    package) package=true ;;
    valgrind) valgrind=true ;;
    qemu) qemu=true ;;
    *) names+=("$argument") ;;
  esac
done

# Two of these at once (make demo beside make test) would trip over each other. The lock lies in
# the one directory that needs not be made first.
if command -v flock >/dev/null; then
  exec 9<"$root/scripts"
  flock 9
fi

make_virtual_environment
install_requirements "${names[@]}"
if $valgrind; then install_program valgrind valgrind; fi
if $qemu; then install_program qemu-aarch64 qemu-user; fi
if $package; then install_package; fi
