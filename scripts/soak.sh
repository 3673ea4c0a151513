#!/usr/bin/env bash
# Tests `cortado serve` with 32 clients for ten minutes, all on 127.0.0.1. See scripts/soak.py, which takes the same options.
#
#   scripts/soak.sh [--minutes 10] [--seed 1] [--json]
#   CORTADO_BUILD=build/asan scripts/soak.sh --minutes 3
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
python=$here/.venv/bin/python
[ -x "$python" ] || python=python3
exec "$python" "$here/scripts/soak.py" --cortado "${CORTADO_BUILD:-$here/build/release}/bin/cortado" "$@"
