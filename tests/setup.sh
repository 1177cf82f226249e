#!/usr/bin/env bash
# Installs what the tests and the demo need and this machine lacks: php-fpm with opcache, NGINX, and a few small tools.
# Quick when everything is there. Starts and enables no service: the tests start programs of their own.
set -euo pipefail

packages=()
need() { # need PACKAGE COMMAND…: the package when none of the commands is there
    local package=$1 command
    shift
    for command; do
        command -v "$command" >/dev/null 2>&1 && return
    done
    packages+=("$package")
}

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
fpm=${PHP_FPM:-$(ls /usr/sbin/php-fpm[0-9]* 2>/dev/null | tail -n 1 || true)}
if [ ! -x "${fpm:-/none}" ]; then
    packages+=(php-fpm php-cli)
# Not through a pipe: grep leaves at the first match, and the writer's SIGPIPE would count as "not there".
elif [[ $("$fpm" -m) != *'Zend OPcache'* ]]; then
    packages+=(php-opcache)
fi
[ -n "${NGINX:-}" ] || need nginx-light nginx
need iproute2 ss
need util-linux setpriv
need acl setfacl
need wrk wrk
need gcc cc
[ ${#packages[@]} -gt 0 ] || exit 0

as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
if ! command -v apt-get >/dev/null 2>&1; then
    echo "tests/setup.sh: install these by hand, there is no apt-get here: ${packages[*]}" >&2
    exit 1
fi
echo "installing ${packages[*]}"

# Debian starts a service as soon as its package is installed, unless this file says no. One that is there already stays.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
    "${as_root[@]}" chmod 755 $policy
    trap '"${as_root[@]}" rm -f $policy' EXIT
fi
apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@" </dev/null
}
apt update
apt install --no-install-recommends --yes "${packages[@]}" >/dev/null

# What was installed just now is not to come up at the next boot either.
if command -v systemctl >/dev/null 2>&1; then
    for package in "${packages[@]}"; do
        case $package in
        php-fpm) for unit in /lib/systemd/system/php*-fpm.service; do "${as_root[@]}" systemctl disable --quiet "$(basename "$unit")" 2>/dev/null || true; done ;;
        nginx-light) "${as_root[@]}" systemctl disable --quiet nginx.service 2>/dev/null || true ;;
        esac
    done
fi
