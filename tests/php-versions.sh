#!/usr/bin/env bash
# Shows the facts of docs/php-fpm.md against another Debian release's php-fpm. Not part of `make test`: it downloads packages.
#
#   tests/php-versions.sh [SUITE [TEST]]      SUITE: trixie (8.4), sid, bullseye (7.4); TEST: contract::
#
# The packages are fetched through apt with lists of their own and unpacked into a folder (PHP_VERSIONS_DIR, /var/tmp/polyfpm-php);
# neither this host's sources nor its packages change. Needs root, and Debian's archive key. That php-fpm runs in a chroot whose /tmp,
# /proc and /dev are this host's, mounted in a mount namespace that ends with the run.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=${1:-trixie}
test=${2:-contract::}
home=${PHP_VERSIONS_DIR:-/var/tmp/polyfpm-php}/$suite
root=$home/root

if [ ! -e "$home/complete" ]; then
    rm -rf --one-file-system "$home"
    mkdir -p "$home"/{lists/partial,cache/archives/partial,dpkg} "$root"
    : >"$home/dpkg/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main" >"$home/sources.list"
    cat >"$home/apt.conf" <<CONF
Dir::State::lists "$home/lists";
Dir::State::status "$home/dpkg/status";
Dir::Cache "$home/cache";
Dir::Etc::sourcelist "$home/sources.list";
Dir::Etc::sourceparts "/dev/null";
APT::Install-Recommends "false";
CONF
    export APT_CONFIG=$home/apt.conf
    apt-get -qq update
    version=$(apt-cache depends php-fpm | sed -n 's/.*Depends: php\([0-9.]*\)-fpm$/\1/p' | head -n 1)
    apt-get -qq --yes --download-only install "php$version-fpm" "php$version-opcache" base-files
    # A merged /usr comes first, so that packages unpack through its links.
    mkdir -p "$root"/usr/{bin,sbin,lib,lib64} "$root"/{tmp,proc,dev,run,var/log,var/lib/php/sessions,etc}
    for link in bin sbin lib lib64; do ln -s "usr/$link" "$root/$link"; done
    for package in "$home"/cache/archives/*.deb; do dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root"; done
    cp /etc/passwd /etc/group "$root/etc/"
    mkdir -p "$root/etc/php/$version/fpm/conf.d"
    cp "$root/usr/lib/php/$version/php.ini-production" "$root/etc/php/$version/fpm/php.ini"
    # Debian's packages switch their extensions on when they are configured; newer PHP has opcache built in.
    for file in "$root"/usr/lib/php/2*/*.so; do
        name=$(basename "$file")
        [ "$name" = opcache.so ] && word=zend_extension || word=extension
        echo "$word=$name" >"$root/etc/php/$version/fpm/conf.d/20-${name%.so}.ini"
    done
    printf '#!/bin/sh\nexec chroot %s /usr/sbin/php-fpm%s "$@"\n' "$root" "$version" >"$home/php-fpm"
    chmod 755 "$home/php-fpm"
    touch "$home/complete"
fi

# Built outside, run inside.
cargo test --quiet --locked --test it --no-run
export root test PHP_FPM=$home/php-fpm
unshare --mount --propagation private bash -euc '
    for folder in tmp proc dev; do mount --rbind "/$folder" "$root/$folder"; done
    "$PHP_FPM" -v
    exec cargo test --locked --test it -- --test-threads=1 "$test"
'
