# Front doors to the build (CMake), the tests (CTest) and the lab (Python). Each target does its
# own set-up: see scripts/setup.sh.

.PHONY: help run test test-long model bench programs real targets fuzz pgo safety docs dist packages-check deb matrix clean
.DEFAULT_GOAL := help

help:
	@echo "make run             build, then show real work under hakmem beside other allocators"
	@echo "make run APP=\"...\"   the same with a program of your own"
	@echo "make test            build and run the tests: eight minutes on two cores"
	@echo "make test-long       all of them, whole sweeps and long ones too: under 40 minutes"
	@echo "make model           check the models of the lock-free protocols and their mutants (minutes)"
	@echo "make bench           every benchmark beside all peers (under 30 minutes)"
	@echo "make bench SUITE=... another suite: quick takes 3 minutes, hakmem bench --list shows all"
	@echo "make programs        CPU time and memory of 63 real programs under all allocators (hours; ROUNDS=5, PROGRAMS=NAME,...)"
	@echo "make targets         the tests on other targets: aarch64, musl, larger pages, huge-page modes (minutes)"
	@echo "make fuzz            fuzz correct use and misuse, both builds, FUZZ_MINUTES=15 each; findings stay in tests/fuzz/corpus"
	@echo "make real            databases, compilers, interpreters and more at length under hakmem (up to 40 minutes)"
	@echo "make pgo             build with a profile into build/pgo, and compare with release (minutes)"
	@echo "make safety          what the misuse checks cost, in paired slices (minutes)"
	@echo "make docs            the documents as a site with search, in build/site"
	@echo "make dist            all packages in dist/, built twice and compared, with checksums, SBOM and licences (minutes)"
	@echo "make packages-check  every recipe and package with every choice of options (minutes)"
	@echo "make deb             Debian packages for Debian 12, in a chroot; SUITE=bullseye, trixie for others (minutes; root)"
	@echo "make matrix          packages and ten programs on Debian 11, 12 and 13; WHEEL=FILE the wheel too (an hour; root)"
	@echo "make clean           remove build/ (and keep .venv/)"

# APP goes through the environment as it was typed: it may hold quotes and dollars.
run: export HAKLAB_APP := $(value APP)
run:
	@scripts/setup.sh run scripts/build.sh release programs
	@.venv/bin/hakmem compare --cpu auto -- build/release/bench/bench_random_mixed 10000000 400
ifdef APP
	@eval ".venv/bin/hakmem compare --rounds 5 -- $$HAKLAB_APP"
else
	@PYTHONMALLOC=malloc PYTHONHASHSEED=0 .venv/bin/hakmem compare --cpu auto --rounds 5 -- \
		/usr/bin/python3 lab/hakmem_lab/workloads/programs/objects.py 5 42
endif

# Tests that sweep or draw try other parts each day (tests/support/rotation.h); TEST_DAY=N repeats a day's.
test: TEST_DAY := $(or $(TEST_DAY),$(shell expr $$(date +%s) / 86400))
test:
	@scripts/setup.sh test scripts/build.sh release
	@echo "Tests of day $(TEST_DAY) (make test TEST_DAY=$(TEST_DAY) repeats them; make test-long runs all)"
	@TEST_DAY=$(TEST_DAY) ctest --preset quick --parallel $$(($$(nproc) * 2))

# Everything, with the time of each part at the end.
test-long:
	@scripts/setup.sh test-long scripts/build.sh release
	@env -u TEST_DAY ctest --preset release --parallel $$(($$(nproc) * 2))

model:
	@scripts/setup.sh test
	@models/run.py

bench: SUITE = full
bench:
	@scripts/setup.sh bench
	@scripts/build.sh release programs
	@.venv/bin/hakmem bench "$(SUITE)"

programs: ROUNDS = 5
programs:
	@scripts/setup.sh programs
	@scripts/build.sh release programs
	@.venv/bin/hakmem programs --rounds "$(ROUNDS)" $(if $(PROGRAMS),--programs "$(PROGRAMS)")

targets:
	@scripts/setup.sh targets
	@tests/targets/run.sh

fuzz: FUZZ_MINUTES = 15
fuzz:
	@scripts/setup.sh test
	@scripts/build.sh fuzz fuzzers
	@python3 tests/fuzz/campaign.py --build build/fuzz --minutes "$(FUZZ_MINUTES)" --keep
	@python3 tests/fuzz/campaign.py --build build/fuzz --minutes "$(FUZZ_MINUTES)" --keep --hardened

# Real programs at length, compared with glibc (docs/real-programs.md). WITHOUT="libreoffice scipy" leaves programs out;
# LIBRARY names one or more libraries; REPORT=yes writes the document's table.
real: LIBRARY = build/release/libhakmem.so
real:
	@WITHOUT="$(WITHOUT)" scripts/setup.sh real
	@scripts/build.sh release
	@.venv/bin/python -B tests/real/run.py $(LIBRARY:%=--library=%) $(WITHOUT:%=--without=%) $(if $(REPORT),--report)

# The tests' packages: the finished build must pass the API tests.
pgo:
	@scripts/setup.sh test
	@scripts/build.sh release programs
	@scripts/pgo.sh
	@.venv/bin/hakmem bench core --mode preload --with hakmem --lib pgo=build/pgo/libhakmem.so

safety:
	@scripts/setup.sh test
	@scripts/build.sh release programs
	@scripts/build.sh bench-fast hakmem
	@.venv/bin/hakmem bench core --mode preload --with hakmem --lib unchecked=build/bench-fast/libhakmem.so

docs:
	@scripts/docs.sh

# URL is where the release will lie: the recipes of Conan, Meson, vcpkg, Nix and Spack name it.
dist:
	@scripts/setup.sh dist
	@packaging/dist.sh dist $(if $(URL),--url "$(URL)") --check

deb: SUITE = bookworm
deb:
	@scripts/setup.sh deb
	@packaging/debian/check.sh --suite "$(SUITE)" build/deb

matrix:
	@scripts/setup.sh deb
	@packaging/chroots/matrix.sh $(if $(WHEEL),--wheel "$(WHEEL)")

packages-check:
	@scripts/setup.sh test
	@scripts/build.sh release hakmem
	@packaging/check.sh

clean:
	@rm -rf build
