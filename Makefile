# Lockstep. `make` lists all commands. Every command sets up what it needs.
.DEFAULT_GOAL := help
.PHONY: help how-long setup test watch mutation-test browser-test soak sample load grade course report submission timeline bandwidth handout autograder platforms rehearse stubs figures format lint lock matrix bench fuzz gpu-check clean

PYTHON ?= python3
VENV ?= .venv
export PYTHON VENV
# Without compiled modules, each start of Python compiles the grader again. That takes longer than most checks.
unexport PYTHONDONTWRITEBYTECODE
# handout/set_up.py also reads TORCH=2.9.1 (which torch) and TORCH_INDEX=<URL> (where from; empty for PyPI).
REQUIREMENTS := handout/requirements.txt $(wildcard grader/selftest/requirements.txt)
$(if $(word 2,$(VENV)),$(error VENV=$(VENV): make cannot work with a path that has a space in it))

# `make test PY=python` uses an environment of your own instead of $(VENV). It needs the packages that REQUIREMENTS list.
ifdef PY
READY :=
else
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
endif

# Values that the user gives reach the commands through the environment, unchanged: neither make nor the shell interprets
# their quotes, blanks and dollars. Write "$$SUBMISSION" in a recipe, never $(SUBMISSION).
WORDS := SUBMISSION RESULTS REPORT IMPL PART K DEVICE SEED RANKS CLUSTER MICRO_BATCHES MAX_BYTES INTO SUBMISSIONS ENGINE SETTINGS AT_A_TIME ROSTER DUE UNCONFINED MUTATION_TEST LOAD FUZZ BENCH IMAGE
$(foreach word,$(WORDS),$(if $(value $(word)),$(eval override $(word) := $$(value $(word)))$(eval export $(word))))

# BEGIN INSTRUCTOR
# LOCKSTEP_CASES says which of the long tests run: see grader/selftest/sampling.py. LOCKSTEP_CASES=all make test runs all.
# The tests cover the whole assignment, whatever grader/course.toml says: an empty course file means all parts. Only the
# recipe of test gets this, because `make handout test` packs the course that grader/course.toml describes.
FOR_TEST := LOCKSTEP_COURSE=/dev/null LOCKSTEP_CASES="$${LOCKSTEP_CASES:-first}"
test: how-long
how-long: $(READY)
	@$(if $(K)$(PART)$(IMPL),:,echo "This takes about 5 minutes on two cores. The long tests have commands of their own: make lists them.")
# A new sample each time, unless SAMPLE_SEED repeats one.
export LOCKSTEP_SAMPLE_SEED := $(or $(value SAMPLE_SEED),$(shell date +%s))
# END INSTRUCTOR
# ANYWAY=0 is the same as no ANYWAY.
is_on = $(filter-out 0 no off false,$(1))
BLACK := $(PY) -m black --line-length 100
OPTIONS := $(if $(PART),--part="$$PART") $(if $(K),--only="$$K") $(if $(DEVICE),--device="$$DEVICE") $(if $(SEED),--seed="$$SEED")
# After an exit code other than 0, make prints its own line, which looks like a crash. Say first that it is not a crash.
SAID := { code=$$?; echo "The command did not succeed; the reason is above. make reports that in its own way:" >&2; exit $$code; }

help:  ## show this list
	@echo "make ..."
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-13s %s\n", $$1, $$2}'
	@echo "test, grade and report take PART=collectives, K=ring (words of a check, problem 1.7, shift_right), DEVICE=cuda, SEED=7"
# BEGIN INSTRUCTOR
	@echo "Where solutions/ exists, test runs all checks on it, and the grader's own tests. With IMPL=handout or IMPL=solutions,"
	@echo "test runs the public checks alone, on that folder; watch, report, timeline and bandwidth take IMPL, too."
	@echo "course also takes ENGINE=slurm, SETTINGS=<file>, AT_A_TIME=2, REGRADE=1, UNCONFINED=1; platforms takes IMAGE=you/name"
# END INSTRUCTOR

# `make setup TORCH_INDEX=…` makes the environment anew, although there is one.
ifneq ($(filter setup,$(MAKECMDGOALS)),)
ifneq ($(filter command line,$(origin TORCH) $(origin TORCH_INDEX) $(origin PYTHON)),)
.PHONY: $(READY)
endif
endif
setup: $(READY)  ## create .venv with everything in it (other commands do this when needed)

$(VENV)/.ready: $(REQUIREMENTS)
	@command -v "$$PYTHON" > /dev/null || { \
	  echo "There is no $$PYTHON. Lockstep needs Python 3.10 or later; name the one to use: make setup PYTHON=python3.12"; exit 2; }
	@"$$PYTHON" handout/set_up.py

# Checks run side by side in forked processes, or in fresh interpreters where a fork is not safe.
ifeq ($(shell uname),Linux)
PYTEST_ARGUMENTS := -rN -p grader.check.workers
else
PYTEST_ARGUMENTS := -rN $(if $(K),-n 0,-n auto --dist worksteal)
endif
# BEGIN INSTRUCTOR
# The grader's own tests run only without IMPL, PART and K: importing them takes longer than running some checks.
ifeq ($(IMPL)$(PART)$(K),)
PYTEST_ARGUMENTS := -n auto --dist worksteal
else
PYTEST_ARGUMENTS += -p no:hypothesispytest $(if $(IMPL),tests,tests grader/hidden)
endif
# END INSTRUCTOR
test: $(READY)  ## run the public checks on handout/
	@$(FOR_TEST) $(PY) -m grader.check $(PYTEST_ARGUMENTS) $(OPTIONS) $(if $(IMPL),--submission="$$IMPL") || $(SAID)

watch: $(READY)  ## run the checks of what you change, each time that you save a file; PART=collectives, K=ring
	@$(PY) -m grader.watch $(if $(PART),--part="$$PART") $(if $(K),--only="$$K") $(if $(SEED),--seed="$$SEED") -- $(if $(IMPL),"$$IMPL") || $(SAID)

# BEGIN INSTRUCTOR
mutation-test: $(READY)  ## check that wrong submissions fail as intended and right ones pass; MUTATION_TEST='--part collectives'
	$(PY) -m grader.selftest.mutation $$MUTATION_TEST

browser-test: $(READY)  ## show the report and the course's page in a headless Chromium: requests, keyboard, contrast, hostile text
	@$(PY) -m grader.selftest.browser || $(SAID)

soak: $(READY)  ## run for hours what make test leaves out: all hostile submissions in all tiers, all malformed values, all long tests
	LOCKSTEP_CASES=all $(PY) -m pytest -n auto --dist worksteal -m "campaign or long or varied" grader/selftest

sample: $(READY) stubs  ## run a random sample of mutation-test, fuzz, rehearse and soak; SAMPLE_SEED=7 repeats one
	@echo "A sample of the long tests, about 12 minutes. To repeat it: make sample SAMPLE_SEED=$$LOCKSTEP_SAMPLE_SEED"
	$(PY) -m grader.selftest.fuzz --inputs 10000 --seed "$$LOCKSTEP_SAMPLE_SEED"
	@echo "A rehearsal may use half a core, so mutants are tried at the same time, with less priority."
	$(PY) -m grader.gradescope.rehearse --one-of "$$LOCKSTEP_SAMPLE_SEED" & rehearsal=$$!; \
	  trap 'kill $$rehearsal; wait $$rehearsal; exit 130' HUP INT TERM; \
	  nice $(PY) -m grader.selftest.mutation --share 0.025 --seed "$$LOCKSTEP_SAMPLE_SEED"; mutants=$$?; \
	  wait $$rehearsal && exit $$mutants
	LOCKSTEP_CASES=sample $(PY) -m pytest -n auto --dist worksteal -m "campaign or long or varied" grader/selftest

load: $(READY)  ## grade right submissions many times on a busy machine; LOAD='--gradings 1000 --at-a-time 10'
	$(PY) -m grader.selftest.load $$LOAD

# END INSTRUCTOR
grade: $(READY)  ## grade SUBMISSION=<directory or zip>; write RESULTS=<file>, REPORT=<file>.html
	@test -n "$$SUBMISSION" || { echo "Name the submission: make grade SUBMISSION=<directory or zip>"; exit 2; }
	@$(PY) -m grader $(if $(RESULTS),--results="$$RESULTS") $(if $(REPORT),--report="$$REPORT") $(OPTIONS) -- "$$SUBMISSION" || $(SAID)

report: $(READY)  ## grade handout/ with the checks that you have, write report.html
	@$(PY) -m grader --report="$${REPORT:-report.html}" $(OPTIONS) -- "$${IMPL:-handout}" || $(SAID)

# BEGIN WITH 3 or 4 or 5
# CLUSTER=handout/clusters/h100.ini times the run on that modelled cluster.
# END WITH
# BEGIN WITH 5
# MICRO_BATCHES=64 sets how many micro-batches a pipeline has there.
# END WITH
timeline: $(READY)  ## draw a run of PART of handout/, ranks over time; RANKS=4, INTO=<folder>, CLUSTER=<file>
	@$(PY) -m grader.timeline --submission="$${IMPL:-handout}" $(if $(RANKS),--ranks="$$RANKS") $(if $(INTO),--into="$$INTO") \
	  $(if $(CLUSTER),--cluster="$$CLUSTER") $(if $(MICRO_BATCHES),--micro-batches="$$MICRO_BATCHES") \
	  -- $(if $(PART),"$$PART") || $(SAID)

# BEGIN WITH 2
bandwidth: $(READY)  ## measure this machine with your own benchmarking.py; RANKS=4, MAX_BYTES=1GiB
	@$(PY) -m handout.bandwidth --module="$${IMPL:-handout}" $(if $(RANKS),--world-size="$$RANKS") \
	  $(if $(MAX_BYTES),--max-bytes="$$MAX_BYTES") $(if $(DEVICE),--device="$$DEVICE") || $(SAID)

# END WITH
submission: $(READY)  ## check handout/ and pack submission.zip; ANYWAY=1 packs it even if a file cannot be imported, or no problem is complete
	@$(PY) -m grader.intake.hand_in $(if $(call is_on,$(ANYWAY)),--anyway) || $(SAID)

# BEGIN INSTRUCTOR
# ENGINE=slurm SETTINGS=<file> or ENGINE=tcp://<host>:<port> grades on other machines. AT_A_TIME=2 grades two at a time on
# this one. REGRADE=1 also grades again what another version of the grader has graded. UNCONFINED=1 grades even if student
# code cannot be confined here.
course: $(READY)  ## grade all SUBMISSIONS=<folder or export zip> INTO=<folder>; ROSTER=<csv>, DUE=2026-11-20T23:59+01:00, SEED=7
	@test -n "$$SUBMISSIONS" -a -n "$$INTO" || { echo "Name both: make course SUBMISSIONS=<folder or export zip> INTO=<folder>"; exit 2; }
	@$(PY) -m grader.course --into="$$INTO" $(if $(ENGINE),--engine="$$ENGINE") $(if $(SETTINGS),--settings="$$SETTINGS") \
	  $(if $(AT_A_TIME),--at-a-time="$$AT_A_TIME") $(if $(ROSTER),--roster="$$ROSTER") $(if $(DUE),--due="$$DUE") \
	  $(if $(SEED),--seed="$$SEED") $(if $(call is_on,$(REGRADE)),--regrade) $(if $(call is_on,$(UNCONFINED)),--unconfined) -- "$$SUBMISSIONS" || $(SAID)

handout: $(READY) stubs  ## pack dist/handout.zip, the student's copy of the course that grader/course.toml describes
	@$(PY) -m grader.packaging.pack handout

autograder: $(READY) stubs  ## pack dist/autograder.zip, for Gradescope, of the same course
	@$(PY) -m grader.packaging.pack autograder

# IMAGE=you/lockstep-prairielearn names the image that PrairieLearn pulls from Docker Hub.
platforms: $(READY) stubs  ## pack dist/platforms: Autolab, PrairieLearn, GitHub Actions, Harbor, a container
	@$(PY) -m grader.platforms.packing $(if $(IMAGE),--image="$$IMAGE")

rehearse: $(READY) stubs  ## run what Gradescope runs, with 0.5 CPU and 0.75 GB if this machine can enforce that
	@$(PY) -m grader.gradescope.rehearse

stubs: $(READY)  ## generate handout/ from solutions/
	$(PY) -m grader.packaging.stubs

figures: $(READY)  ## draw the pictures of handout/ASSIGNMENT.md into handout/figures
	@$(PY) -m grader.figures

format: $(READY) stubs  ## run black, and generate the stubs
	$(BLACK) --quiet handout solutions tests grader

lint: $(READY)  ## check formatting, common mistakes, types, spelling, boundaries between folders, Python 3.10, generated stubs
	$(BLACK) --check handout solutions tests grader
	$(PY) -m ruff check --quiet handout solutions tests grader
	$(PY) -m mypy
	$(PY) -m codespell_lib --ignore-words-list=notin,regraded,caf --skip="*.svg,requirements.txt,./*/selftest/hostile,__pycache__,*.zip" \
	  handout solutions tests grader README.md
	$(PY) -c 'from importlinter.cli import lint_imports_command as main; main()' --no-cache --no-logo
	$(PY) -c 'from vermin import main; main()' --quiet --no-tips --target=3.10- --violations handout solutions tests grader
	$(PY) -m grader.packaging.stubs --check

lock:  ## lock the newest versions of the autograder's packages, with hashes; needs uv (pip install uv)
	cd grader/gradescope/platform && uv pip compile requirements.in --output-file requirements.txt --quiet --upgrade --no-config \
	  --universal --python-version 3.10 --generate-hashes --no-annotate --custom-compile-command 'make lock'

matrix: $(READY)  ## grade solutions and stubs with the oldest and the newest Python and torch (downloads GBs)
	@$(PY) -m grader.selftest.matrix $(MATRIX)

bench: $(READY)  ## measure how fast worlds, verdicts and grading are, compared with torch's own implementations; BENCH='--times 1'
	$(PY) -m grader.selftest.bench $$BENCH

fuzz: $(READY)  ## send 120,000 broken inputs each to the judge, to the hub and to the intake; FUZZ='intake --seed S --only N' repeats one
	$(PY) -m grader.selftest.fuzz $$FUZZ

gpu-check: $(READY)  ## find out what a machine with GPUs can do, in one table (15 minutes)
	@$(PY) -m grader.selftest.gpu_check || $(SAID)

# END INSTRUCTOR
clean:  ## remove .venv and caches
	rm -rf -- "$$VENV" "$$VENV.lock" .hypothesis .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
