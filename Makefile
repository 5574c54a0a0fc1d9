# Each target sets up .venv by itself: Python 3.11 or newer, make, and a package index are all it needs.
PYTHON ?= python3
PROMPT ?=
# The text as it was given: without `value`, make would expand a $ in it. The recipe reads it from the environment,
# so that the shell does not read it as code either.
override PROMPT := $(value PROMPT)
export PROMPT
BIN := .venv/bin
RECORDINGS ?= ../shared/corpus
# Compiled modules are kept: the suite starts hundreds of interpreters.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: chat test check test-hard test-recordings test-exhaustive test-rules clients lint bench bench-quick bench-scale scoreboards newest lock sbom clean docs

chat: .venv/chat ## talk to the embedded model; PROMPT="..." answers once
	@$(BIN)/dragoman chat $(if $(PROMPT),--prompt="$$PROMPT")

test: .venv/dev ## every check: lint, types, all tests, coverage, speed; BOX=core runs one box alone, BOX=all each
	@sh scripts/install_system.sh
	@$(BIN)/python -m scripts.$(if $(BOX),run_box $(BOX),run_tests)

check: .venv/dev ## before a commit: lint of the changed files, types, and the fast half of the tests
	@$(BIN)/python -m scripts.run_tests check

test-hard: .venv/dev ## all tests on a busy machine, on one core, shuffled, and each file alone; ONLY=pinned chooses
	@sh scripts/install_system.sh
	@$(BIN)/python -m scripts.run_hard $(ONLY)

test-recordings: .venv/dev ## the tests of recorded exchanges, which are not in the repository; RECORDINGS=FOLDER
	@if test -f "$(RECORDINGS)/recorded.jsonl.gz"; then \
	  DRAGOMAN_RECORDINGS="$(RECORDINGS)" $(BIN)/python -m pytest -q -m recordings tests/gateway/test_official.py tests/wire; \
	else echo "there are no recordings in $(RECORDINGS); no test was run"; fi

# Some of its tests take minutes, and a look at the stack of a running thread can crash Python 3.11.
test-exhaustive: .venv/dev ## every cut and every cancellation, not a sample, and an hour of calls; 90 minutes on two cores
	@sh scripts/install_system.sh caddy prometheus
	DRAGOMAN_EXHAUSTIVE=1 $(BIN)/python -m pytest -n auto --dist worksteal -m exhaustive -o faulthandler_timeout=0

test-rules: .venv/dev ## break each rule of the specifications, and check that its test notices; half an hour on two cores
	@$(BIN)/python -m scripts.run_rules $(ONLY)

clients: .venv/dev ## install the programs of others that the exhaustive tests put in front of the gateway
	$(BIN)/python scripts/install_clients.py

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/basedpyright --level error
	$(BIN)/python scripts/prose.py

bench: .venv/dev ## CPU of a call and a chunk, beside floors written by hand and the peers
	$(BIN)/python -m bench --docs

bench-quick: .venv/dev ## the same without the peers, in under two minutes
	$(BIN)/python -m bench --quick

bench-scale: .venv/dev ## batches, batches on Ray, the gateway under load and with each store; renews bench/README.md
	@missed=; for part in batch cluster fleet stores; do \
	  $(BIN)/python -m bench.$$part --docs || missed="$$missed bench.$$part"; done; \
	test -z "$$missed" || { echo "failed, or missed a limit:$$missed" >&2; exit 1; }

scoreboards: .venv/dev ## run suites that others wrote; install them first; write docs/scoreboards.md
	$(BIN)/python -m scoreboards $(ONLY)

docs: .venv/dev ## build the documentation into site/
	$(BIN)/python -m tests.test_docs
	$(BIN)/zensical build --clean --strict

newest: .venv/dev ## try the newest release of each partner on each Python that can be had, and print what breaks; ONLY=openai chooses
	$(BIN)/python -m scripts.newest $(ONLY)

lock: .venv/dev ## renew the locked dependencies by releases that are a week old; LOCK_BEFORE=2026-11-20 sets the day
	LOCK_BEFORE="$(LOCK_BEFORE)" $(BIN)/python scripts/lock.py

sbom: .venv/dev ## write the software bill of materials to build/sbom.cdx.json
	$(BIN)/python scripts/sbom.py build/sbom.cdx.json

.venv/chat: requirements/chat.lock pyproject.toml
	@printf "setting up .venv with %s packages; this happens once ... " $$(grep -c "^[^ #].*==" requirements/chat.lock)
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/chat.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@; echo done

# uv installs in a tenth of pip's time; pip knows the indexes that only its own configuration names.
.venv/dev: requirements/dev.lock requirements/installer.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/installer.lock
	$(BIN)/python -m uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.lock || \
	  $(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.lock
	$(BIN)/python -m uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

clean:
	rm -rf .venv .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis
