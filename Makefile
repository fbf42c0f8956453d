# make setup   what the checkout needs: Python packages; as root also Slurm, Apptainer and the two images
# make demo    the main job from nothing: FLEET=local (default) or slurm, SIZE=135m (default) or tiny
# make test    every test, in two processes; TESTS=tests/spec for a part of them
# make lint    ruff, mypy, import contracts, generated pages
# make soak    20 rounds of faults on a real cluster, as root; goes on where it was stopped. SOAK="--rounds 5 --table" for its options
# make methods every method once with real weights on a real cluster, as root: about an hour on two cores
# make eval-runtime   the image of evalkit/benchmark: torch and lm-eval, about two minutes; as root
# make bench   speed and memory as ratios in one run; BENCH=--write puts the figures into docs/performance.md
PY := .venv/bin/python
TESTS ?= tests
FLEET ?= local
SIZE ?= 135m

.PHONY: setup venv eval-runtime demo test lint bench soak methods clean
setup: venv
	.ci/setup cluster images

venv:
	.ci/setup venv

eval-runtime:
	.ci/setup cluster eval

demo: venv
	@if [ "$(FLEET)" = slurm ]; then .ci/setup cluster images; fi
	@FLEET=$(FLEET) SIZE=$(SIZE) tests/demo/demo

lint: venv
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -c "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports())"

test: setup
	$(PY) -m pytest --numprocesses 2 --no-loadscope-reorder $(TESTS)

soak: setup
	$(PY) tests/cluster/soak.py $(SOAK)

methods: setup
	$(PY) -m pytest -q -s tests/cluster/real_methods.py

bench: setup
	$(PY) tests/benchmarks/run.py $(BENCH)

clean:
	rm -rf .venv build dist demo *.egg-info .mypy_cache .ruff_cache .hypothesis .import_linter_cache
