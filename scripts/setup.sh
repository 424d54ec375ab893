#!/usr/bin/env bash
# Prepare a working copy from nothing: system packages, virtual environment, pinned Python
# packages and, on request, the build of posenc_native. Whatever is already in order is left alone,
# so a second run takes a fraction of a second.
#
#   scripts/setup.sh [NAME...] [valgrind] [qemu] [package | native-package]
#
#   NAME      a file of requirements/ without its suffix: demo, test, oracles, lint, docs, bench,
#             mutants, wheels, release, aarch64, audit, workflows
#   valgrind  install valgrind, a system package that only `make instructions` needs
#   qemu      install qemu-user, a system package that only `make aarch64` needs
#   package   build posenc_native and install it, editable, into the virtual environment
#   native-package
#             the same for this processor alone, without what only tests look at: a third of the
#             work. Where the whole package is, it is kept
#
# Environment:
#   PYTHON                    interpreter that makes the virtual environment (default: python3)
#   VENV                      its directory (default: .venv in the repository)
#   POSENC_TORCH              ON, OFF or AUTO; ON here by default: a torch that the build does not
#                             find is an error, never a silently smaller package
#   POSENC_CUDA               ON, OFF or AUTO: CUDA kernels in the torch operators. AUTO, the default:
#                             where there are a GPU and an nvcc
#   CUDAARCHS                 the GPUs to build for, 90 by default; `native`, or 80-real;90-real ...
#   POSENC_TARGETS            the SIMD targets to build: some of AVX3;AVX2;SSE4 (default: all)
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
export PIP_DISABLE_PIP_VERSION_CHECK=1
# Python compiles what it imports when it does: a small part of torch and transformers. For tests see
# compile_modules.
export PIP_NO_COMPILE=1

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
  for name in "$@"; do
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

# All modules of others, on all cores: what Python says of their sources when it compiles them is an
# error while tests run.
compile_modules() {
  local state packages
  state=$(cat requirements/*.txt | sha256sum)
  if [[ $(cat "$stamps/compiled" 2>/dev/null) == "$state" ]]; then return 0; fi
  packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  # Some packages bring files for other Pythons, which do not compile.
  "$python" -W ignore -m compileall -q -j 0 "$packages" >/dev/null 2>&1 || true
  echo "$state" >"$stamps/compiled"
}

# --- The package ------------------------------------------------------------------------------

# What is built: `package`, all that tests look at, or `native-package`. Whoever has built more, with
# CUDA for instance, keeps it.
choose_build() {
  local built cuda
  read -r built cuda < <(head -n 1 "$stamps/package" 2>/dev/null) || true
  if [[ $built == package ]]; then package=package; fi
  if [[ -z ${POSENC_CUDA:-} && -n ${cuda:-} && $cuda != OFF ]]; then POSENC_CUDA=$cuda; fi
  if [[ $package == package ]]; then
    POSENC_CUDA_ON_HOST=ON # tests/engines/test_cuda_on_host.py
  else
    POSENC_CUDA_ON_HOST=OFF
    POSENC_TARGETS=${POSENC_TARGETS:-native}
  fi
  export POSENC_CUDA=${POSENC_CUDA:-AUTO} POSENC_CUDA_ON_HOST POSENC_TARGETS=${POSENC_TARGETS:-}
  export CUDAARCHS=${CUDAARCHS:-90} # one is enough to work on; wheels are built for all
}

# Everything beside the sources that the result depends on.
build_state() {
  printf '%s\n' "$package $POSENC_CUDA" "$root" "$(version_of "$python")" "$POSENC_TORCH" \
    "$CUDAARCHS" "$POSENC_TARGETS" "${CXX:-}" "${CXXFLAGS:-}" "${CUDACXX:-}" "${CMAKE_ARGS:-}" \
    "${CMAKE_PREFIX_PATH:-}"
  cat requirements/*.txt
  find posenc_native -name '*.py' | sort # an editable install knows the modules by name
}

package_is_built() {
  [[ -e $stamps/torch && $(cat "$stamps/package" 2>/dev/null) == "$(build_state)" ]] &&
    # Directories are compared too: their time changes when a file is removed.
    [[ -z $(find CMakeLists.txt pyproject.toml cmake csrc -newer "$stamps/package" -print -quit) ]]
}

# Editable, because tests and demo run from the repository's root, where ./posenc_native would
# otherwise hide an installed copy, compiled parts and all. Not rebuilt on import: tests start many
# interpreters, and each would ask CMake first. This is what rebuilds, incrementally.
#
# No build isolation: the operators are compiled against the torch of this environment, and torch is
# not among the build requirements, where it would cost every build gigabytes.
#
# A process group of its own, which stop_build can end whole.
start_build() {
  : >"$stamps/build.log"
  "$python" -c 'import os, sys; os.setsid(); os.execv(sys.executable, sys.argv[1:])' \
    "$python" -m pip install --verbose --no-build-isolation --no-deps --editable . \
    >>"$stamps/build.log" 2>&1 &
  build=$!
}
stop_build() { kill -- "-$build" 2>/dev/null || true; }

# What the compilers have come to, once a minute until the build ends: files done, of all, and how
# long they took. What CMake says first: what is compiled and how long that takes (cmake/Announce.cmake).
# The argument is an expression for the lines of it that matter here.
show_progress() {
  local said='' step minutes=0
  while sleep 1 && kill -0 "$build" 2>/dev/null; do
    if [[ -z $said ]] && said=$(announced "$1") && [[ -n $said ]]; then echo "$said"; fi
    ((SECONDS / 60 > minutes)) || continue
    minutes=$((SECONDS / 60))
    # [12/58] Building CXX object CMakeFiles/posenc_cpu_AVX2.dir/csrc/cpu/rotary.cc.o
    step=$(grep -aoE '^ *\[[0-9]+/[0-9]+\]' "$stamps/build.log" | tail -n 1 | tr -cd '0-9/') || continue
    echo "    after $minutes min: ${step/\// of } files"
  done
}

# announced LINES: the head of CMake's announcement and those of its lines, once it is complete.
announced() {
  grep -aE '^ *-- Configuring done' "$stamps/build.log" >/dev/null || return 0
  # What is left takes less than it says.
  [[ -n $ahead ]] || sed -nE 's/^ *-- posenc_native: (compiling from nothing .*)/    \1/p' "$stamps/build.log"
  sed -nE "s/^ *--   (($1).*)/      \\1/p" "$stamps/build.log"
}

# build LINES: runs the build and shows what it does; the end of its log if it fails.
build() {
  local build progress status=0
  start_build
  trap 'stop_build; exit 1' INT TERM
  SECONDS=0
  show_progress "$1" &
  progress=$!
  wait "$build" || status=$?
  kill "$progress" 2>/dev/null || true
  trap - INT TERM
  if ((status)); then
    tail -n 60 "$stamps/build.log" >&2
    die "the build failed; all that it said: $stamps/build.log"
  fi
  # What compilers say of our own sources, else nobody would see it.
  grep -aE '(csrc|tests)/.*warning: ' "$stamps/build.log" | sort -u || true
}

# The kernels, which need no torch, while torch and what else there is are being installed: that
# keeps one core busy. install_package compiles the rest.
ahead=
build_ahead() {
  if [[ -z $package || -e $stamps/torch ]]; then return 0; fi
  install_requirements build
  say "Compiling the kernels while packages are being installed"
  # Without CUDA, which is a part of the operators: POSENC_CUDA=ON would find them missing.
  (POSENC_TORCH=OFF POSENC_CUDA=OFF build '[0-9].* (CPU kernels|CUDA kernels as host code)') &
  ahead=$!
  trap 'kill "$ahead" 2>/dev/null || true' EXIT
}

install_package() {
  local what='[0-9n].*' # all lines: times, and what is not compiled
  if [[ -n $ahead ]]; then
    if kill -0 "$ahead" 2>/dev/null; then say "Waiting for the kernels"; fi
    wait "$ahead" || exit 1
    trap - EXIT
    what='[0-9].* (operators|CUDA kernels, for)|no '
  fi
  if package_is_built; then return 0; fi
  say "Building posenc_native${ahead:+: what is left}"
  rm -f "$stamps/package"
  # The time that counts is that of the start: a file saved while the compiler runs is newer.
  build_state >"$stamps/package.new"
  build "$what"
  mv "$stamps/package.new" "$stamps/package"
  touch "$stamps/system" # whatever may be missing, it was not needed
}

# --- Main -------------------------------------------------------------------------------------

names=()
package=
valgrind=false
qemu=false
for argument in "$@"; do
  case $argument in
    package | native-package) package=$argument ;;
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
if [[ -n $package ]]; then choose_build; fi
build_ahead
# torch first and alone, so that no other package's wishes take part in choosing its build.
install_requirements torch build "${names[@]}"
for name in "${names[@]}"; do
  if [[ $name == test ]]; then compile_modules; fi
done
if $valgrind; then install_program valgrind valgrind; fi
if $qemu; then install_program qemu-aarch64 qemu-user; fi
if [[ -n $package ]]; then install_package; fi
