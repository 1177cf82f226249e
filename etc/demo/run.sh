#!/usr/bin/env bash
# The main job in a private prefix: two pinned php-fpm shards behind an NGINX of its own. Ctrl-C leaves nothing behind.
#
#   etc/demo/run.sh POLYFPM_BINARY
#
# Settings, from the environment: DEMO_PORT (8080), PHP_FPM and NGINX (found on this host).
set -euo pipefail

polyfpm=$(readlink -f "${1:?which polyfpm binary?}")
port=${DEMO_PORT:-8080}
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
php_fpm=${PHP_FPM:-$(command -v php-fpm || ls /usr/sbin/php-fpm* 2>/dev/null | sort -V | tail -n 1 || true)}
nginx=${NGINX:-$(command -v nginx || echo /usr/sbin/nginx)}
[[ -x $php_fpm ]] || { echo "demo: no php-fpm found: set PHP_FPM, or run 'make setup'" >&2; exit 1; }
[[ -x $nginx ]] || { echo "demo: no nginx found: set NGINX, or run 'make setup'" >&2; exit 1; }
[[ $(id -u) == 0 ]] || { echo "demo: run it as root: pools run as users of their own" >&2; exit 1; }
if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
  echo "demo: something listens on 127.0.0.1:$port already: set DEMO_PORT to another port" >&2
  exit 1
fi

home=$(mktemp -d /tmp/polyfpm-demo.XXXXXX)
chmod 755 "$home"
supervisor= web=

# Waits, with a deadline of $1 tenths of a second, until the command that follows succeeds.
eventually() {
  local left=$1; shift
  until "$@" 2>/dev/null; do
    ((left-- > 0)) || return 1
    read -rt 0.1 <> <(:) || true
  done
}

clean_up() {
  trap - EXIT INT TERM
  trap '' PIPE
  { echo; echo "demo: stopping"; } || true
  [[ -z $web ]] || kill -QUIT "$web" 2>/dev/null || true
  if [[ -n $supervisor ]]; then
    kill -TERM "$supervisor" 2>/dev/null || true
    wait "$supervisor" 2>/dev/null || true
  fi
  [[ -z $web ]] || wait "$web" 2>/dev/null || true
  rm -rf --one-file-system "$home"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 141' PIPE

mkdir -p "$home"/{pool.d,www,run,nginx/conf.d,log}
cp "$here/index.php" "$home/www/index.php"
cat >"$home/php-fpm.conf" <<EOF
[global]
error_log = $home/log/php-fpm.log
include = $home/pool.d/*.conf
EOF
cat >"$home/pool.d/www.conf" <<EOF
[www]
user = www-data
group = www-data
listen = $home/run/www.sock
listen.owner = www-data
listen.group = www-data
listen.mode = 0660
pm = static
pm.max_children = 16
EOF
cat >"$home/demo.toml" <<EOF
[php]
binary = "$php_fpm"
config = "$home/php-fpm.conf"

[run]
directory = "$home/run/polyfpm"

[shards]
count = 2
cpus = "auto"
min_workers = 4

[limits]
nofile = 4096

[restart]
drain_timeout = "30s"

[nginx]
binary = "$nginx"
config = "$home/nginx/nginx.conf"
include = "$home/nginx/conf.d/polyfpm.conf"
EOF
cat >"$home/nginx/nginx.conf" <<EOF
user www-data;
worker_processes 2;
worker_cpu_affinity auto;
daemon off;
pid $home/nginx/nginx.pid;
error_log $home/log/nginx.log notice;
events { worker_connections 1024; }
http {
  access_log off;
  client_body_temp_path $home/nginx/body;
  fastcgi_temp_path $home/nginx/fastcgi;
  proxy_temp_path $home/nginx/proxy;
  uwsgi_temp_path $home/nginx/uwsgi;
  scgi_temp_path $home/nginx/scgi;
  include $home/nginx/conf.d/*.conf;
  server {
    listen 127.0.0.1:$port;
    root $home/www;
    location / {
      fastcgi_pass polyfpm_demo_www;
      fastcgi_param SCRIPT_FILENAME $home/www/index.php;
      fastcgi_param REQUEST_METHOD \$request_method;
      fastcgi_param REQUEST_URI \$request_uri;
      fastcgi_param QUERY_STRING \$query_string;
      fastcgi_param CONTENT_TYPE \$content_type;
      fastcgi_param CONTENT_LENGTH \$content_length;
    }
  }
}
EOF

# The upstream has to exist before NGINX reads the vhost that names it.
"$polyfpm" upstream --write -c "$home/demo.toml" >/dev/null || true
"$nginx" -e "$home/log/nginx.log" -c "$home/nginx/nginx.conf" &
web=$!
supervise() {
  "$polyfpm" run -c "$home/demo.toml" 2>>"$home/log/polyfpm.log" &
  supervisor=$!
}
supervise

answers() { exec 3<>"/dev/tcp/127.0.0.1/$port" && printf 'GET / HTTP/1.0\r\n\r\n' >&3 && grep -q 'polyfpm demo' <&3; local rc=$?; exec 3>&-; return $rc; }
if ! eventually 150 answers; then
  echo "demo: no answer at http://127.0.0.1:$port/ within 15 s; what was logged:" >&2
  cat "$home"/log/*.log >&2
  exit 1
fi

healthy() { "$polyfpm" status --json -c "$home/demo.toml" | grep -q '"healthy": *true'; }
eventually 100 healthy || echo "demo: not every shard is ready yet" >&2

cat <<EOF

polyfpm demo: http://127.0.0.1:$port/

EOF
"$polyfpm" status -c "$home/demo.toml"
cat <<EOF

Try next, in another terminal:

  $polyfpm status --watch -c $home/demo.toml
  $polyfpm restart -c $home/demo.toml
  $polyfpm plan -c $home/demo.toml

Logs are in $home/log. Ctrl-C stops everything and leaves nothing behind.
EOF
# A supervisor that was killed is started again, as systemd does: it adopts its masters, which go on serving without it. Ending
# here instead would leave them running.
while :; do
  ended=0
  wait -n "$supervisor" "$web" || ended=$?
  if ((ended != 137)) || kill -0 "$supervisor" 2>/dev/null; then
    exit "$ended"
  fi
  echo "demo: the supervisor was killed; its masters serve on, and a new one adopts them"
  supervise
done
