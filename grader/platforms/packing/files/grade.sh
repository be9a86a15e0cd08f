#!/usr/bin/env bash
# Grades /submission (a folder) and writes results.json, junit.xml and report.html into /results.
cd "$(dirname "${BASH_SOURCE[0]}")/lockstep" || exit 1
exec "${LOCKSTEP_PYTHON:-/opt/lockstep/bin/python}" -m grader.platforms plain \
  "${LOCKSTEP_SUBMISSION:-/submission}" "${LOCKSTEP_RESULTS:-/results}"
