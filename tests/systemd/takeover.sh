#!/usr/bin/env bash
# Takes Debian's php-fpm unit over under load, and gives it back, on a machine that may be thrown away: it changes units, NGINX and /etc/polyfpm.
#
#   tests/systemd/takeover.sh POLYFPM      as root, where systemd is PID 1 and nginx, curl and a phpX.Y-fpm unit are installed
#
# Prints one line for each thing it looked at and ends with 1 when one is wrong. Needs nothing of the repository but the unit file.
set -euo pipefail

POLYFPM=$(readlink -f "${1:?usage: takeover.sh POLYFPM}")
PACKAGED=${PACKAGED:-$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../packaging/polyfpm@.service}
[[ $(id -u) == 0 && $(cat /proc/1/comm) == systemd ]] || { echo "needs root, and systemd as PID 1" >&2; exit 2; }
STOCK=$(systemctl list-units --plain --no-legend --state=running 'php*-fpm.service' | awk '{print $1; exit}')
[[ -n $STOCK ]] || { echo "no php-fpm unit runs" >&2; exit 2; }
VERSION=$(sed 's/^php\(.*\)-fpm.service$/\1/' <<<"$STOCK")
SOCKET=/run/php/php$VERSION-fpm.sock
WORK=$(mktemp -d /var/tmp/polyfpm-takeover.XXXXXX)
chmod 755 "$WORK"
wrong=0

is() {   # what, wanted, found
  if [[ $2 == "$3" ]]; then echo "ok      $1: $3"; else echo "WRONG   $1: $3, not $2"; wrong=1; fi
}

# A site whose script notes each POST, and one that sleeps.
install -d "$WORK/www" "$WORK/log"
chown www-data "$WORK/log"
cat >"$WORK/www/count.php" <<PHP
<?php usleep((int) (\$_GET['us'] ?? 0)); file_put_contents('$WORK/log/count', \$_GET['id'] . "\n", FILE_APPEND | LOCK_EX); echo \$_GET['id'];
PHP
cat >/etc/nginx/sites-enabled/polyfpm-takeover <<NGINX
server {
  listen 127.0.0.1:8088;
  root $WORK/www;
  access_log off;
  error_log $WORK/log/nginx.error;
  location ~ \.php\$ { include fastcgi_params; fastcgi_param SCRIPT_FILENAME \$document_root\$fastcgi_script_name; fastcgi_pass unix:$SOCKET; }
}
NGINX
systemctl reload-or-restart nginx

install -d /etc/polyfpm
cat >/etc/polyfpm/takeover.toml <<TOML
[php]
binary = "/usr/sbin/php-fpm$VERSION"
config = "/etc/php/$VERSION/fpm/php-fpm.conf"
[shards]
count = 2
min_workers = 1
TOML
systemctl is-enabled --quiet "$STOCK" || { echo "$STOCK is not enabled" >&2; exit 2; }
sed "s|^ExecStart=/usr/bin/polyfpm|ExecStart=$POLYFPM|" "$PACKAGED" >/etc/systemd/system/polyfpm@.service
# Debian's unit has a private /tmp where its scripts may keep sessions: ours shares it.
install -d /etc/systemd/system/polyfpm@takeover.service.d
printf '[Unit]\nJoinsNamespaceOf=%s\n[Service]\nPrivateTmp=%s\n' "$STOCK" "$(systemctl show -p PrivateTmp --value "$STOCK")" \
  >/etc/systemd/system/polyfpm@takeover.service.d/tmp.conf
systemctl daemon-reload
systemctl start polyfpm@takeover

for _ in $(seq 100); do
  "$POLYFPM" status --instance takeover --json 2>/dev/null | grep -q '"job": *null' && break
  sleep 0.1
done
link=$(readlink -f /run/php/php-fpm.sock || true)

client() {   # number, microseconds each request takes
  local n=0 id
  while [[ ! -e $WORK/stop ]]; do
    id=$1-$n n=$((n + 1))
    echo "$id" >>"$WORK/log/sent.$1"
    [[ $(curl -s -X POST -d x "http://127.0.0.1:8088/count.php?id=$id&us=$2") == "$id" ]] || echo "$id" >>"$WORK/log/failed"
  done
}
client 1 0 & client 2 0 & client 3 2000000 &
sleep 2
"$POLYFPM" takeover --instance takeover --dry-run
before=$(systemctl show -p MainPID --value "$STOCK")
"$POLYFPM" takeover --instance takeover || wrong=1
sleep 2
"$POLYFPM" restart --instance takeover >/dev/null || wrong=1
is "$STOCK" inactive "$(systemctl is-active "$STOCK" || true)"
is "$STOCK at boot" disabled "$(systemctl is-enabled "$STOCK" 2>/dev/null || true)"
is "its drop-in" gone "$([[ -e /run/systemd/system/$STOCK.d/50-polyfpm.conf ]] && echo there || echo gone)"
is "the old master $before" gone "$([[ -e /proc/$before ]] && echo there || echo gone)"
is "the link /run/php/php-fpm.sock" "$link" "$(readlink -f /run/php/php-fpm.sock || true)"

# And back again.
"$POLYFPM" handback --instance takeover || wrong=1
sleep 2
is "$STOCK" active "$(systemctl is-active "$STOCK" || true)"
is "$STOCK at boot" enabled "$(systemctl is-enabled "$STOCK" 2>/dev/null || true)"
is "its drop-in" gone "$([[ -e /run/systemd/system/$STOCK.d/50-polyfpm.conf ]] && echo there || echo gone)"
is "its command" "/usr/sbin/php-fpm$VERSION" "$(readlink "/proc/$(systemctl show -p MainPID --value "$STOCK")/exe")"
for _ in $(seq 100); do [[ $(systemctl is-active polyfpm@takeover) == inactive ]] && break; sleep 0.1; done
is "polyfpm's unit" inactive "$(systemctl is-active polyfpm@takeover || true)"
touch "$WORK/stop"
wait

sent=$(cat "$WORK"/log/sent.* | sort)
is "requests that failed" 0 "$(cat "$WORK/log/failed" 2>/dev/null | wc -l)"
is "POSTs that did not run exactly once" 0 "$(diff <(echo "$sent") <(sort "$WORK/log/count") | grep -c '^[<>]' || true)"
is "errors of NGINX" 0 "$(grep -c -e '\[error\]' -e '\[crit\]' "$WORK/log/nginx.error" || true)"
is "failed units" 0 "$(systemctl --failed --plain --no-legend | wc -l)"
is "the link /run/php/php-fpm.sock" "$link" "$(readlink -f /run/php/php-fpm.sock || true)"
is "the answer now" again "$(curl -s -X POST -d x 'http://127.0.0.1:8088/count.php?id=again')"
echo "requests: $(wc -l <<<"$sent")"
exit "$wrong"
