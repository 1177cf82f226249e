#!/usr/bin/env bash
# Builds the packages: packaging/build.sh deb|rpm|binary [DIRECTORY]; without DIRECTORY below target/packages.
#
# Settings, from the environment:
#   BINARY    package this polyfpm instead of building one
#   PROFILE   cargo's profile of the build (release; "ci" builds in a minute and a half instead of many)
#   REVISION  the packages' own number after polyfpm's version (1)
#
# The same source, tools and settings give the same bytes: times are those of the last commit, owners and order are fixed.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

KIND=${1:?usage: packaging/build.sh deb|rpm|binary [DIRECTORY]}
OUT=$(readlink -m "${2:-target/packages}")
PROFILE=${PROFILE:-release}
REVISION=${REVISION:-1}
GLIBC=2.28                     # that of EL 8, the oldest system in wide use
VERSION=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
MAINTAINER=${MAINTAINER:-polyfpm maintainers <maintainers@users.noreply.github.com>}
MACHINE=$(uname -m)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022

die() { echo "packaging: $*" >&2; exit 1; }
need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 && return
    command -v apt-get >/dev/null 2>&1 || die "$1 is not there; install it"
    echo "packaging: installing $2" >&2
    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends --yes "$2" >/dev/null
}

# Zig links against the symbols of an older glibc than this machine's. Both tools come as wheels, of these versions, below target/.
linker() {
    local tools=$PWD/target/zig
    if [[ ! -e $tools/done-0.24.0-0.16.0 ]]; then
        need python3 python3
        python3 -m pip --version >/dev/null 2>&1 || need pip3 python3-pip
        rm -rf "$tools"
        python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --only-binary :all: --target "$tools" cargo-zigbuild==0.24.0 ziglang==0.16.0
        touch "$tools/done-0.24.0-0.16.0"
    fi
    export PYTHONPATH=$tools PATH=$tools/bin:$PATH
}

binary() { # gives the path of the binary to package
    if [[ -n ${BINARY:-} ]]; then readlink -e "$BINARY" || die "BINARY=$BINARY is not there"; return; fi
    linker >&2
    local target=$MACHINE-unknown-linux-gnu
    # No path of this machine in the binary: neither the reader nor the digest is to depend on it.
    RUSTFLAGS="--remap-path-prefix=$PWD=polyfpm --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo" \
        cargo zigbuild --quiet --locked --profile "$PROFILE" --bin polyfpm --target "$target.$GLIBC" >&2
    readlink -e "target/$target/$PROFILE/polyfpm"
}

floor() { # what BINARY needs of glibc at least
    objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1 | cut -d_ -f2
}

substituted() { # substituted FILE NAME=TEXT…: FILE with @NAME@ replaced, and the shared functions where they belong
    local file=$1 text pair
    shift
    text=$(cat "$file")
    for pair; do text=${text//@${pair%%=*}@/${pair#*=}}; done
    text=${text//#FUNCTIONS#/"$(grep -v '^#' packaging/functions.sh)"}
    printf '%s\n' "$text"
}

stage() { # stage ROOT: everything both packages hold
    local root=$1 binary doc=$1/usr/share/doc/polyfpm page
    rm -rf "$root"
    need strip binutils
    binary=$(binary)
    local floor
    floor=$(floor "$binary")
    if [[ $(printf '%s\n' "$floor" "$GLIBC" | sort -V | tail -n 1) != "$GLIBC" ]]; then
        [[ -n ${BINARY:-} ]] || die "the binary needs glibc $floor, $GLIBC was wanted"
        echo "packaging: $binary needs glibc $floor: the package says so" >&2
    else
        floor=$GLIBC
    fi
    install -d "$root/usr/bin" "$doc/examples" "$root/usr/lib/systemd/system" "$root/usr/lib/tmpfiles.d" "$root/etc/polyfpm" "$root/etc/logrotate.d"
    strip --strip-debug --enable-deterministic-archives -o "$root/usr/bin/polyfpm" "$binary"
    chmod 755 "$root/usr/bin/polyfpm"
    install -m 644 packaging/*.service "$root/usr/lib/systemd/system/"
    install -m 644 packaging/tmpfiles.conf "$root/usr/lib/tmpfiles.d/polyfpm.conf"
    install -m 644 packaging/logrotate "$root/etc/logrotate.d/polyfpm"
    install -m 644 packaging/sysctl.example "$doc/examples/90-polyfpm.conf"
    install -m 644 etc/polyfpm.example.toml "$root/etc/polyfpm/instance.toml.example"
    install -m 644 docs/operations.md docs/settings.md docs/nginx.md docs/routing.md docs/exit-codes.md docs/control.md "$doc/"
    cargo run --quiet --locked --example manual -- "$root/generated"
    install -d "$root/usr/share/man/man1" "$root/usr/share/man/man5" "$root/usr/share/bash-completion/completions" \
        "$root/usr/share/zsh/vendor-completions" "$root/usr/share/fish/vendor_completions.d"
    for page in "$root"/generated/man/*; do
        gzip -9nc "$page" >"$root/usr/share/man/man${page##*.}/${page##*/}.gz"
    done
    install -m 644 "$root/generated/completion/polyfpm.bash" "$root/usr/share/bash-completion/completions/polyfpm"
    install -m 644 "$root/generated/completion/_polyfpm" "$root/usr/share/zsh/vendor-completions/"
    install -m 644 "$root/generated/completion/polyfpm.fish" "$root/usr/share/fish/vendor_completions.d/"
    rm -r "$root/generated"
    echo "$floor" >"$OUT/glibc-floor"
}

deb() {
    need dpkg-deb dpkg
    local root=$OUT/deb doc=$OUT/deb/usr/share/doc/polyfpm architecture
    architecture=$(dpkg --print-architecture)
    stage "$root"
    gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
    printf 'polyfpm (%s-%s) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- %s  %s\n' \
        "$VERSION" "$REVISION" "$MAINTAINER" "$(date -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$doc/changelog.Debian.gz"
    local mit
    mit=$(sed -n '5,$p' LICENSE-MIT | sed 's/^$/./; s/^/ /')
    substituted packaging/copyright "MIT=$mit" >"$doc/copyright"
    install -d "$root/usr/share/lintian/overrides" "$root/DEBIAN"
    install -m 644 packaging/deb/lintian-overrides "$root/usr/share/lintian/overrides/polyfpm"
    local script
    for script in postinst prerm postrm; do
        substituted packaging/deb/$script >"$root/DEBIAN/$script"
        chmod 755 "$root/DEBIAN/$script"
    done
    (cd "$root" && find etc -type f | sort | sed 's|^|/|') >"$root/DEBIAN/conffiles"
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    substituted packaging/deb/control "VERSION=$VERSION" "REVISION=$REVISION" "ARCHITECTURE=$architecture" "MAINTAINER=$MAINTAINER" \
        "GLIBC=$(cat "$OUT/glibc-floor")" "SIZE=$(du -sk --exclude=DEBIAN "$root" | cut -f1)" >"$root/DEBIAN/control"
    find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    local file=$OUT/polyfpm_$VERSION-${REVISION}_$architecture.deb
    dpkg-deb --root-owner-group -Zxz --threads-max=1 --build "$root" "$file" >/dev/null
    rm -r "$root" "$OUT/glibc-floor"
    echo "$file"
}

mkdir -p "$OUT"
case $KIND in
deb) deb ;;
binary) binary ;;
*) die "usage: packaging/build.sh deb|rpm|binary [DIRECTORY]" ;;
esac
