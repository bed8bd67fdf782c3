#!/bin/sh
# Writes the pinned files anew from pyproject.toml: for every supported Python and platform, names, versions and hashes only.
# Needs `uv` on the PATH. Only whoever changes a dependency runs it; everybody else installs what it wrote.
set -eu
cd "$(dirname "$0")/.."

pin() {
    file=$1
    shift
    # The previous answer is a preference, so that only what has to move moves; UPGRADE=1 takes the newest that fit.
    uv pip compile --no-config --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
        --no-annotate --no-header ${UPGRADE:+--upgrade} --output-file "deploy/$file" "$@" >/dev/null
    echo "wrote deploy/$file"
}

# What builds is installed first and by itself: then nothing is built with a tool that no file pins.
pin requirements-build.txt --group build
pin requirements-run.txt --extra postgres --extra keyring --constraint deploy/requirements-build.txt pyproject.toml
pin requirements-dev.txt --extra postgres --extra keyring --group test --group check --constraint deploy/requirements-run.txt pyproject.toml
pin requirements-synapse.txt --group synapse
pin requirements-audit.txt --group audit
