#!/usr/bin/env bash
# Gradescope runs this once, as root, when the image is built. It makes one environment that every user can read.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# The settings of settings.ini; an environment variable of the same name in capitals wins.
setting() { sed -n "s/^$1 *= *//p" settings.ini | head -n 1; }
PYTHON="${PYTHON-$(setting python)}"
TORCH="${TORCH-$(setting torch)}"
TORCH_INDEX="${TORCH_INDEX-$(setting torch_index)}"

if [ -z "$PYTHON" ]; then
  for name in python3.13 python3.12 python3.11 python3.10 python3; do
    if command -v "$name" > /dev/null && "$name" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 10))'; then
      PYTHON="$name"
      break
    fi
  done
fi
if [ -z "$PYTHON" ]; then  # Gradescope's own python3 comes without venv
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3 python3-venv
  PYTHON=python3
fi
if [ -z "$TORCH" ]; then  # the newest releases need Python 3.11
  TORCH="$("$PYTHON" -c 'import sys; print("torch==2.13.0" if sys.version_info >= (3, 11) else "torch==2.9.1")')"
fi

umask 022
"$PYTHON" -m venv --copies venv
venv/bin/python -m pip install --quiet ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$TORCH"
venv/bin/python -m pip install --quiet -r requirements.txt
venv/bin/python -c 'import torch, pytest, xdist, rich, safetensors; print("ready: torch", torch.__version__)'
