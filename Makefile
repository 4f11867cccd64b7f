# Front doors to the build (CMake), the tests (CTest) and the lab (Python). Each target does its
# own set-up: see scripts/setup.sh.

.PHONY: help run test bench pgo safety clean
.DEFAULT_GOAL := help

help:
	@echo "make run             build, then show real work under hakmem beside other allocators"
	@echo "make run APP=\"...\"   the same with a program of your own"
	@echo "make test            build and run all tests"
	@echo "make bench           every benchmark and real program beside all peers (under 30 minutes)"
	@echo "make bench SUITE=... another suite: quick takes 3 minutes, hakmem bench --list shows all"
	@echo "make pgo             build with a profile into build/pgo, and compare with release (minutes)"
	@echo "make safety          what the misuse checks cost, in paired slices (minutes)"
	@echo "make clean           remove build/ (and keep .venv/)"

# APP goes through the environment as it was typed: it may hold quotes and dollars.
run: export HAKLAB_APP := $(value APP)
run:
	@scripts/setup.sh run
	@scripts/build.sh release programs
	@.venv/bin/hakmem demo --app "$$HAKLAB_APP"

test:
	@scripts/setup.sh test
	@scripts/build.sh release
	@ctest --preset release

bench: SUITE = full
bench:
	@scripts/setup.sh bench
	@scripts/build.sh release programs
	@.venv/bin/hakmem bench "$(SUITE)"

# The tests' packages: the finished build must pass the API tests, and valgrind counts instructions.
pgo:
	@scripts/setup.sh test
	@scripts/build.sh release programs
	@.venv/bin/hakmem pgo

safety:
	@scripts/setup.sh test
	@scripts/build.sh release programs
	@.venv/bin/hakmem safety

clean:
	@rm -rf build
