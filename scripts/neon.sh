#!/usr/bin/env bash
# Compiles every kernel for 64-bit ARM by Debian's cross-compiler, which root gets installed where it is missing. Nothing is run: there is
# no ARM machine here, but a kernel that names what only x86 has is found.
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
# Highway's headers are the same for every machine, but not what else lies beside them.
include=$(mktemp -d)
trap 'rm -rf "$include"' EXIT
ln -s /usr/include/hwy "$include/hwy"
mapfile -t kernels < <(find src -name kernel.cpp | sort)
printf '%s\n' "${kernels[@]}" |
  xargs -P "${JOBS:-$(nproc)}" -I{} "$compiler" -march=armv8-a+crypto -std=c++20 -O1 -Wall -Wextra -Werror -Isrc -isystem "$include" -c {} -o /dev/null
echo "[neon] ${#kernels[@]} kernels compile"
