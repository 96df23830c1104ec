# The commands of this repository. `make help` lists them.

PREFIX ?= /usr/local
CARGO ?= cargo
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
RELEASE = $(or $(CARGO_TARGET_DIR),target)/release

# $(call need,PROGRAM,HOW TO GET IT): fails with one line if PROGRAM is missing.
need = @command -v $(1) >/dev/null 2>&1 || { echo "missing: $(1). Get it: $(2)" >&2; exit 1; }
need_cargo = $(call need,$(CARGO),curl --proto =https -sSf https://sh.rustup.rs | sh)
need_gcc = $(call need,gcc,apt-get install gcc (Debian and Ubuntu) or dnf install gcc (Fedora))
need_python = $(call need,python3,apt-get install python3 python3-venv (Debian and Ubuntu) or dnf install python3 (Fedora))

.PHONY: help build demo test oracles kernels install install-c clean

help:
	@echo "make build     build the command and the library that it injects, into $(RELEASE)"
	@echo "make demo      sort 1 GiB with numpy in 512 MiB, beside no limit and (as root) the kernel's swap"
	@echo "make test      everything that CI runs; ended after 60 minutes"
	@echo "make oracles   other people's checkers of memory, with every budget; for a night"
	@echo "make kernels   a part of the suite on Debian's kernels 6.1 and 6.12, in a virtual machine; an hour"
	@echo "make install   install under PREFIX (now $(PREFIX))"
	@echo "make install-c the C library under PREFIX: header, libraries, pkg-config file, man page"
	@echo "make clean     remove what was built"

build:
	$(need_cargo)
	$(need_gcc)
	$(CARGO) build --release --locked -j $(JOBS) -p folioswap-cli -p folioswap-preload

demo: build
	$(need_python)
	@python3 demo/demo.py $(RELEASE)/folioswap

test:
	$(need_cargo)
	$(need_gcc)
	$(need_python)
	@python3 tests/run

oracles: build
	$(need_python)
	@python3 tests/oracles.py $(RELEASE)/folioswap --long

kernels: build
	$(need_python)
	@python3 tests/kernels/boot.py $(RELEASE)/folioswap

install: build
	install -d "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(PREFIX)/lib/folioswap"
	install -m 755 "$(RELEASE)/folioswap" "$(DESTDIR)$(PREFIX)/bin/folioswap"
	install -m 755 "$(RELEASE)/libfolioswap_preload.so" "$(DESTDIR)$(PREFIX)/lib/folioswap/libfolioswap_preload.so"

install-c:
	$(need_cargo)
	$(need_gcc)
	$(CARGO) build --release --locked -j $(JOBS) -p folioswap-capi
	crates/capi/install.sh "$(RELEASE)/libfolioswap_capi.a" "$(PREFIX)"

clean:
	@if command -v $(CARGO) >/dev/null 2>&1; then $(CARGO) clean; else rm -rf target; fi
	rm -rf .venv .demo
