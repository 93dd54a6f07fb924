# What there is to do: make help

PREFIX ?= /usr
SYSCONFDIR ?= /etc
CARGO ?= cargo
CARGO_BUILD_FLAGS ?=
INSTALL ?= install

TARGET_DIR := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
# For an older glibc than this machine's (GLIBC=2.17), or for another architecture (TARGET=aarch64-unknown-linux-gnu):
# zig links against any version of glibc, for any architecture. Empty: for this machine, with its own linker.
GLIBC ?=
TARGET ?= $(if $(GLIBC),$(shell uname -m)-unknown-linux-gnu)
ifneq ($(TARGET),)
BUILD ?= build/$(TARGET)$(if $(GLIBC),-glibc$(GLIBC))
ARCH := $(firstword $(subst -, ,$(TARGET)))
LINKER_VARIABLES := CARGO_TARGET_$(shell echo '$(TARGET)' | tr a-z- A-Z_)
# On x86-64 Rust would tell zig to use Rust's linker. A folder of its own, since cargo builds everything anew when it
# is given another linker. zig gives no build ID unless it is told to, and before 0.14 a library never one.
BUILD_FLAGS := -Clink-arg=-Wl,--build-id=sha1 $(if $(filter x86_64,$(ARCH)),-Clinker-features=-lld)
BUILD_ENVIRONMENT := $(LINKER_VARIABLES)_LINKER="$(CURDIR)/scripts/zig-cc" \
	NETACC_ZIG_TARGET="$(ARCH)-linux-gnu$(addprefix .,$(GLIBC))" CARGO_TARGET_DIR="$(TARGET_DIR)/zig"
RELEASE_DIR := $(TARGET_DIR)/zig/$(TARGET)/release
CARGO_BUILD_FLAGS += --target $(TARGET)
else
BUILD ?= build
ARCH := $(shell uname -m)
RELEASE_DIR := $(TARGET_DIR)/release
BUILD_FLAGS :=
BUILD_ENVIRONMENT :=
endif
# A failure of the script ends the recipe.
BUILD_ENVIRONMENT := flags=$$(scripts/rustflags $(BUILD_FLAGS)) && $(BUILD_ENVIRONMENT) CARGO_ENCODED_RUSTFLAGS="$$flags"
LIBRARY := libnetacc-preload.so
PROGRAMS := netacc_run netacc_ss netacc_check netacc_ctl netacc_bench
SCRIPTS := run_with_netacc
COMPLETED := $(PROGRAMS) $(SCRIPTS)
BUILT := $(addprefix $(BUILD)/,$(LIBRARY) $(PROGRAMS))
COMPLETIONS := $(BUILD)/completions
PAGES := $(patsubst %,$(BUILD)/%,$(wildcard man/*.[1-8]))
DOCUMENTS := README.md CHANGELOG.md docs/DEPLOY.md docs/COMPATIBILITY.md docs/reference/calls.md docs/SECURITY.md \
	docs/RDMA.md docs/DEBUGGING.md
DOCS := $(addprefix $(BUILD)/doc/,$(notdir $(DOCUMENTS))) LICENSE NOTICE
# What the tools show as their version; nothing where the sources are not a checkout of their own.
COMMIT ?= $(shell test ! -e .git || git describe --always --exclude='*' --abbrev=12 --dirty=-modified 2>/dev/null)

# Where the system's dynamic linker looks: Debian's folder of the architecture, then lib64. No compiler is asked, since what
# was built is also installed where there is none.
LIBDIR ?= $(firstword $(wildcard $(PREFIX)/lib/$(ARCH)-linux-gnu) $(wildcard $(PREFIX)/lib64) $(PREFIX)/lib)

# Scripts name the library as /lib64/NAME, wherever else it lies: there is a link to it in that folder, which is /usr/lib64 on a
# system whose layout is not known yet. Empty: none.
LIB64 ?= $(if $(DESTDIR),/usr/lib64,$(wildcard /lib64))
LINK64 := $(if $(LIB64),$(DESTDIR)$(LIB64)/$(LIBRARY))

BINDIR := $(DESTDIR)$(PREFIX)/bin
CONFIG := $(DESTDIR)$(SYSCONFDIR)/netacc.conf
MANDIR := $(DESTDIR)$(PREFIX)/share/man
SHARED := $(DESTDIR)$(PREFIX)/share/netacc
DOCDIR := $(DESTDIR)$(PREFIX)/share/doc/netacc
BASHDIR := $(PREFIX)/share/bash-completion/completions
FISHDIR := $(PREFIX)/share/fish/vendor_completions.d
# Debian's zsh looks elsewhere than the others.
ZSHDIR ?= $(firstword $(wildcard $(PREFIX)/share/zsh/vendor-completions) $(PREFIX)/share/zsh/site-functions)
# ldconfig concerns this machine, not a folder to be packaged.
LDCONFIG := $(if $(DESTDIR),true,PATH="$$PATH:/usr/sbin:/sbin" ldconfig)

.PHONY: all texts install uninstall dist deb rpm check test test-rdma conformance storm demo bench bench-rdma lint fmt clean help need-cargo
.DEFAULT_GOAL := all

# By rename, so that a running program keeps the library it has mapped.
all: need-cargo texts
	$(BUILD_ENVIRONMENT) $(CARGO) build --locked --release --workspace --exclude xtask --exclude netacc-fabric --exclude netacc-conformance $(CARGO_BUILD_FLAGS)
	@mkdir -p "$(BUILD)"
	@cp -p "$(RELEASE_DIR)/libnetacc_preload.so" "$(BUILD)/$(LIBRARY).new"
	@for program in $(PROGRAMS); do cp -p "$(RELEASE_DIR)/$$program" "$(BUILD)/$$program.new" || exit; done
	@$(XTASK) stamp "$(COMMIT)" $(PROGRAMS:%="$(BUILD)/%.new")
	@for file in $(BUILT); do mv -f "$$file.new" "$$file" || exit; done
	@echo "built: $(BUILT)"

# A program for this machine, whatever machine the others are for.
XTASK = CARGO_ENCODED_RUSTFLAGS="$$(scripts/rustflags)" $(CARGO) run --locked --quiet --release -p xtask --

# Completions, manual pages and the documents as they are installed.
texts: need-cargo
	@$(XTASK) texts "$(BUILD)" $(DOCUMENTS)

# Does not build what is there already, so that root needs no compiler.
install:
	@for file in $(BUILT) $(COMPLETIONS) $(PAGES) $(DOCS); do test -e "$$file" || exec $(MAKE) all; done
	$(INSTALL) -d "$(BINDIR)" "$(DESTDIR)$(LIBDIR)" "$(dir $(CONFIG))"
	$(INSTALL) -m 755 $(addprefix $(BUILD)/,$(PROGRAMS)) $(addprefix dist/,$(SCRIPTS)) "$(BINDIR)"
	$(INSTALL) -m 644 "$(BUILD)/$(LIBRARY)" "$(DESTDIR)$(LIBDIR)/$(LIBRARY).new"
	@mv -f "$(DESTDIR)$(LIBDIR)/$(LIBRARY).new" "$(DESTDIR)$(LIBDIR)/$(LIBRARY)"
	@set -e; test -z "$(LINK64)" || test "$(LINK64)" -ef "$(DESTDIR)$(LIBDIR)/$(LIBRARY)" || { \
		$(INSTALL) -d "$(DESTDIR)$(LIB64)"; to="$(LIBDIR)"; \
		test -z "$(DESTDIR)" || to="$$(realpath -m --relative-to="$(LIB64)" "$(LIBDIR)")"; \
		ln -sfn "$$to/$(LIBRARY)" "$(LINK64)" || echo "no link: $(LINK64)"; }
	@if test -e "$(CONFIG)"; then echo "kept: $(CONFIG)"; \
	else $(INSTALL) -m 644 dist/netacc.conf "$(CONFIG)"; fi
	@set -e; for page in $(PAGES); do \
		$(INSTALL) -D -m 644 "$$page" "$(MANDIR)/man$${page##*.}/$${page##*/}"; done
	$(INSTALL) -D -m 644 dist/grafana-netacc.json "$(SHARED)/grafana-netacc.json"
	$(INSTALL) -D -m 644 -t "$(DESTDIR)$(BASHDIR)" $(COMPLETED:%=$(COMPLETIONS)/bash/%)
	$(INSTALL) -D -m 644 -t "$(DESTDIR)$(ZSHDIR)" $(COMPLETED:%=$(COMPLETIONS)/zsh/_%)
	$(INSTALL) -D -m 644 -t "$(DESTDIR)$(FISHDIR)" $(COMPLETED:%=$(COMPLETIONS)/fish/%.fish)
	$(INSTALL) -D -m 644 -t "$(DOCDIR)" $(DOCS)
	$(INSTALL) -D -m 644 -t "$(DOCDIR)/examples" $(wildcard dist/examples/*)
	@$(LDCONFIG)
	@echo "installed: $(addprefix $(BINDIR)/,$(PROGRAMS)) $(DESTDIR)$(LIBDIR)/$(LIBRARY) $(CONFIG)"

# A configuration that somebody has changed stays.
uninstall:
	rm -f $(foreach p,$(PROGRAMS) $(SCRIPTS),"$(BINDIR)/$(p)") "$(DESTDIR)$(LIBDIR)/$(LIBRARY)"
	@if test -L "$(LINK64)" && ! test -e "$(LINK64)"; then rm -f "$(LINK64)"; fi
	rm -f "$(SHARED)/grafana-netacc.json"
	@rmdir "$(SHARED)" 2>/dev/null || true
	@for page in $(PAGES); do rm -f "$(MANDIR)/man$${page##*.}/$${page##*/}"; done
	rm -f $(COMPLETED:%="$(DESTDIR)$(BASHDIR)/%") $(COMPLETED:%="$(DESTDIR)$(ZSHDIR)/_%") \
		$(COMPLETED:%="$(DESTDIR)$(FISHDIR)/%.fish")
	rm -rf "$(DOCDIR)"
	@if cmp -s dist/netacc.conf "$(CONFIG)"; then rm -f "$(CONFIG)"; \
	elif test -e "$(CONFIG)"; then echo "kept, because it was changed: $(CONFIG)"; fi
	@$(LDCONFIG)

include dist/packages.mk

check:
	scripts/deps check
	tests/run --quick $(ARGS)

test:
	scripts/deps test
	tests/run --lints $(ARGS)

test-rdma:
	scripts/deps rdma
	tests/run --whole rdma $(ARGS)

conformance:
	scripts/deps conformance
	tests/run --whole conformance $(ARGS)

storm: all
	@$(MAKE) --no-print-directory -C tests/storm
	tests/storm/run --seconds 600 $(ARGS)

demo:
	scripts/deps demo
	@$(MAKE) --no-print-directory all
	scripts/demo $(ARGS)

bench:
	scripts/deps bench
	@$(MAKE) --no-print-directory all
	scripts/bench $(ARGS)

bench-rdma:
	scripts/deps bench-rdma
	@$(MAKE) --no-print-directory all
	@$(MAKE) --no-print-directory -C tests/rdma
	@$(MAKE) --no-print-directory -C benches/rdma
	benches/rdma/run $(ARGS)

lint: need-cargo
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

fmt: need-cargo
	$(CARGO) fmt --all

clean: need-cargo
	$(CARGO) clean
	rm -rf "$(BUILD)"

need-cargo:
	@command -v "$(CARGO)" >/dev/null || { \
		echo "cargo is missing. Rust comes from https://rustup.rs:" >&2; \
		echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" >&2; \
		echo "then open a new shell, or run: . \"\$$HOME/.cargo/env\"" >&2; exit 1; }

help:
	@echo "make            build the library and the programs into $(BUILD)/"
	@echo "make install    to PREFIX=$(PREFIX), LIBDIR=$(LIBDIR), SYSCONFDIR=$(SYSCONFDIR), below DESTDIR=$(DESTDIR)"
	@echo "make uninstall  take it away again; a changed configuration stays"
	@echo "make dist       an archive with an installer; GLIBC=2.17: for any Linux with that glibc or a newer one"
	@echo "make deb        a Debian package;  make rpm  an RPM"
	@echo "make demo       redis on TCP and on NetACC in turn, one table (ARGS=--quick: 30 seconds)"
	@echo "make bench      the usual cases, into $(BUILD)/bench.json (ARGS=--list names all, ARGS='--only real' runs all real servers)"
	@echo "make bench-rdma TCP, rsocket, SMC-R and NetACC on soft RDMA devices, into $(BUILD)/bench-rdma.json (ARGS=--short)"
	@echo "make check      format, lints, unit tests, small programs, the comparison with TCP: minutes"
	@echo "make test       all that a change must pass, with real programs (tests/README.md; ARGS=--list names the tests)"
	@echo "make test-rdma  all tests of RDMA, in a virtual machine with soft RoCE and soft iWARP"
	@echo "make conformance  all of CPython's, memcached's and redis' own tests, plain and accelerated"
	@echo "make storm      10 minutes of fork, exec, kill, demote and promote at once (ARGS='--seconds 60 --seed 1')"
	@echo "make lint       formatting and clippy;  make fmt formats"
	@echo "make clean      remove what was built"
	@echo "dist/release v$(VERSION)  a release from its tag, tried in clean systems (docs/CONTRIBUTING.md; --dry-run before there is a tag)"
