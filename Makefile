# The front door: short names for what CMake does.  `make help` lists them.  Everything is built in build/PRESET.

MODEL        := models/tiny-t2v
PROMPT       := a red star orbits over a blue checker background, camera pans left
DEMO_FLAGS   :=
PREFIX       := /usr/local
FUZZ_SECONDS := 600
JOBS         := $(shell nproc 2>/dev/null || echo 2)
MAKEFLAGS    += --no-print-directory

configure = cmake --preset $(1) >/dev/null
compile   = cmake --build --preset $(1) --parallel $(JOBS)

.PHONY: help demo build test test-cuda bench-cuda asan tsan fuzz coverage mutants install clean dependencies

help:
	@echo "make demo      install what is missing, build, generate a clip with dense attention and with MC-Sparse;"
	@echo "               PROMPT=\"...\" is the caption, DEMO_FLAGS=\"--steps 8\" adds options of mcsa generate"
	@echo "make build     install what is missing, build libmcsa, the command and the tests in build/release"
	@echo "make test      build, then run all tests"
	@echo "make test-cuda compile the CUDA part (nvcc is fetched where there is none), check what the compiler says, and"
	@echo "               run what needs a GPU (compute capability 9.0); says what it skipped"
	@echo "make bench-cuda  the tables about a GPU, with cuDNN beside them; JSON in build/bench-cuda"
	@echo "make asan      the tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make tsan      the tests under ThreadSanitizer (clang)"
	@echo "make fuzz      every fuzz target for FUZZ_SECONDS=$(FUZZ_SECONDS) under both sanitizers (clang)"
	@echo "make coverage  the tests once more, counting the lines of src/ that they run (gcc); fails below 90 %"
	@echo "make mutants   plants the faults of tests/mutants one by one; fails when a test does not notice its own"
	@echo "make install   header, library, command, find_package and pkg-config files to PREFIX ($(PREFIX))"
	@echo "make clean     remove build/ and demo/"

dependencies:
	@scripts/dependencies.sh

demo: dependencies
	$(call configure,release)
	$(call compile,release) --target mcsa_command
	@mkdir -p demo
	build/release/mcsa generate --compare --model $(MODEL) --prompt "$(PROMPT)" \
	    --out demo/clip.mp4 --out demo/clip.png --report demo/report.json $(DEMO_FLAGS)
	@echo
	@echo "MC-Sparse: demo/clip.mp4        all frames: demo/clip.png        report: demo/report.json"
	@echo "dense:     demo/clip-dense.mp4  all frames: demo/clip-dense.png"

build: dependencies
	$(call configure,release)
	$(call compile,release)

test: build
	ctest --preset release

test-cuda:
	@scripts/dependencies.sh --cuda
	cmake --preset release -DMCSA_CUDA=ON >/dev/null
	$(call compile,release)
	scripts/check_cuda.sh build/release
	ctest --preset release --verbose --label-regex '^cuda$$'

bench-cuda:
	@scripts/dependencies.sh --cuda
	cmake --preset release -DMCSA_CUDA=ON >/dev/null
	$(call compile,release)
	scripts/bench_cuda.sh build/release/mcsa build/bench-cuda

asan: dependencies
	$(call configure,asan)
	$(call compile,asan)
	ctest --preset asan

tsan:
	@scripts/dependencies.sh --sanitizers
	$(call configure,tsan)
	$(call compile,tsan)
	ctest --preset tsan

fuzz:
	@scripts/dependencies.sh --sanitizers
	$(call configure,fuzz)
	$(call compile,fuzz)
	scripts/fuzz.sh $(FUZZ_SECONDS)

coverage: dependencies
	$(call configure,coverage)
	$(call compile,coverage)
	find build/coverage -name '*.gcda' -delete
	ctest --preset coverage
	scripts/coverage.sh build/coverage 90

mutants: dependencies
	scripts/mutants.sh

install: build
	cmake --install build/release --prefix $(PREFIX)

clean:
	rm -rf build demo
