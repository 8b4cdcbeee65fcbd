# Two commands do all the set-up: `make run` (the main job on its embedded default) and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test lint types bench clean

# The demonstration (a clean, before and after; about two seconds), then the daemon until Ctrl-C.
run: $(STAMP)
	$(BIN)/compactd demo --data data
	$(BIN)/compactd serve --set log.dirs=data/kafka-logs

test: $(STAMP) lint types
	$(BIN)/pytest -n 2 --dist worksteal $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy does not follow the editable finder: check an installed copy.
types: $(STAMP)
	rm -rf build/types build/lib*
	$(BIN)/pip install -q --no-deps --no-build-isolation --target build/types . 
	MYPYPATH=build/types $(BIN)/mypy -p compactd

bench: $(STAMP)
	$(BIN)/compactd bench cleaner

$(STAMP): setup.cfg pyproject.toml $(shell find storage/kernel/native -name '*.rs' -o -name 'Cargo.toml' -not -path '*/target/*')
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip "setuptools>=75" wheel "setuptools-rust>=1.10"
	$(BIN)/pip install -qq --no-build-isolation -e '.[test]'
	touch $(STAMP)

clean:
	rm -rf build $(VENV) .pytest_cache .mypy_cache .ruff_cache storage/kernel/native/target storage/kernel/*.so
