# What a person types. Plain `make` prints this file's targets from their `##` remarks, in the order of the file.
SHELL := bash
.SHELLFLAGS := -o errexit -o nounset -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Make hands these to the scripts, from its environment or its command line: PYTHON (interpreter for .venv),
# STEADYRAY_HOME (clusters and runs), STEADYRAY_CACHE (the installer), PYTEST_ARGS, UPGRADE.
ENV ?= local
unexport PYTHONDONTWRITEBYTECODE # see scripts/lib.sh
STEADYRAY := .venv/bin/steadyray

##@ Start here

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^##@ /{printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## /{printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup ## Cluster, training on real data, four faults, report, clean-up (about four minutes)
	@.venv/bin/python scripts/demo.py

.PHONY: setup
setup: ## Make .venv from the hashed locks (a second run installs nothing)
	@scripts/setup

##@ Cluster

.PHONY: cluster-up
cluster-up: setup ## Start the cluster of a profile and wait for it (ENV=local CLUSTER_ARGS=--free-ports)
	@$(STEADYRAY) cluster up --profile $(ENV) $(CLUSTER_ARGS)

.PHONY: cluster-status
cluster-status: setup ## Nodes by group, demand, what is missing and why (ENV=local)
	@$(STEADYRAY) cluster status --name $(ENV)

.PHONY: cluster-down
cluster-down: setup ## End the cluster and everything it started (ENV=local)
	@$(STEADYRAY) cluster down --name $(ENV)

##@ Tests

.PHONY: test
test: setup ## Every test, quickest first
	@scripts/test

.PHONY: test-policy
test-policy: setup ## Decisions: tables and invariants, no process but pytest
	@scripts/test policy

.PHONY: test-meta
test-meta: setup ## The repository itself: help texts, docs against code, layers
	@scripts/test meta

.PHONY: test-report
test-report: setup ## Ledger, report and live view
	@scripts/test report

.PHONY: test-training
test-training: setup ## Training library on real Ray: lost, frozen and looping ranks, checkpoints
	@scripts/test training

.PHONY: test-cluster
test-cluster: setup ## Local clusters: up, down, scale, drain, head restart, leftovers
	@scripts/test cluster

.PHONY: test-supervisor
test-supervisor: setup ## Supervisor on real clusters: driver, head and whole cluster lost
	@scripts/test supervisor

.PHONY: test-demo
test-demo: setup ## The demonstration as it is, and interrupted in the middle
	@scripts/test demo

.PHONY: test-pythons
test-pythons: ## The pure parts on each of Python 3.11, 3.12 and 3.13 that is found
	@scripts/test-pythons

##@ Form

.PHONY: lint
lint: setup ## ruff, shellcheck, import layers, rendered files, mypy --strict
	@scripts/lint

.PHONY: fmt
fmt: setup ## Format and mend what ruff can mend
	@.venv/bin/ruff check --fix --quiet .
	@.venv/bin/ruff format --quiet .

.PHONY: check
check: lint test-pythons test ## All that CI runs

##@ Generated files

.PHONY: lock
lock: ## Write the hashed locks from the pyproject files (UPGRADE=1 takes the newest)
	@scripts/lock

.PHONY: render
render: setup ## Write cluster/rendered from all profiles
	@$(STEADYRAY) cluster render

.PHONY: docs
docs: setup ## Write docs/cli.md from the commands
	@scripts/docs > docs/cli.md

##@ Numbers

.PHONY: bench-quick
bench-quick: setup ## Recovery, start-up, throughput and memory against peers, into docs/benchmarks.md
	@$(STEADYRAY) bench quick

##@ Cleaning

.PHONY: clean
clean: ## Remove .venv and tool caches; runs and clusters stay (see cluster-down)
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build training_image/build
