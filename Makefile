# Each target sets up what it needs in .venv: Python 3.11+ and make are enough. It takes the newest Python
# that it finds, with the newest packages; make test on Python 3.11 takes the oldest packages.
# To choose the Python: make clean, then make test PYTHON=/path/to/python3.12

PYTHON ?=
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
# The oldest Python, with the oldest packages that pyproject.toml allows.
OLDEST_PYTHON ?= python3.11
OLDEST_VENV := .venv-oldest
OLDEST_PY := $(OLDEST_VENV)/bin/python
OLDEST_READY := $(OLDEST_VENV)/.ready
# TensorFlow and TensorFlow Datasets, which only a few tests need, have an environment of their own.
TFDS_VENV := .venv-tfds
TFDS_PY := $(TFDS_VENV)/bin/python
TFDS_READY := $(TFDS_VENV)/.ready
# The tests start hundreds of processes, which would each compile all that they import.
unexport PYTHONDONTWRITEBYTECODE
# Only the files that have tests with a mark: looking through all of them takes half a minute.
marked = $$(grep -rlw "mark[.]$(1)" tests --include="test_*.py")

.PHONY: help demo era5 far convert tokens tfds sharded test test-oldest test-plain test-native test-jobs test-brief test-pyright test-grain test-grain-all test-report test-tfds soak chaos hunt \
	fuzz lint docs docs-serve format bench bench-small bench-steady shuffling wheel coverage clean

help:
	@echo "make demo      train on digits, stop in the middle of an epoch, resume, compare"
	@echo "make era5      train a forecast of temperature on windows of ERA5, draw it in era5.png"
	@echo "make far       read from a disk and from a server far away: same batches, what it costs"
	@echo "make convert   TFRecord to ArrayRecord to Zarr, killed in the middle and gone on with, trained on"
	@echo "make tokens    speeches to tokens to packed rows to a model; killed on 2 processes, then on 1 and 4"
	@echo "make tfds      a dataset built with Zarr beside it, the Grain guide's programs on it, in JAX"
	@echo "make sharded   train on a mesh of devices in 2 processes, killed, then in 1 and 4; what each reads"
	@echo "make test      all tests but those of the targets listed next, with the same examples every time"
	@echo "make test-oldest chains, sources and engine on Python 3.11 with the oldest packages, in .venv-oldest;"
	@echo "               all tests with TESTS=tests, others with TESTS=tests/cli"
	@echo "make test-plain the tests of readers and engine without the native core"
	@echo "make test-native the tests and the checks of the native core's own code, with cargo"
	@echo "make test-jobs what takes long: examples, workers, conversions on Beam, Dask and object stores"
	@echo "make test-brief a few minutes of test-jobs, for .ci/run"
	@echo "make test-pyright right and wrong programs, checked by pyright, which brings Node.js (300 MB)"
	@echo "make test-grain the tests that Grain's wheel ships, against Windrow; test-grain-all the slow files too"
	@echo "make test-report pages of windrow.report, opened and looked at in a Chromium without a window"
	@echo "make test-tfds what needs TensorFlow Datasets, in .venv-tfds, which has TensorFlow (2 GB)"
	@echo "make soak      faults of worker processes and conversions, SOAK=50 times each, at random moments"
	@echo "make chaos     a training run under faults of every kind, for MINUTES=30; SEED=... draws the same"
	@echo "make hunt      new examples for all hypothesis tests, for MINUTES=30; SEED=... repeats a round"
	@echo "make fuzz      any bytes for each parser of the native core, MINUTES=60 in all; needs cargo-fuzz"
	@echo "make lint      ruff, ruff format, mypy, words and the workflow files"
	@echo "make docs      run the tutorials, build the site in build/site; docs-serve shows it while you write"
	@echo "make format    apply the formatter"
	@echo "make bench     the measured comparisons; first those of bench-steady"
	@echo "make bench-small every case on tiny data, to see that they run"
	@echo "make bench-steady epochs that repeat over a store that memory does not hold, beside the floor"
	@echo "make shuffling train in several orders, draw the pictures of docs/shuffling.md"
	@echo "make wheel     build the sdist and the wheel, try each in a clean environment"
	@echo "make coverage  the tests with coverage, at least 90%; pages in htmlcov/"
	@echo "make clean     remove what was built, environments too; then PYTHON=... chooses another Python"

# A copied or moved checkout has environments that point to the old one's code.
is_moved = $(shell test "$$(sed 's/ [^ ]*$$//' $(1)/.made 2>/dev/null)" = "$(CURDIR)" || echo moved)
ifeq ($(call is_moved,$(VENV)),moved)
.PHONY: $(READY)
endif
ifeq ($(call is_moved,$(TFDS_VENV)),moved)
.PHONY: $(TFDS_READY)
endif

# The native core is built with the environment.
CRATE := loader/core/native
CRATE_SOURCES := $(shell find $(CRATE) \( -path $(CRATE)/target -o -path $(CRATE)/fuzz \) -prune -o -type f -print)

SETTINGS := pyproject.toml $(addprefix tools/,find_python.sh set_up.sh oldest.txt)

$(READY): $(SETTINGS) $(CRATE_SOURCES)
	@PYTHON="$(PYTHON)" sh tools/set_up.sh $(VENV) dev

$(OLDEST_READY): $(SETTINGS) $(CRATE_SOURCES)
	@PYTHON="$(OLDEST_PYTHON)" sh tools/set_up.sh $(OLDEST_VENV) dev tools/oldest.txt

$(TFDS_READY): $(SETTINGS) $(CRATE_SOURCES)
	@PYTHON="$(PYTHON)" sh tools/set_up.sh $(TFDS_VENV) dev-tfds

demo: $(READY)
	@$(PY) examples/train_digits.py

era5: $(READY)
	@$(PY) examples/train_era5.py

far: $(READY)
	@$(PY) examples/read_far_away.py

convert: $(READY)
	@$(PY) examples/convert_records.py

tokens: $(READY)
	@$(PY) examples/train_tokens.py

tfds: $(TFDS_READY)
	@$(TFDS_PY) examples/train_tfds.py

# Four processes of JAX at once. The program imports other examples.
sharded: $(READY)
	@$(PY) -m examples.train_sharded
	@$(PY) -m pytest -q -m jobs tests/devices

# Three processes on two cores: tests of remote stores wait for most of their time. Each keeps to its
# third of the tests while it can, so that most stores are written once.
ALL_TESTS = pytest -q -n 3 --dist worksteal -m "not jobs and not report and not tfds"
test: $(READY)
	@if $(PY) -c "import sys; sys.exit(sys.version_info >= (3, 12))"; then \
		$(MAKE) --no-print-directory test-oldest TESTS=tests OLDEST_PYTHON="$(CURDIR)/$(PY)"; \
	else $(PY) -m $(ALL_TESTS); fi

test-oldest: TESTS ?= tests/chain tests/engine tests/sources
test-oldest: $(OLDEST_READY)
	@$(OLDEST_PY) -m $(ALL_TESTS) $(TESTS)

test-plain: $(READY)
	@WINDROW_NATIVE=0 $(PY) -m pytest -q -n 2 -m "not jobs and not report and not tfds" \
		tests/core tests/engine tests/sources/zarr/test_zarr_native.py tests/sources/zarr/test_zarr_local_chunks.py tests/sources/zarr/test_zarr_damage.py \
		tests/sources/array_record tests/sources/test_boxes.py

# Python's library is linked by the tests, so that they are programs; it may lie where the system does not look.
PY_LIBRARIES = $$($(PY) -c "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))")
test-native: $(READY)
	@export PYO3_PYTHON="$(CURDIR)/$(PY)" LD_LIBRARY_PATH="$(PY_LIBRARIES):$$LD_LIBRARY_PATH" && \
		cd $(CRATE) && cargo fmt --check && \
		cargo clippy --quiet --locked --all-targets -- -D warnings && cargo test --quiet --locked && \
		cargo metadata --no-deps --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null

test-jobs: $(READY)
	@$(PY) -m pytest -q -n 2 -m "jobs and not soak and not tfds" $(call marked,jobs)

# Worker processes, processes with devices, conversions on processes, predictions, and an example: what a
# change must never break.
BRIEF := $(addprefix tests/,workers/test_workers.py workers/test_workers_stream.py workers/test_worker_review.py \
	core/test_native.py core/test_progress.py cli/test_commands.py \
	converters/test_converters_executor.py verification/test_verify_bombs.py \
	explain/test_explain_counted.py explain/test_dry_run.py explain/test_advice.py explain/test_explain_endless.py \
	quality/test_shuffle_quality_shown.py devices/test_processes.py::test_two_processes_and_then_one \
	test_example.py test_hunt.py 'test_tutorials.py::test_a_tutorial_runs_and_prints_what_it_shows[images]')
test-brief: $(READY)
	@$(PY) -m pytest -q -n 2 -m "jobs and not soak and not tfds" $(BRIEF)

# The Node.js of pyright is too large for every environment.
test-pyright: $(READY)
	@$(PY) -m pip install -qq --disable-pip-version-check --no-input "basedpyright>=1.29"
	@$(PY) -m pytest -q -m jobs tests/test_typing.py

# What fails is listed, with reasons, in tests/grain_adapter/listed.toml and docs/grain.md.
test-grain: $(READY)
	@$(PY) -m tests.grain_adapter -n2

test-grain-all: $(READY)
	@$(PY) -m tests.grain_adapter -n2 --slow

# One browser at a time: each keeps two cores busy.
test-report: $(READY)
	@CHROMIUM="$$(CHROMIUM="$(CHROMIUM)" sh tools/find_chromium.sh)" && export CHROMIUM && \
		$(PY) -m pytest -q -m report tests/reporting/test_report_*.py

# Other files import packages that this environment lacks.
test-tfds: $(TFDS_READY)
	@$(TFDS_PY) -m pytest -q -n 2 -m tfds $(call marked,tfds)

# With the SEED of an earlier run the moments are the same.
SOAK ?= 50
SEED :=
MINUTES :=
SOAK_SEED := $(or $(SEED),$(shell date +%s))
soak: $(READY)
	@echo "SOAK=$(SOAK) SEED=$(SOAK_SEED)"
	@$(PY) -m pytest -q -n 2 -m "soak and not tfds" --soak $(SOAK) --soak-seed $(SOAK_SEED) $(call marked,soak)

# The faults that the SEED draws are the same; which processes they meet in which moment is not.
chaos: $(READY)
	@$(PY) -m tests.chaos $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

# With the SEED of a round that failed it is that round alone, unless MINUTES are given too.
hunt: $(READY)
	@$(PY) -m tools.hunt $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

# What is found lies in fuzz/artifacts; mended, it belongs in fuzz/corpus, which the tests replay.
FUZZED := $(notdir $(basename $(wildcard $(CRATE)/fuzz/targets/*.rs)))
FUZZ_S = $(shell expr $(or $(MINUTES),60) '*' 60 / $(words $(FUZZED)))
fuzz: $(READY)
	@cd $(CRATE) && export PYO3_PYTHON="$(CURDIR)/$(PY)" LD_LIBRARY_PATH="$(PY_LIBRARIES):$$LD_LIBRARY_PATH" \
		RUSTC_BOOTSTRAP=1 && cargo fuzz build && \
		for target in $(FUZZED); do \
			mkdir -p fuzz/target/corpus/$$target && \
			cargo fuzz run $$target fuzz/target/corpus/$$target fuzz/corpus/$$target -- \
				-max_total_time=$(FUZZ_S) -max_len=1024 -timeout=20 -verbosity=0 -print_final_stats=1 || exit 1; \
		done

lint: $(READY)
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m tools.forward_types
	@$(PY) -m tools.words
	@$(PY) -m mypy
	@$(PY) -m check_jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(VENV)/bin/zizmor --quiet --offline --no-progress .github

# Not with --quiet: it hides the warnings that strict mode counts.
docs: $(READY)
	@$(PY) -m tools.notebooks
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build

docs-serve: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve

format: $(READY)
	@$(PY) -m ruff check --fix
	@$(PY) -m ruff format

bench: $(READY)
	@$(PY) -m benchmarks

bench-small: $(READY)
	@$(PY) -m benchmarks all --small

bench-steady: $(READY)
	@$(PY) -m benchmarks steady

shuffling: $(READY)
	@$(PY) -m benchmarks.shuffling

wheel: $(READY)
	@$(PY) -m tools.try_wheel

# Tracing makes tests take half as long again, so it is not part of `make test`.
coverage: $(READY)
	@$(PY) -m pytest -q -n 2 -m "not jobs and not report and not tfds" \
		--cov --cov-report=term --cov-report=html --cov-fail-under=90

clean:
	rm -rf $(VENV) $(OLDEST_VENV) $(TFDS_VENV) $(CRATE)/target loader/core/_native.* build dist htmlcov typings .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
