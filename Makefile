PYTHON ?= python3.11
BIN := .venv/bin
INSTALLED := .venv/.installed
TESTS := .venv/.tests
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all lint docs format clean

demo: $(INSTALLED)  ## fresh machine to result: two rounds on 5,000 real MNIST images
	$(BIN)/labelwall demo

test: $(TESTS)  ## what every change must pass
	$(BIN)/python -m pytest -n 2 -m "not slow" --durations 10

test-all: test  ## the sweeps as well: kills at every step, long fuzzing, clusters
	$(BIN)/python -m pytest -n 2 -m slow --durations 10

lint: $(TESTS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy -p tests

docs: $(TESTS)  ## the site in build/site; fails for a link that leads nowhere
	DISABLE_MKDOCS_2_WARNING=true NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: $(TESTS)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build *.egg-info

$(INSTALLED): pyproject.toml setup.py constraints.txt
	@echo "labelwall: creating .venv. Downloads about 3 GB and needs about 7 GB on disk (torch brings its CUDA libraries)."
	$(PYTHON) -m venv .venv
	$(PIP) -e '.[demo]'
	touch $(INSTALLED)

$(TESTS): $(INSTALLED)
	$(PIP) -e '.[test,docs]'
	touch $(TESTS)
