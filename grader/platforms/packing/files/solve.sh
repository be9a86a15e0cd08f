#!/usr/bin/env bash
# Harbor's oracle runs this: it puts the answer of this part in place.
set -euo pipefail
cp "$(dirname "${BASH_SOURCE[0]}")/PART.py" "${LOCKSTEP_APP:-/app}/handout/PART.py"
