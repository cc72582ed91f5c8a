PYTHON ?= python3.11
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test lint format clean

demo: $(INSTALLED)  ## fresh machine to result: two rounds on 5,000 real MNIST images, under 4 minutes after installation
	$(BIN)/labelwall run --config configs/quickstart.yaml --run_dir runs/demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build *.egg-info

$(INSTALLED): pyproject.toml constraints.txt
	@echo "labelwall: creating .venv. Downloads about 3 GB and needs about 7 GB on disk (torch brings its CUDA libraries)."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	mkdir -p .venv/checkout && ln -sfn "$(CURDIR)" .venv/checkout/labelwall  # where mypy finds the package
	touch $(INSTALLED)
