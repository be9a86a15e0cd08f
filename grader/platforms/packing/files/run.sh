#!/usr/bin/env bash
# PrairieLearn runs this for every submission: the student's files are in /grade/student, and this folder is /grade/tests.
cd "$(dirname "${BASH_SOURCE[0]}")/lockstep" || exit 1
exec "${LOCKSTEP_PYTHON:-/opt/lockstep/bin/python}" -m grader.platforms prairielearn "${LOCKSTEP_GRADE:-/grade}"
