# make demo    train a small transformer eagerly and through smelt, side by side (TORCH_COMPILE=1 adds torch.compile)
# make test    the quick tier of the tests (tests/tiers.py), one process per core
#              (ARGS="tests/fuse -k softmax" for all tests of that choice, ARGS="-n0 --pdb" for one process)
# make test-all    all tests but those marked slow
# make test-long   the tests marked slow (ARGS as above)
# make test-times  measure all tests and write tests/slow_tests.txt, which the quick tier leaves out
# make test-mutations  break each package in one place and see the quick tier fail
# make test-deps   fetch what some tests need beside .venv: a browser, node, the frameworks
# make test-ops  every operator and sample of PyTorch's database through autograd, bit for bit as eager: half an hour
#              (ARGS="--only softmax" to choose, ARGS="--dtypes bfloat16,complex64" for others)
# make test-ops-second  the same for derivatives of second order
# make test-ops-llvm    the same through generated code: twice eager's error and four ulp, element by element
# make test-models  62 Hugging Face architectures, training and not, against eager (ARGS="-k t5" to choose)
# make test-generate  `generate` of 26 Hugging Face models in 16 modes, against eager: tokens and graphs; an hour
#              (ARGS="--models llama t5 --modes greedy static" to choose)
# make test-frameworks  the pages on Trainer, accelerate, TRL, Lightning, diffusers, torchrl, DDP and FSDP2, with those packages
# make test-optim  every optimizer with every combination of its flags, whole steps against eager: a quarter of an hour
# make test-steps  fifty whole training steps of four models by three optimizers, against float64: a quarter of an hour
# make test-programs  50,000 generated programs against plain Python, as many at a time as there are cores: an hour or so
#              (ARGS="--start 7 --count 1000 --jobs 1" to choose)
# make test-stored  20,000 of them with captures stored on disk and loaded (ARGS as above)
# make test-products  10,000 random products and convolutions against float64, by every schedule (ARGS as above)
# make test-files   a million mutated artifacts against the C runtime, built with the sanitizers (ARGS="--seconds 600
#              model.smelt" to choose)
# make test-tensors   20,000 random tensor programs against eager PyTorch, forward and backward (ARGS as above)
# make test-gpu  what a GPU must do as the host does, on a GPU: its own tests, operators, torch.nn, optimizers, models,
#              fifty steps, hooks, random programs (ARGS="-k attention" to choose). tools/gpu_check.py runs the same and
#              longer campaigns in pieces that end in time: --list says which
# make test-worlds    5,000 stories of worlds that change between calls, some 40,000 changes, against plain Python
#              (ARGS as above)
# make test-faults    200 trainings in which one of several processes raises, dies or is late, against eager
# make test-interrupts  an exception at every step of the compiler, after which nothing may have stayed behind: days
#              (ARGS="--stride 5000" for an hour or two, ARGS="--worlds simple --delicate 10" to choose)
# make test-versions  a smoke suite with the oldest and the newest PyTorch, under each Python there is: some gigabytes
#              are fetched (ARGS="3.13:2.15" to choose)
# make test-no-layout  a part of the tests without a look into PyTorch's memory (SMELT_NO_LAYOUT=1)
# make test-leaks  a million calls, after which nothing may have stayed behind
# make wheel   wheels of smelt for each Python there is (3.11, 3.12, 3.13) and of smelt-runtime, for x86-64 and AArch64, in dist/
#              (ARGS="3.12 --machine x86_64" to choose)
# make packages  libsmelt as sources, and the runtime of WebAssembly models for npm, in dist/ (tools/packages.py)
# make test-wheel  build them, install them into empty environments and run the demo and exported files there: five minutes
# make static-core  the C code that static models have inside, as LLVM bitcode, after a change of it: needs clang
# make lint    ruff and mypy
# make docs    the documentation as a site, in build/site/index.html, to be read from disk
# make bench   the benchmark table       (ARGS="--models mlp --modes train infer step --json out.json" to choose;
#              ARGS="--json out.json --plot build" draws the README's picture of it, too;
#              ARGS="--modes infer --peers ort" beside ONNX Runtime, which is installed for it)
#
# Python 3.11 and gcc are all that is needed: the first target that wants it creates .venv and fills it.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install -qq
TORCH := torch==2.13.0

NATIVE := $(wildcard src/smelt/csrc/*.[ch] src/smelt/csrc/*/*.[ch] src/smelt/csrc/*/*/*.[ch] src/smelt/include/*)

# Capture, runtime and compiled autograd pass whole without it; these files are what depends on it most.
NO_LAYOUT := tests/torch_abi tests/compiled_autograd tests/capture/guards/test_guards.py \
	tests/runtime/autograd/test_moved_storage.py tests/runtime/test_overlap.py \
	$(patsubst %,tests/runtime/program/test_%.py,aoti_shims small_matmul launch)

ON_GPU := $(addprefix tests/,gpu deploy/gpu ops ops_db nn optim models autograd compiled_autograd pipeline/test_random_tensors.py)

# Several processes read the same files: without bytecode, each would compile the package and rewrite every assert anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-long test-times test-mutations test-deps test-ops test-ops-second test-ops-llvm test-models test-generate test-frameworks test-optim test-steps test-programs test-stored test-tensors test-products test-files test-gpu test-worlds test-faults test-interrupts test-versions test-no-layout test-leaks test-wheel wheel packages static-core lint docs bench clean
.DELETE_ON_ERROR:

demo: $(VENV)/smelt
	@$(PY) -m examples.demo $(if $(filter-out 0,$(TORCH_COMPILE)),--torch-compile) $(ARGS)

# As many processes as there are processors, where pytest-xdist is there. Golden texts are rewritten by one: pages have
# several writers.
AT_ONCE = $(if $(findstring --update-golden,$(ARGS)),,$(shell \
	$(PY) -c 'import xdist' 2>/dev/null && echo "--numprocesses auto --dist worksteal"))

# The quick tier, unless tests are chosen or golden texts rewritten.
QUICK = $(if $(strip $(foreach choice,tests/ -k --update-golden,$(findstring $(choice),$(ARGS)))),,--tier quick)

# Tests of chips have processes of their own: one has one device that is not PyTorch's, and lazy tensors are such.
test: $(VENV)/dev
	@$(PY) -m pytest -q $(AT_ONCE) $(QUICK) $(ARGS)
	@$(if $(ARGS),,$(PY) -m pytest -q $(AT_ONCE) --tier quick tests/chips)

test-all: $(VENV)/dev
	@$(PY) -m pytest -q $(AT_ONCE) $(ARGS)
	@$(if $(ARGS),,$(PY) -m pytest -q $(AT_ONCE) tests/chips)

test-long: $(VENV)/dev
	@$(PY) -m pytest -q $(AT_ONCE) -m slow $(ARGS)

test-times: $(VENV)/dev
	@mkdir -p build && rm -f build/times.txt
	@$(PY) -m pytest -q $(AT_ONCE) -p no:cacheprovider --cpu-times build/times.txt
	@$(PY) -m pytest -q $(AT_ONCE) -p no:cacheprovider --cpu-times build/times.txt tests/chips
	@$(PY) tools/test_times.py build/times.txt

test-mutations: $(VENV)/dev
	@$(PY) tools/mutations.py $(ARGS)

test-deps:
	@tools/test_deps.sh debian & $(MAKE) --no-print-directory $(VENV)/torch && tools/test_deps.sh $(PY); wait
	@$(MAKE) --no-print-directory $(VENV)/dev

test-ops: $(VENV)/dev
	@$(PY) -m tests.ops_db.sweep --backend aot_eager --samples 0 --dtypes float32,float64 $(ARGS)

test-ops-second: $(VENV)/dev
	@$(PY) -m tests.ops_db.sweep --backend aot_eager --second --dtypes float32,float64 $(ARGS)

test-ops-llvm: $(VENV)/dev
	@$(PY) -m tests.ops_db.sweep --samples 0 --dtypes float32,float64 $(ARGS)

test-models: $(VENV)/dev
	@$(PY) -m pytest -q -m 'slow or not slow' tests/models $(ARGS)

test-generate: $(VENV)/dev
	@$(PY) -m benchmarks.generate --without-rates $(ARGS)

test-frameworks: $(VENV)/frameworks
	@$(PY) -m pytest -q -rs tests/docs/test_pages.py -k frameworks $(ARGS)

test-optim: $(VENV)/dev
	@$(PY) -m pytest -q -m 'slow or not slow' tests/optim/test_optimizers.py $(ARGS)

test-steps: $(VENV)/dev
	@$(PY) -m pytest -q -m 'slow or not slow' tests/optim/test_fifty_steps.py tests/optim/test_step.py $(ARGS)

test-programs: $(VENV)/dev
	@$(PY) -m tests.capture.generated.campaign $(ARGS)

test-stored: $(VENV)/dev
	@$(PY) -m tests.capture.generated.loaded $(ARGS)

test-tensors: $(VENV)/dev
	@$(PY) -m tests.pipeline.generated.campaign $(ARGS)

test-files: $(VENV)/dev
	@$(PY) -m tests.native.deploy.campaign $(ARGS)

test-products: $(VENV)/dev
	@SMELT_CACHE=0 $(PY) -m tests.codegen.cpu.products.campaign $(ARGS)

test-worlds: $(VENV)/dev
	@$(PY) -m tests.capture.mutations.campaign $(ARGS)

test-faults: $(VENV)/dev
	@$(PY) -m tests.capture.distributed.faults $(ARGS)

test-interrupts: $(VENV)/dev
	@SMELT_CACHE=0 $(PY) -m tests.capture.interrupted.campaign $(ARGS)

test-versions:
	@$(PYTHON) tools/test_versions.py $(ARGS)

test-gpu: $(VENV)/dev
	@$(PY) -m pytest -q $(AT_ONCE) --device cuda -m 'slow or not slow' $(ON_GPU) $(ARGS)

test-no-layout: $(VENV)/dev
	@SMELT_NO_LAYOUT=1 $(PY) -m pytest -q $(AT_ONCE) $(NO_LAYOUT) $(ARGS)

test-leaks: $(VENV)/dev
	@SMELT_LEAK_CALLS=1000000 $(PY) -m pytest -q tests/capture/driver/test_leaks.py $(ARGS)

test-wheel: $(VENV)/dev
	@$(PY) -m pytest -q -rs -m 'slow or not slow' tests/packaging $(ARGS)

wheel:
	@$(PYTHON) tools/wheel.py $(ARGS)

packages:
	@$(PYTHON) tools/packages.py $(ARGS)

static-core:
	@$(PYTHON) tools/static_core.py

lint: $(VENV)/dev
	@$(PY) -m ruff check .
	@$(PY) -m mypy

docs: $(VENV)/docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict
	@echo "smelt: open build/site/index.html"

bench: $(VENV)/dev $(if $(filter ort,$(ARGS)),$(VENV)/peers)
	@$(PY) -m benchmarks.run $(ARGS)

clean:
	rm -rf $(VENV) build src/smelt/*.so

# Each step leaves a stamp, so that nothing is installed twice.
$(VENV)/torch:
	@echo "smelt: creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo "smelt: installing $(TORCH) (a few minutes on a slow line)"
	@$(PIP) $(TORCH)
	@touch $@

# Editable, so that edits to Python files count at once; a change to the C part or the metadata rebuilds.
$(VENV)/smelt: $(VENV)/torch pyproject.toml $(wildcard setup.py) $(NATIVE)
	@echo "smelt: building and installing smelt"
	@$(PIP) --editable .
	@touch $@

$(VENV)/dev: $(VENV)/smelt
	@echo "smelt: installing the development tools"
	@$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/frameworks: $(VENV)/dev
	@echo "smelt: installing the frameworks of docs/frameworks.md"
	@$(PIP) --editable '.[frameworks]'
	@touch $@

$(VENV)/peers: $(VENV)/dev
	@echo "smelt: installing ONNX Runtime, to measure beside it"
	@$(PIP) --editable '.[peers]'
	@touch $@

$(VENV)/docs: $(VENV)/smelt
	@echo "smelt: installing what builds the documentation"
	@$(PIP) --editable '.[docs]'
	@touch $@
