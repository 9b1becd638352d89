# Everything real is in meson.build, tools/setup and tests/run; this gives it short names.

PREFIX ?= /usr/local
DESTDIR ?=
export PROMPT ?=

PYTHON ?= python3

all: build/build.ninja
	@ninja -C build product

build/build.ninja:
	@tools/setup build
	@meson setup build

run: build/build.ninja
	@ninja -C build moxie
ifeq ($(PROMPT),)
	@printf '\nAsking "What is the capital of France?":\n\n'
	@build/moxie run --temp 0 -p 'What is the capital of France?'
	@printf '\nNow you. It knows capitals, chemical symbols, sums, spelling, counting and short stories.\n'
	@build/moxie chat --temp 0
else
	@build/moxie run --temp 0 -p "$$PROMPT"
endif

test:
	@tools/setup test
	@$(PYTHON) tests/run short

test-long:
	@tools/setup test-long
	@$(PYTHON) tests/run long

load:
	@tools/setup test
	@$(PYTHON) tests/run load

soak:
	@tools/setup test
	@$(PYTHON) tests/run soak

bench: all
	@ninja -C build --quiet tests/check/check bench/tokenizer
	@build/tests/check/check --bench
	@build/bench/tokenizer models/demo
	@build/moxie bench -m models/demo -d 0,2k

asan:
	@tools/setup build
	@$(PYTHON) tests/run build-asan

install: all
	@meson configure build -Dprefix=$(PREFIX)
	@ninja -C build --quiet product
	@meson install -C build --no-rebuild --quiet --destdir "$(DESTDIR)"
	@echo "installed in $(DESTDIR)$(PREFIX)"

clean:
	@rm -rf build build-*

help:
	@echo 'make            build the program (build/moxie) and the library'
	@echo 'make run        chat with the demo model; PROMPT="..." asks it one question'
	@echo 'make test       what a change must pass, also under the address sanitizer (minutes)'
	@echo 'make test-long  thread sanitizer, fuzzing, every failing allocation, wide shapes, clang, emulated ARM (over half an hour)'
	@echo 'make load       the server with 32 streams for five minutes'
	@echo 'make soak       mixed traffic for twenty minutes (MINUTES=N), with a report in bench/results/soak.md'
	@echo 'make bench      rates of the kernels and of the demo model'
	@echo 'make asan       the program with the address and undefined-behaviour sanitizers (build-asan/moxie)'
	@echo 'make install    program, manual, completions, library, headers and demo model; PREFIX (/usr/local) and DESTDIR'
	@echo 'make clean      remove every build folder'

.PHONY: all run test test-long load soak bench asan install clean help
