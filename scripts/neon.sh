#!/usr/bin/env bash
# Compiles every kernel for 64-bit ARM with Debian's cross-compiler, which it installs if it is missing and the user is root. Nothing is
# run, for lack of an ARM machine, but kernels that use x86-only features are found.
set -euo pipefail
cd "$(dirname "$0")/.."
compiler=aarch64-linux-gnu-g++
if ! command -v "$compiler" >/dev/null; then
  ((EUID == 0)) || { echo "[neon] run this as root, then again: apt-get install -y g++-aarch64-linux-gnu" >&2; exit 1; }
  echo "[neon] installing g++-aarch64-linux-gnu" >&2
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq </dev/null
  apt-get install -y -qq --no-install-recommends g++-aarch64-linux-gnu </dev/null >/dev/null
fi
# Highway's headers fit every machine, but other headers in their folder do not.
include=$(mktemp -d)
trap 'rm -rf "$include"' EXIT
ln -s /usr/include/hwy "$include/hwy"
mapfile -t kernels < <(find src -name kernel.cpp | sort)
printf '%s\n' "${kernels[@]}" |
  xargs -P "${JOBS:-$(nproc)}" -I{} "$compiler" -march=armv8-a+crypto -std=c++20 -O1 -Wall -Wextra -Werror -Isrc -isystem "$include" -c {} -o /dev/null
echo "[neon] ${#kernels[@]} kernels compile"
