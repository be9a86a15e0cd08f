#!/usr/bin/env bash
# Harbor runs this after the agent has ended. It writes the points, as a share of the maximum, to reward.txt.
cd "$(dirname "${BASH_SOURCE[0]}")/lockstep" || exit 1
exec "${LOCKSTEP_PYTHON:-/opt/lockstep/bin/python}" -m grader.platforms harbor \
  "${LOCKSTEP_APP:-/app}/handout" "${LOCKSTEP_LOGS:-/logs/verifier}" --part PART
