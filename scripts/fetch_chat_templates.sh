#!/usr/bin/env bash
# Fetches the chat templates of many models into build/chat-templates, for tests/parity/test_chat_templates.py. They are a folder of
# llama-cpp-python's source package (77 MB), which pip fetches and verifies. Without them the tests use the repository's own templates.
#
#   scripts/fetch_chat_templates.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.3.36 hash=sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
[[ -d build/chat-templates ]] && exit 0
mkdir -p build
unfinished=$(mktemp -d build/unfinished.XXXXXX)
trap 'rm -rf "$unfinished"' EXIT
# --no-binary is limited to this package, because pip makes an environment to read the package's name and version.
"$1" -m pip download -qq --disable-pip-version-check --no-deps --no-binary llama-cpp-python --require-hashes -d "$unfinished" \
  -r <(echo "llama-cpp-python==$version --hash=$hash")
tar -xzf "$unfinished"/llama_cpp_python-$version.tar.gz -C "$unfinished" --strip-components 5 --wildcards '*/vendor/llama.cpp/models/templates/*.jinja'
mkdir "$unfinished/templates"
mv "$unfinished"/*.jinja "$unfinished/templates"
mv -T "$unfinished/templates" build/chat-templates
