# Targets for everything that is done with this project. Each target does its own set-up.
#
#   make demo    shows the main functions: captures through a router, live namespaces, the toll table
#   make test    runs every test, with a short fuzz run
#   make bench   prints the toll table, and what routes cost
#   make install installs program, manual pages and completions below PREFIX (default /usr/local), the
#                systemd unit, and /etc/default/tollway
#   make check   checks formatting, words (scripts/prose.txt), clippy, imports between modules, documentation,
#                licences
#   make fuzz    runs each fuzz target for FUZZ_SECONDS (default 600)
#   make soak    opens and closes ports SOAK_CYCLES times (default 10000) and checks for leaks; as root
#   make loom    runs shared tables in every order that the memory model allows; seconds, part of make test
#   make oracle  compares Tollway with the kernel on random packets. KIND=filter: random rules, KIND=router:
#                random routers, KIND=machine: routers with VLAN and VRF devices in a virtual machine;
#                KIND=bridge: random bridges that change, as root; KIND=rules: rules against their meaning, a
#                million packets each. SEED=n selects other cases, CASES=n their number
#   make routes  reads and follows ROUTES routes (default 1000000) of the kernel: time, memory; as root
#   make bgp     receives 100,000 routes by BGP from FRR while other traffic runs; as root
#   make leaks   measures how long the XDP path goes on with what a command forbids, LEAKS times per change
#                (default 20), idle and beside four busy loops; as root
#   make machines tests network cards in virtual machines: pings, streams, and losses at events of routers and
#                devices; as root, some minutes each, MODELS="igb virtio-net-pci e1000e vmxnet3" with the
#                kernels of SUITES="trixie-backports trixie bookworm"; before, the tc programs with each kernel
#   make workers runs the tests that measure times once more, with routers of two workers; as root, three minutes
#   make miri    runs what owns memory under Miri (needs a nightly toolchain); five minutes

SHELL := /bin/bash
FUZZ_SECONDS ?= 600
SOAK_CYCLES ?= 10000
KIND ?= filter
SEED ?= $(shell date +%s)
CASES ?=
ROUTES ?= 1000000
BGP_ROUTES ?= 100000
LEAKS ?= 20
MODELS ?= igb virtio-net-pci e1000e vmxnet3
SUITES ?= trixie-backports trixie bookworm
TOOLS := target/tools
PREFIX ?= /usr/local
UNITS ?= $(PREFIX)/lib/systemd/system
TOLLWAY := $${CARGO_TARGET_DIR:-target}/release/tollway

.PHONY: demo test bench install check fuzz soak loom oracle routes bgp leaks machines workers miri setup build deny

build:
	cargo build --release --locked

setup:
	@scripts/setup.sh

demo: setup build
	@scripts/demo.sh

test: setup
	scripts/test.sh
	$(MAKE) loom

bench: build
	target/release/tollway lab tolls
	target/release/tollway lab fib

install: build
	install -Dm755 $(TOLLWAY) $(DESTDIR)$(PREFIX)/bin/tollway
	install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions zsh/site-functions fish/vendor_completions.d)
	$(TOLLWAY) man --out $(DESTDIR)$(PREFIX)/share/man/man1
	$(TOLLWAY) completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/tollway
	$(TOLLWAY) completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_tollway
	$(TOLLWAY) completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/tollway.fish
	install -d $(DESTDIR)$(UNITS)
	sed 's:/usr/local/bin:$(PREFIX)/bin:' dist/tollway.service > $(DESTDIR)$(UNITS)/tollway.service
	test -e $(DESTDIR)/etc/default/tollway || \
	  install -Dm644 dist/tollway.default $(DESTDIR)/etc/default/tollway

check: setup deny
	cargo fmt --all --check
	scripts/prose.sh
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo test -p tollway-imports --locked
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
	$(TOOLS)/bin/cargo-deny --locked check bans licenses sources

deny:
	@test -x $(TOOLS)/bin/cargo-deny || cargo install --quiet --debug --root $(TOOLS) --locked cargo-deny

fuzz:
	scripts/fuzz.sh $(FUZZ_SECONDS)

# With CI set, a test that cannot run here fails instead of being left out.
soak: setup
	CI=1 TOLLWAY_CYCLES=$(SOAK_CYCLES) \
	  cargo test -p tollway --test af_xdp --locked -- ports_come_and_go_without_a_leak

# This build has a target directory of its own, because --cfg loom rebuilds every crate.
loom:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-target}/loom \
	  cargo test -p tollway-dataplane --lib --locked -- models::

# tollway-firewall has the tests of iptables and ipfw, tollway-rules that of nft, whose text the kernel's nft reads.
oracle: TESTS = $(if $(filter rules,$(KIND)),-p tollway-firewall -p tollway-rules --lib -- --nocapture a_million,-p tollway --test oracle -- $(KIND))
oracle: setup
	TOLLWAY_ORACLE_SEED=$(SEED) TOLLWAY_ORACLE_CASES=$(CASES) cargo test --locked $(TESTS)

routes: setup
	TOLLWAY_RIB_ROUTES=$(ROUTES) cargo test -p tollway --test controller --locked -- many_routes
	CI=1 TOLLWAY_ROUTES=$(ROUTES) cargo test -p tollway --test router --locked -- many_routes

bgp: setup
	CI=1 TOLLWAY_BGP_ROUTES=$(BGP_ROUTES) \
	  cargo test --release -p tollway --test frr --locked -- routes_that_arrive_by_bgp_are_active

leaks: setup
	CI=1 TOLLWAY_LEAKS=$(LEAKS) cargo test -p tollway --test router --locked -- forbidden_flows

machines: setup
	for suite in $(SUITES); do \
	  CI=1 TOLLWAY_QEMU_SUITE=$$suite cargo test -p tollway --test tc --locked -- virtual_machine || exit 1; \
	done
	CI=1 TOLLWAY_CARDS="$(MODELS)" TOLLWAY_CARDS_SUITES="$(SUITES)" \
	  cargo test -p tollway --test system --locked -- cards

workers: setup
	CI=1 TOLLWAY_WORKERS=2 TOLLWAY_TESTS=alone \
	  cargo test -p tollway --test af_xdp --test router --locked -- --skip _in_a_virtual_machine

miri:
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=8 \
	  cargo +nightly miri test -p tollway-worker --lib -- ports::af_xdp::ring:: ports::af_xdp::custody::
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 \
	  cargo +nightly miri test -p tollway-dataplane --lib -- --skip host::tests:: --skip fib::threads::
	# Under stacked borrows, each lookup in a large shared slice takes too long.
	MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-tree-borrows" \
	  cargo +nightly miri test -p tollway-dataplane --lib -- epoch:: fib::threads::
