#!/usr/bin/env bash
# Prepares a bare Debian 12 or Ubuntu 24.04 for building: installs system packages, then the Python environment.
#
#   scripts/setup.sh VENV [PYTHON_TORCH]
#   scripts/setup.sh --tests                # only the packages of the tests
#   scripts/setup.sh --packages LIST [ID]   # prints the packages of a list for this system, or for debian or ubuntu
#
# VENV is the environment's folder. With PYTHON_TORCH, a Python with torch 2.11 or newer, VENV is made by that Python,
# uses its torch, and gets the other packages of requirements.txt. Otherwise it is made by python3 and gets torch's CPU
# build. Running it again changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "[setup] $*" >&2; }

# Prints debian or ubuntu, also for their derivatives.
system_id() { (. /etc/os-release && [[ " $ID ${ID_LIKE:-} " == *" ubuntu "* ]] && echo ubuntu || echo debian); }

# The packages of a list that are for a system: "NAME" is for all, "NAME [ID]" for one.
packages_of() { # LIST ID
  sed -e 's/#.*//' "$1" | awk -v id="[$2]" 'NF == 1 || $2 == id { print $1 }'
}

install_system_packages() { # LIST
  command -v dpkg-query >/dev/null || { say "not Debian: see $1 for what is needed"; return 0; }
  local wanted missing=() package
  wanted=$(packages_of "$1" "$(system_id)")
  for package in $wanted; do
    [[ $(dpkg-query -W -f='${Status}' "$package" 2>/dev/null) == *" installed" ]] || missing+=("$package")
  done
  command -v npm >/dev/null || missing+=(nodejs npm) # any installation will do: the page's build needs Node 18 or newer
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

# Debian starts the services that it installs, unless this file forbids it.
without_services() {
  local policy=/usr/sbin/policy-rc.d
  [[ ! -e $policy ]] || { "$@"; return; }
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
  "$@"
  rm -f "$policy"
}

# Installs torch's CPU build: from pip's configured index if it has one, else from PyTorch's index. PyPI's build is the last resort,
# because for x86-64 it is a CUDA build of several gigabytes.
install_torch() {
  local torch
  torch=$(grep '^torch==' requirements.txt)
  install "$torch+cpu" 2>/dev/null ||
    install --extra-index-url https://download.pytorch.org/whl/cpu "$torch+cpu" 2>/dev/null ||
    install "$torch"
}

# Modules are compiled when they are imported, because most never are.
install() { "$venv/bin/pip" install -qq --no-compile "$@"; }

# Prints the first Python that torch 2.13 has wheels for and that can make environments.
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

# The content of the stamp. If it differs, the environment is made again.
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
    # Its packages are found after our own.
    echo "$packages" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch_from.pth"
  else
    install_torch
  fi
  install -r <(grep -v '^torch==' requirements.txt)
  fingerprint >"$venv/cortado.stamp"
}

if [[ $1 == --packages ]]; then
  packages_of "$2" "${3:-$(system_id)}"
  exit 0
fi
if [[ $1 == --tests ]]; then
  install_system_packages system-packages-test.txt
  exit 0
fi
venv=$1
python_torch=${2:-}
install_system_packages system-packages.txt
make_environment
