#!/usr/bin/env bash
# Makes a bare Debian 12 ready to build: system packages, then the Python environment.
#
#   scripts/setup.sh VENV [PYTHON_TORCH]
#   scripts/setup.sh --tests                # the packages of the tests alone
#
# VENV is the environment's folder. With PYTHON_TORCH, a Python that has torch 2.13, VENV is made by that Python, sees its torch, and
# gets everything else of requirements.txt; otherwise it is made by python3 and gets torch's CPU build. Doing it again does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "[setup] $*" >&2; }

install_system_packages() { # LIST
  command -v dpkg-query >/dev/null || { say "not Debian: see $1 for what is needed"; return 0; }
  local wanted missing=() package
  wanted=$(sed -e 's/#.*//' "$1")
  for package in $wanted; do
    [[ $(dpkg-query -W -f='${Status}' "$package" 2>/dev/null) == *" installed" ]] || missing+=("$package")
  done
  command -v npm >/dev/null || missing+=(nodejs npm) # whoever's they are: the page's build takes Node 18 or newer
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    say "missing packages; run this as root, then make again: apt-get install -y ${missing[*]}"
    exit 1
  fi
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq </dev/null
  without_services apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >/dev/null
}

# Debian starts the services that it installs, unless this file says no.
without_services() {
  local policy=/usr/sbin/policy-rc.d
  [[ ! -e $policy ]] || { "$@"; return; }
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
  "$@"
  rm -f "$policy"
}

# The CPU build: from where pip is configured to look if it is there, else from PyTorch's own index, and PyPI's build as the last resort.
# (PyPI's for x86-64 is a CUDA build and brings gigabytes along.)
install_torch() {
  local torch
  torch=$(grep '^torch==' requirements.txt)
  install "$torch+cpu" 2>/dev/null ||
    install --extra-index-url https://download.pytorch.org/whl/cpu "$torch+cpu" 2>/dev/null ||
    install "$torch"
}

# What is imported is compiled then: most of it never is.
install() { "$venv/bin/pip" install -qq --no-compile "$@"; }

# The first Python that torch 2.13 has wheels for and that can make environments.
find_python() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
      echo "$python"
      return 0
    fi
  done
  say "no Python 3.11 to 3.14 with venv"
  exit 1
}

# What the stamp holds: if it differs from this, the environment is made anew.
fingerprint() { cat requirements.txt; declare -f install_torch install make_environment; echo "$python_torch"; }

make_environment() {
  if [[ -x $venv/bin/python ]] && fingerprint | cmp -s - "$venv/cortado.stamp"; then return 0; fi
  if [[ -L $venv ]]; then
    say "$venv is a link to another environment: using it as it is"
    return 0
  fi
  local python=${python_torch:-$(find_python)}
  say "making $venv with $("$python" --version 2>&1)"
  rm -rf "$venv"
  "$python" -m venv "$venv"
  export PIP_DISABLE_PIP_VERSION_CHECK=1
  if [[ -n $python_torch ]]; then
    local packages
    packages=$("$python_torch" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))') ||
      { say "PYTHON_TORCH=$python_torch has no torch"; exit 1; }
    # Its packages come after our own in the search order.
    echo "$packages" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch_from.pth"
  else
    install_torch
  fi
  install -r <(grep -v '^torch==' requirements.txt)
  fingerprint >"$venv/cortado.stamp"
}

if [[ $1 == --tests ]]; then
  install_system_packages system-packages-test.txt
  exit 0
fi
venv=$1
python_torch=${2:-}
install_system_packages system-packages.txt
make_environment
