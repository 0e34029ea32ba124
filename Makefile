# Everything that is done with this project, each target with its own set-up.
#
#   make demo    the main job, shown: captures through a router, live namespaces, the toll table
#   make test    every test, a short fuzz run included
#   make bench   the toll table, and what routes cost
#   make install program, manual pages and completions below PREFIX (default /usr/local), and the
#                systemd unit with its /etc/default/tollway
#   make check   formatting, clippy, documentation, licences
#   make fuzz    the fuzz targets for FUZZ_SECONDS each (default 600)
#   make soak    ports opened and closed SOAK_CYCLES times (default 10000) without a leak; as root
#   make loom    shared tables in every order that the memory model allows; seconds, part of make test
#   make oracle  what Tollway does against what the kernel does, with random packets; KIND=filter: random rules,
#                KIND=router: random routers, KIND=machine: routers with VLAN and VRF devices, in a virtual
#                machine; KIND=rules: rules against what they mean, a million packets each; SEED=n and CASES=n
#                for others and for more
#   make routes  ROUTES routes (default 1000000) in the kernel are read and mirrored: time, memory; as root
#   make bgp     100,000 routes by BGP from FRR while other traffic goes on; as root
#   make leaks   how long what a command forbids goes on on the XDP path, each change LEAKS times (default 20), idle
#                and beside four busy loops; as root
#   make machines  network cards in virtual machines: pings, streams, what is lost when something happens to routers
#                and devices; as root, some minutes each, MODELS="igb virtio-net-pci e1000e vmxnet3" with the kernels of
#                SUITES="trixie-backports trixie bookworm"
#   make miri    what owns memory, under Miri (needs a nightly toolchain); five minutes

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

.PHONY: demo test bench install check fuzz soak loom oracle routes bgp leaks machines miri setup build deny

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
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
	$(TOOLS)/bin/cargo-deny --locked check bans licenses sources

deny:
	@test -x $(TOOLS)/bin/cargo-deny || cargo install --quiet --debug --root $(TOOLS) --locked cargo-deny

fuzz:
	scripts/fuzz.sh $(FUZZ_SECONDS)

# CI is set so that a test that can not run here fails rather than is left out.
soak: setup
	CI=1 TOLLWAY_CYCLES=$(SOAK_CYCLES) \
	  cargo test -p tollway --test af_xdp --locked -- ports_come_and_go_without_a_leak

# A build of its own beside the others, since every crate is built anew for it.
loom:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-target}/loom \
	  cargo test -p tollway-dataplane --lib --locked -- models::

oracle: setup
	TOLLWAY_ORACLE_SEED=$(SEED) TOLLWAY_ORACLE_CASES=$(CASES) \
	  cargo test -p tollway --locked $(if $(filter rules,$(KIND)),--lib -- --nocapture a_million,--test oracle -- $(KIND))

routes: setup
	TOLLWAY_MIRROR_ROUTES=$(ROUTES) cargo test -p tollway --test mirror --locked -- many_routes
	CI=1 TOLLWAY_ROUTES=$(ROUTES) cargo test -p tollway --test router --locked -- many_routes

bgp: setup
	CI=1 TOLLWAY_BGP_ROUTES=$(BGP_ROUTES) \
	  cargo test --release -p tollway --test frr --locked -- routes_that_arrive_by_bgp_are_in_force

leaks: setup
	CI=1 TOLLWAY_LEAKS=$(LEAKS) cargo test -p tollway --test router --locked -- what_is_forbidden

machines: setup
	CI=1 TOLLWAY_CARDS="$(MODELS)" TOLLWAY_CARDS_SUITES="$(SUITES)" \
	  cargo test -p tollway --test system --locked -- cards

miri:
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=8 \
	  cargo +nightly miri test -p tollway --lib -- ports::af_xdp::ring:: ports::af_xdp::custody::
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 \
	  cargo +nightly miri test -p tollway-dataplane --lib -- --skip host::tests:: --skip route::threads::
	# Under stacked borrows, each lookup in a large shared slice takes too long.
	MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-tree-borrows" \
	  cargo +nightly miri test -p tollway-dataplane --lib -- epoch:: route::threads::
