# What the scripts of both kinds of package do; build.sh puts it into each of them.

# The instances that run now, one a line.
polyfpm_running() {
    [ -d /run/systemd/system ] || return 0
    systemctl list-units --plain --no-legend --full --state=active,activating,reloading,deactivating 'polyfpm@*.service' |
        sed -n 's/^polyfpm@\([^ ]*\)\.service .*/\1/p'
}

# Directories below /run and /var/log; units as they are now. Nothing is started.
polyfpm_settle() {
    [ -d /run/systemd/system ] || return 0
    systemd-tmpfiles --create polyfpm.conf || true
    systemctl daemon-reload || true
}

# Running supervisors go on as the new binary, in the same process, with the same masters. One that cannot goes on as the old binary:
# that is told, and is no reason to leave the package half configured.
polyfpm_upgrade() {
    for instance in $(polyfpm_running); do
        # 75: a reload or restart is under way. It ends, as a rule within a minute.
        tries=0 code=75
        while [ $code = 75 ] && [ $tries -lt 60 ]; do
            [ $tries = 0 ] || sleep 1
            tries=$((tries + 1)) code=0
            polyfpm upgrade --instance "$instance" >/dev/null || code=$?
        done
        if [ $code = 0 ]; then
            echo "polyfpm: instance $instance goes on as the new version."
        else
            echo "polyfpm: instance $instance goes on as the version before; try again: polyfpm upgrade --instance $instance" >&2
        fi
    done
}

# Before the program is removed: what it serves goes back to the unit it was taken from. Where there is none, or that fails, removal is refused.
polyfpm_leave() {
    for instance in $(polyfpm_running); do
        if polyfpm handback --instance "$instance" --dry-run 2>/dev/null | grep -q '\.service' && polyfpm handback --instance "$instance"; then
            echo "polyfpm: instance $instance was handed back."
        else
            echo "polyfpm: instance $instance still serves. Run one of these first:" >&2
            echo "    polyfpm handback --instance $instance --to UNIT      give its sockets to a unit such as php8.2-fpm, no request lost" >&2
            echo "    systemctl disable --now polyfpm@$instance            end its php-fpm" >&2
            return 1
        fi
    done
}

# After removal: no unit of ours is wanted at boot any more.
polyfpm_forget() {
    for link in /etc/systemd/system/*.wants/polyfpm@*.service; do
        [ -L "$link" ] && rm -f "$link"
    done
    [ -d /run/systemd/system ] && systemctl daemon-reload
    return 0
}

# With purge: settings, logs, state and includes. An include whose upstreams a vhost names stays, or NGINX would not start again.
polyfpm_purge() {
    rm -rf /etc/polyfpm /var/log/polyfpm /run/polyfpm
    rm -rf /etc/systemd/system/polyfpm@*.service.d
    for include in /etc/nginx/conf.d/polyfpm-*.conf; do
        [ -f "$include" ] || continue
        names=$(sed -n 's/^upstream \([^ ]*\) .*/\1/p' "$include")
        named=
        for name in $names; do
            named=$named$(grep -rlFw --exclude="${include##*/}" -e "$name" /etc/nginx 2>/dev/null | head -n 1)
        done
        if [ -n "$named" ]; then
            echo "polyfpm: $include stays, since $named names its upstreams." >&2
        else
            rm -f "$include"
        fi
    done
}
