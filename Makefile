# make test: everything that must hold.  make demo: the main job on real input.  make bench: the figures.
# make docs: the site, in build/docs/html.  make dist: sdist and wheel, installed and tried.  make torture, make fuzz: run until they find an
# error.  make test-asan, make test-tsan: the tests under sanitizers.
VENV   := .venv
PYTHON ?= python3
STAMP  := $(VENV)/.built
PIP     = PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(VENV)/bin/python -m pip --disable-pip-version-check
# Tests start hundreds of processes, which load what the first one has compiled.
export PYTHONDONTWRITEBYTECODE :=
# Run files of tests in at most 8 processes, as many of them load torch; in the order of names, so that short files end it.
PARALLEL := -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder
C_TEXT := $(wildcard csrc/*.[ch] csrc/python/*.[ch] tests/fuzz/*.[ch])

.PHONY: test demo bench bench-against rivals token-rivals parquet-rivals zephon-rivals lint lint-text lint-types lint-stubs docs dist try-wheel test-installed torture fuzz test-all test-oldest test-free-threaded test-trainers test-doors test-asan test-tsan test-ray test-report test-site coverage clean

test: $(STAMP)
	$(MAKE) --no-print-directory -j 2 --output-sync lint
	$(VENV)/bin/python -m pytest -q $(PARALLEL)

lint: lint-text lint-types lint-stubs

lint-text: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports --no-cache --no-logo
	$(VENV)/bin/clang-format --dry-run --Werror $(C_TEXT)

lint-types: $(STAMP)
	$(VENV)/bin/mypy

lint-stubs: $(STAMP)
	$(VENV)/bin/python -m mypy.stubtest mmapds._native --allowlist tests/stubtest.txt --ignore-unused-allowlist

# It needs no tools of developers, whose installation takes most of the time.
demo: $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.demo)
	$(VENV)/bin/python examples/train_stdlib.py --out demo
	$(VENV)/bin/python examples/train_packed.py --out demo

bench: build/trainers/installed
	build/trainers/bin/python -m pytest -q -W ignore -o faulthandler_timeout=0 bench/bench_*.py

# make bench-against COMMIT=... [PATHS=Sampler] : the hot paths with this tree and with another commit, in turn
bench-against: $(STAMP)
	COMMIT=$(COMMIT) PATHS='$(PATHS)' $(VENV)/bin/python -m pytest -q -s -W ignore -o faulthandler_timeout=0 bench/bench_against.py

# make torture [SECONDS=3600] [MODULES="forks ..."] [SEED=1]
torture: $(STAMP)
	$(VENV)/bin/python -m tests.torture --seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED)) $(MODULES)

# make fuzz [SECONDS=60 | RUNS=10000000] [TARGETS="fuzz_json ..."] [JOBS=2]
fuzz: $(STAMP)
	$(VENV)/bin/python -m tests.fuzz $(if $(SECONDS),--seconds $(SECONDS)) $(if $(RUNS),--runs $(RUNS)) \
	  $(if $(JOBS),--jobs $(JOBS)) $(TARGETS)

# A virtual environment for one purpose, on top of the packages of .venv; pip of .venv installs into it.
define environment
	$(PYTHON) -m venv $(@D)
	echo "import site; site.addsitedir('$(abspath $(SITE))')" > $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/base.pth
endef

build/ray/installed: $(STAMP)
	$(environment)
	$(PIP) --python $(@D) install -q 'ray>=2.30' # a large wheel
	touch $@

build/trainers/installed: $(STAMP)
	$(environment)
	$(PIP) --python $(@D) install -q --group trainers
	touch $@

# The lowest declared versions of the dependencies, in an isolated environment, and the tests of reading and sampling
OLDEST_TESTS ?= dataset samplers loader fields collate pack_collate ranks columns convert convert_records convert_tables formats gzip show
test-oldest: build/oldest/installed
	build/oldest/bin/python -m pytest -q -p no:cacheprovider $(OLDEST_TESTS:%=tests/test_%.py)

build/oldest/installed: pyproject.toml $(SOURCES)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -c 'import itertools, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	  given = itertools.chain(p["dependencies"], *(p["optional-dependencies"][each] for each in $(OLDEST_EXTRAS))); \
	  print(*(each.replace(">=", "==") for each in given), sep="\n")' > $(@D)/oldest.txt
	$(@D)/bin/python -m pip --disable-pip-version-check install -q -r $(@D)/oldest.txt -e . hypothesis msgspec pytest tfrecord torchdata
	touch $@
OLDEST_EXTRAS = ("torch", "images", "parquet", "hdf5", "gzip")

# Lightning, transformers, accelerate, grain and others: each in several processes, resuming from checkpoints
test-trainers: build/trainers/installed
	build/trainers/bin/python -m pytest -q $(PARALLEL) tests/trainers

build/doors/installed: $(STAMP)
	$(environment)
	$(PIP) --python $(@D) install -q --group doors
	npm install --silent --prefix $(@D) azurite
	touch $@

# Object stores of others: an emulator of Azure, a hub, FTP, and AIStore's door
test-doors: build/doors/installed
	build/doors/bin/python -m pytest -q -n0 tests/doors

test-ray: build/ray/installed
	build/ray/bin/python -m pytest -q -n0 -m ray tests/test_ray.py

build/rivals/installed: $(STAMP) bench/rivals/requirements.txt
	$(environment)
	$(PIP) --python $(@D) install -q --group trainers
	$(PIP) --python $(@D) install -q --no-deps -r bench/rivals/requirements.txt
	touch $@

# make rivals [N=1e6] [LARGEST=1e9] [CONTESTS="stores samplers budgets packers"] : compare mmapds with other libraries, in a
# separate environment; tables and plots go to bench/results and docs. N: about the records of a store; LARGEST: of an epoch.
rivals: build/rivals/installed
	build/rivals/bin/python -m bench.rivals $(if $(N),--records $(N)) $(if $(LARGEST),--largest $(LARGEST)) \
	  $(if $(CONTESTS),--contests $(CONTESTS))

# Parquet beside other readers of the same file: 0.5 GB of disk, some minutes
parquet-rivals: build/rivals/installed
	build/rivals/bin/python -m bench.rivals.parquet

build/token-rivals/installed: $(STAMP) bench/rivals/blocks-requirements.txt
	$(environment)
	$(PIP) --python $(@D) install -q --no-deps -r bench/rivals/blocks-requirements.txt
	touch $@

# Blocks of tokens, and frames, beside the readers of Megatron, OLMo, datatrove and lerobot: 2.2 GB of disk, ten minutes
token-rivals: build/token-rivals/installed
	build/token-rivals/bin/python -m bench.rivals.blocks

build/zephon-rivals/installed: $(STAMP) bench/rivals/requirements.txt bench/rivals/zephon-requirements.txt
	$(environment)
	$(PIP) --python $(@D) install -q --group trainers
	$(PIP) --python $(@D) install -q --no-deps -r bench/rivals/requirements.txt -r bench/rivals/zephon-requirements.txt
	touch $@

# Zephon on the same JSON Lines, and on what it makes of them; and lhotse, resuming: 8 GB of disk, half an hour
zephon-rivals: build/zephon-rivals/installed
	build/zephon-rivals/bin/python -m bench.rivals.zephon
	build/zephon-rivals/bin/python -m bench.rivals.lhotse_resume

build/docs/installed: $(STAMP)
	$(environment)
	$(PIP) --python $(@D) install -q --group docs --group trainers
	touch $@

# The docs as a site, with a reference of all public names from their docstrings; it loads integrations with trainers.
# Warnings and dead links are errors. Only the environment needs a network.
docs: build/docs/installed
	PYTHONPATH=. build/docs/bin/python docs/site/assemble.py sources build/docs/source
	build/docs/bin/python -m sphinx -W --keep-going -n -q -E -c docs/site build/docs/source build/docs/html
	PYTHONPATH=. build/docs/bin/python docs/site/assemble.py llms build/docs/html

# Test reports in Chromium: their logs, layout and readability; pictures go to build/report.
test-report: $(STAMP)
	@$(VENV)/bin/python -m tests.support.browser
	$(VENV)/bin/python -m pytest -q -n0 -m browser tests/test_report_browser.py

# Every page of the site in Chromium, narrow and wide, light and dark: some minutes. npm fetches axe-core, which finds barriers.
test-site: docs build/axe/installed
	@$(VENV)/bin/python -m tests.support.browser
	$(VENV)/bin/python -m pytest -q -n auto --maxprocesses 4 -m browser tests/test_site_browser.py

build/axe/installed:
	-npm install --silent --prefix $(@D) axe-core && touch $@

# The package under a sanitizer, in a virtual environment of its own that sees the packages of the first, but not its
# import hook, which would find the other build. The runtime must be loaded before Python is, and before it libstdc++, for
# the exceptions of torch. TSan wants addresses where it expects them.
SITE     = $(shell $(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
runtime  = $(shell cc -print-file-name=$(1))
export ASAN_OPTIONS  ?= detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=16:malloc_context_size=5
export UBSAN_OPTIONS ?= print_stacktrace=1
export TSAN_OPTIONS  ?= halt_on_error=1:exitcode=66:report_signal_unsafe=0

build/%/installed: $(STAMP)
	$(PYTHON) -m venv $(@D)
	echo $(abspath $(SITE)) > $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/base.pth
	$(PIP) --python $(@D) install -q --no-deps --force-reinstall \
	  --config-settings=build-dir=$(@D)/cmake --config-settings=install.strip=false \
	  --config-settings='cmake.define.CMAKE_C_FLAGS=$(FLAGS) -g' -e .
	touch $@

SANITIZED = -fno-sanitize-recover=all -fno-omit-frame-pointer
build/asan/installed: FLAGS = -fsanitize=address,undefined $(SANITIZED)
build/tsan/installed: FLAGS = -fsanitize=thread $(SANITIZED)
build/gcov/installed: FLAGS = --coverage

# All tests, in hours: every test with many examples, sanitizers, trainers, clusters, a browser, fuzzing, torture
test-all: $(STAMP)
	$(MAKE) --no-print-directory lint
	HYPOTHESIS_PROFILE=thorough $(VENV)/bin/python -m pytest -q $(PARALLEL) -m "not ray and not browser"
	$(MAKE) --no-print-directory test-trainers test-doors test-ray test-report test-site test-tsan test-asan
	$(MAKE) --no-print-directory fuzz RUNS=$(or $(RUNS),1000000)
	$(MAKE) --no-print-directory torture SECONDS=$(or $(SECONDS),1800)

# make test-asan [TESTS="tests/test_json.py ..."]. The allocator of the sanitizer can hang in a child that is forked while other
# threads allocate, which stateful loaders do, so their tests are skipped.
test-asan: build/asan/installed
	LD_PRELOAD="$(call runtime,libasan.so) $(call runtime,libstdc++.so)" build/asan/bin/python -m pytest -q $(PARALLEL) \
	  -k "not stateful and not torchdata" $(TESTS)

test-tsan: build/tsan/installed
	setarch -R env LD_PRELOAD="$(call runtime,libtsan.so)" build/tsan/bin/python -m pytest -q tests/test_threads.py

# Lines and branches of Python and of C that make test reaches; a report in build/coverage
GCOVR = -r . --gcov-ignore-parse-errors negative_hits.warn_once_per_file # threads count at the same time
coverage: build/gcov/installed
	$(PIP) --python build/gcov install -q --group coverage
	find build/gcov/cmake -name '*.gcda' -delete
	build/gcov/bin/python -m coverage erase
	-build/gcov/bin/python -m coverage run -m pytest -q $(PARALLEL)
	build/gcov/bin/python -m coverage combine -q
	build/gcov/bin/python -m coverage html -q
	build/gcov/bin/python -m coverage report --skip-covered | tee build/coverage/python.txt
	build/gcov/bin/python -m gcovr $(GCOVR) --txt build/coverage/c.txt build/gcov/cmake
	build/gcov/bin/python -m gcovr $(GCOVR) --txt-metric branch --txt build/coverage/c-branches.txt build/gcov/cmake
	tail -n 4 build/coverage/c.txt build/coverage/c-branches.txt

# Build again only when C files, or the list of modules, change.
SOURCES := $(shell find csrc mmapds -type d -not -name __pycache__) $(wildcard csrc/*.[ch] csrc/*/*.[ch] csrc/CMakeLists.txt)
$(STAMP): pyproject.toml constraints.txt $(SOURCES)
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q 'pip>=25.3' # for --group
	$(PIP) install -q --config-settings=cmake.define.MMAPDS_WERROR=ON -e '.[torch]' --group dev
	touch $@

# make test-free-threaded PYTHON=python3.14t: what threads share, by a Python without a GIL. orjson has no wheel for it, and needs
# Rust. If an import switched the GIL on, these tests would pass without testing it, so that is an error.
FREE_TESTS ?= threads dataset samplers loader native json orders views collate fields pack_collate packing token_budget blocks parts \
  parquet
test-free-threaded: build/free-threaded/installed
	build/free-threaded/bin/python -c 'import mmapds._native, numpy, orjson, torch, xxhash, sys; sys.exit(sys._is_gil_enabled())'
	build/free-threaded/bin/python -m pytest -q -p no:cacheprovider $(FREE_TESTS:%=tests/test_%.py)

build/free-threaded/installed: pyproject.toml $(SOURCES)
	$(PYTHON) -m venv $(@D)
	ORJSON_BUILD_FREETHREADED=1 $(@D)/bin/python -m pip --disable-pip-version-check install -q \
	  --config-settings=build-dir=$(@D)/cmake -e '.[torch,parquet,hdf5,gzip]' hypothesis msgspec pytest tfrecord torchdata
	touch $@

$(VENV)/.demo: pyproject.toml constraints.txt $(SOURCES)
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -e '.[torch]' # not quiet: shows the downloads
	touch $@

build/audit/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check -q 'pip>=25.3'
	PIP_CONSTRAINT=constraints.txt $(@D)/bin/python -m pip install --disable-pip-version-check -q --group audit
	touch $@

# make dist [PYTHONS="python3.11 python3.13"]: the sdist, and the wheel built from it, as on a platform without a
# wheel. Both are audited. Then the wheel is installed by itself on each Python, tried and tested.
AUDIT   := build/audit/bin
PYTHONS ?= $(PYTHON)
dist: $(STAMP) build/audit/installed
	rm -rf dist
	$(VENV)/bin/python -m build -q -o dist .
	$(AUDIT)/validate-pyproject pyproject.toml
	$(AUDIT)/cffconvert --validate -i CITATION.cff
	$(AUDIT)/sp-repo-review .
	$(AUDIT)/zizmor -q --offline --no-progress --persona auditor .github
	$(AUDIT)/twine check --strict dist/*
	$(AUDIT)/check-wheel-contents dist/*.whl
	$(AUDIT)/abi3audit --strict dist/*.whl
	$(AUDIT)/python tests/support/recipe.py
	for python in $(PYTHONS); do $(MAKE) try-wheel PYTHON=$$python || exit; done

try-wheel:
	rm -rf build/installed
	$(PYTHON) -m venv build/installed
	build/installed/bin/python -m pip install --disable-pip-version-check -q 'pip>=25.1' # for --group
	build/installed/bin/python -m pip install --disable-pip-version-check -q dist/*.whl --group installed
	build/installed/bin/python -P tests/support/installed.py
	$(MAKE) test-installed PYTHON=$(abspath build/installed/bin/python)

# Tests of the installed wheel, copied away from the source tree. PYTHON must have the wheel.
INSTALLED_TESTS := bounds index json json_lines locks native orders
test-installed:
	rm -rf build/tests && mkdir -p build/tests
	cp -R csrc docs tests pyproject.toml build/tests
	cd build/tests && $(PYTHON) -m pytest -q -p no:cacheprovider $(INSTALLED_TESTS:%=tests/test_%.py)

clean:
	rm -rf $(VENV) build dist demo
