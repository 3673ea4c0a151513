#!/usr/bin/env bash
# Fetches the sources of requirements-sources.txt into build/sources/NAME-VERSION with pip, which verifies their hashes.
#
#   scripts/fetch_sources.sh PYTHON
#
# Existing sources are not fetched again. If a download fails, prints a message; the build continues without the library.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
sources=build/sources
unfinished=
trap 'rm -rf "$unfinished"' EXIT

say() { echo "[setup] $*" >&2; }

# --no-binary keeps pip from taking a wheel, which has no sources. It is limited to this package because pip makes an environment to
# read the package's name and version, whose packages would otherwise be compiled, too. Nothing is compiled here.
fetch() {
  local name=$1 version=$2 hash=$3
  [[ -d $sources/$name-$version ]] && return 0
  say "fetching the sources of $name $version"
  mkdir -p "$sources"
  unfinished=$(mktemp -d "$sources/unfinished.XXXXXX")
  "$python" -m pip download -qq --disable-pip-version-check --no-deps --no-binary "$name" --require-hashes --retries 1 -d "$unfinished" \
    -r <(echo "$name==$version --hash=$hash") >"$unfinished/log" 2>&1 || return 1
  tar -xzf "$unfinished/$name-$version.tar.gz" -C "$unfinished" "$name-$version"/{LICENSE,NOTICE,cpp,include,3rdparty/dlpack/{LICENSE,include},3rdparty/picojson/picojson.h}
  mv -T "$unfinished/$name-$version" "$sources/$name-$version" # atomic: an existing folder is complete
  rm -rf "$unfinished"
}

while read -r pinned hash; do
  name=${pinned%%==*} version=${pinned##*==}
  fetch "$name" "$version" "${hash#--hash=}" ||
    say "$name $version could not be fetched ($(grep -m1 -o 'ERROR: .*' "$unfinished/log" 2>/dev/null || echo "no reason given")): the build goes on without"
  rm -rf "$unfinished"
done < <(grep -v '^#' requirements-sources.txt)
