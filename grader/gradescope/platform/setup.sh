#!/usr/bin/env bash
# Gradescope runs this once, as root, when the image is built. It makes one environment that every user can read.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
trap 'echo "setup.sh failed; the lines above say why. [install] in course.toml chooses python, torch and torch_index." >&2' ERR

# `make autograder` has written [install] of course.toml into install.txt. An environment variable of the same name in
# capitals takes precedence.
setting() { sed -n "s/^$1=//p" install.txt; }
PYTHON="${PYTHON-$(setting python)}"
TORCH="${TORCH-$(setting torch)}"
TORCH_INDEX="${TORCH_INDEX-$(setting torch_index)}"

if [ -z "$PYTHON" ]; then
  for name in python3.14 python3.13 python3.12 python3.11 python3.10 python3; do
    if command -v "$name" > /dev/null &&
      "$name" -c 'import ensurepip, sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' 2> /dev/null; then
      PYTHON="$name"
      break
    fi
  done
fi
if [ -z "$PYTHON" ]; then  # Gradescope's own python3 comes without venv
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3 python3-venv
  rm -rf /var/lib/apt/lists/*
  PYTHON=python3
fi
# By default Gradescope runs the same torch as students: the version in their requirements.
TORCH="${TORCH:-$(sed -n 's/^\(torch==[0-9.]*\).*/\1/p' handout/requirements.txt)}"
case "$TORCH" in [0-9]*) TORCH="torch==$TORCH" ;; esac

umask 022
"$PYTHON" -m venv --copies venv
pip() { venv/bin/python -m pip --disable-pip-version-check --no-cache-dir --retries 10 "$@"; }
pip install --quiet --require-hashes --only-binary :all: -r requirements.txt
if [ -n "$TORCH_INDEX" ]; then
  # The file, and so its hash, depends on the index. So only the version is pinned. Nothing else is
  # installed from that index.
  pip install --quiet --no-deps --index-url "$TORCH_INDEX" "$TORCH"
else
  pip install --quiet "$TORCH"  # PyPI's build for Linux depends on CUDA's libraries, which are not locked
fi
pip check
venv/bin/python -c 'import torch, pytest, xdist, rich, safetensors; print("ready: torch", torch.__version__)'
