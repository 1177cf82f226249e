# make run    a private demo: php-fpm with two shards behind NGINX on 127.0.0.1:8080; Ctrl-C ends it
# make test   every test, with real php-fpm and NGINX; installs what is missing
# make lint   format, clippy, documentation
# make soak   mixed faults at random under load: MINUTES=30 SEED=1; two minutes of it are part of make test
# make deb    a package for Debian and Ubuntu, in target/packages (docs/packages.md)
# make bench  php-fpm's own reload beside a rolling restart, under the same load

MINUTES ?= 30
SEED ?= 1

.PHONY: run test lint soak bench setup deb

setup:
	@tests/setup.sh

run: setup
	@cargo build --quiet --locked
	@etc/demo/run.sh target/debug/polyfpm

# A process for each test where nextest is installed; else one test at a time, as tests hand sockets to the programs they start.
test: setup
	@if cargo nextest --version >/dev/null 2>&1; then \
		cargo nextest run --locked --profile $(if $(CI),ci,default) ; \
	else \
		cargo test --locked --lib --bins --examples --test floors --test sim && cargo test --locked --test it -- --test-threads=1 ; \
	fi
	@cargo test --quiet --locked --doc

lint:
	@cargo fmt --check
	@cargo clippy --quiet --all-targets --locked -- -D warnings
	@RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --document-private-items --locked

soak: setup
	@SOAK_SECONDS=$$(( $(MINUTES) * 60 )) SOAK_SEED=$(SEED) \
		cargo test --quiet --locked --test it -- --nocapture --exact faults::soak::mixed_faults_lose_nothing

# About three minutes after the build; PART=shards, restarts or a_thousand_pools runs one of them. The profile is a release build that
# links in seconds instead of minutes.
PART =
bench: setup
	@cargo test --quiet --profile ci --locked --test it -- --ignored --nocapture --test-threads=1 bench::$(PART)

deb:
	@packaging/build.sh deb
