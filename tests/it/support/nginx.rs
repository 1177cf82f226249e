//! A private NGINX: own prefix, own port, two workers, logs that hide nothing.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::process::{Running, children, run};
use super::{Ground, eventually};

/// What one line of the access log holds; the verdict reads it.
pub(crate) const LOG_FIELDS: &str =
    r"$status\t$upstream_status\t$upstream_addr\t$request_method\t$request_length\t$request_time\t$request_id\t$request_uri";

/// A place of the site that is answered by a pool: `/NAME/x.php`.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    /// The first part of the path.
    pub(crate) name: String,
    /// What `fastcgi_pass` says.
    pub(crate) pass: String,
    /// Whether `fastcgi_keep_conn` is on.
    pub(crate) keep_conn: bool,
}

/// An upstream that the operator wrote.
#[derive(Debug, Clone)]
pub(crate) struct Upstream {
    /// Its name.
    pub(crate) name: String,
    /// Its lines.
    pub(crate) lines: String,
}

/// What the site's configuration says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Site {
    /// The places.
    pub(crate) routes: Vec<Route>,
    /// The operator's own upstreams.
    pub(crate) upstreams: Vec<Upstream>,
    /// What the scripts get as `RELEASE`.
    pub(crate) release: String,
    /// How many workers NGINX has; two where nothing is said.
    pub(crate) workers: Option<u32>,
    /// Its `worker_cpu_affinity`; none where nothing is said.
    pub(crate) affinity: String,
}

impl Route {
    /// Sends `/NAME/…` to `pass`, each request on a connection of its own.
    pub(crate) fn new(name: &str, pass: &str) -> Self {
        Self { name: name.to_owned(), pass: pass.to_owned(), keep_conn: false }
    }

    /// Keeps connections.
    pub(crate) fn keep_conn(mut self) -> Self {
        self.keep_conn = true;
        self
    }
}

impl Upstream {
    /// One server, with as many kept connections, and the two lines that make them safe (P25).
    pub(crate) fn keeping(name: &str, server: &str, connections: u32) -> Self {
        let lines = format!("server {server} max_fails=0; keepalive {connections}; keepalive_time 2s; keepalive_timeout 1s;");
        Self { name: name.to_owned(), lines }
    }
}

impl Site {
    /// One place.
    pub(crate) fn one(route: Route) -> Self {
        Self { routes: vec![route], ..Self::default() }
    }

    /// One more place.
    pub(crate) fn route(mut self, route: Route) -> Self {
        self.routes.push(route);
        self
    }

    /// One more upstream.
    pub(crate) fn upstream(mut self, upstream: Upstream) -> Self {
        self.upstreams.push(upstream);
        self
    }
}

/// A running NGINX.
pub(crate) struct Nginx {
    running: Running,
    /// The group of one that left its starter's side, as a service does: only such a one can be upgraded in place.
    daemon: Option<i32>,
    port: u16,
    root: PathBuf,
}

impl Nginx {
    /// Gives the binary: `NGINX`, or the distribution's.
    pub(crate) fn binary() -> PathBuf {
        std::env::var_os("NGINX").map_or_else(|| PathBuf::from("/usr/sbin/nginx"), PathBuf::from)
    }

    /// Starts NGINX with this site and waits until it answers.
    #[track_caller]
    pub(crate) fn start(ground: &Ground, site: &Site) -> Self {
        Self::start_at(ground, site, ground.port())
    }

    #[track_caller]
    fn start_at(ground: &Ground, site: &Site, port: u16) -> Self {
        for folder in ["nginx", "nginx/conf.d", "nginx/temp"] {
            std::fs::create_dir_all(ground.path(folder)).expect("a directory for NGINX");
        }
        write_configuration(ground, site, port);
        let (prefix, config) = (ground.text("nginx/"), ground.text("nginx/nginx.conf"));
        let arguments = ["-p", prefix.as_str(), "-c", config.as_str(), "-e", "/dev/stderr", "-g", "daemon off;"];
        let running = Running::start(&Self::binary(), &arguments, &[], &ground.path("log/nginx.out"));
        let mut nginx = Self { running, daemon: None, port, root: ground.path("") };
        eventually(Duration::from_secs(10), "NGINX answers", || {
            assert!(nginx.running.ended().is_none(), "NGINX ended:\n{}", nginx.running.output());
            nginx.get("/alive").is_some_and(|answer| answer.starts_with("HTTP/1.1 204")).then_some(())
        });
        nginx
    }

    /// Becomes a daemon, as NGINX is under a service manager.
    #[track_caller]
    pub(crate) fn daemonize(&mut self, ground: &Ground) {
        let group = self.named_master().expect("a pid file");
        self.running.signal(Signal::SIGQUIT);
        self.running.wait(Duration::from_secs(10));
        let (prefix, config) = (ground.text("nginx/"), ground.text("nginx/nginx.conf"));
        let arguments = ["-p", prefix.as_str(), "-c", config.as_str()];
        self.running = Running::start(&Self::binary(), &arguments, &[], &ground.path("log/nginx.out"));
        assert_eq!(self.running.exit_code(Duration::from_secs(10)), 0, "{}", self.running.output());
        self.daemon = Some(eventually(Duration::from_secs(10), "NGINX runs", || self.named_master().filter(|pid| *pid != group)));
        eventually(Duration::from_secs(10), "NGINX answers", || self.get("/alive"));
    }

    /// Ends the master and every worker as `kill -9` does, and starts NGINX anew at the same port.
    #[track_caller]
    pub(crate) fn replace(&mut self, ground: &Ground, site: &Site) {
        killpg(Pid::from_raw(self.pid()), Signal::SIGKILL).ok();
        self.running.wait(Duration::from_secs(10));
        let free = || std::net::TcpListener::bind(("127.0.0.1", self.port)).ok().map(drop);
        eventually(Duration::from_secs(10), "the port is free", free);
        *self = Self::start_at(ground, site, self.port);
    }

    /// Gives the pid in NGINX's own pid file: after an upgrade it is another one.
    pub(crate) fn named_master(&self) -> Option<i32> {
        std::fs::read_to_string(self.root.join("nginx/nginx.pid")).ok()?.trim().parse().ok()
    }

    /// Upgrades the binary in place (`USR2`) and gives the new master's pid; the old one and its workers serve on.
    #[track_caller]
    pub(crate) fn upgrade(&self) -> i32 {
        let old = self.named_master();
        let signalled = old.and_then(|old| kill(Pid::from_raw(old), Signal::SIGUSR2).ok());
        assert!(signalled.is_some(), "NGINX's master {old:?} takes no signal");
        eventually(Duration::from_secs(10), "the new NGINX has workers", || {
            let new = self.named_master().filter(|new| Some(*new) != old)?;
            (children(new).len() >= 2).then_some(new)
        })
    }

    /// Writes another site and reloads; waits until only new workers are left to take connections.
    #[track_caller]
    pub(crate) fn edit(&self, ground: &Ground, site: &Site) {
        write_configuration(ground, site, self.port);
        self.reload();
    }

    /// Reloads and waits until every worker is a new one or on its way out.
    #[track_caller]
    pub(crate) fn reload(&self) {
        let tested = self.test();
        assert!(tested.is_ok(), "nginx -t refuses the test's own configuration:\n{}", tested.unwrap_err());
        let before = self.workers();
        self.signal(Signal::SIGHUP);
        eventually(Duration::from_secs(10), "NGINX has new workers only", || {
            let now = self.workers();
            let taking: Vec<&i32> = now.iter().filter(|pid| !leaving(**pid)).collect();
            (!taking.is_empty() && taking.iter().all(|pid| !before.contains(pid))).then_some(())
        });
    }

    /// Asks NGINX whether its configuration is good; gives what it says when not.
    pub(crate) fn test(&self) -> Result<(), String> {
        let (prefix, config) = (self.root.join("nginx/"), self.root.join("nginx/nginx.conf"));
        let arguments = ["-p", &*prefix.to_string_lossy(), "-c", &*config.to_string_lossy(), "-t"];
        let ended = run(&Self::binary(), &arguments, &self.root, Duration::from_secs(20));
        if ended.code == 0 { Ok(()) } else { Err(ended.err) }
    }

    /// Gives the port of the site.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Gives the pid of the master that was started.
    pub(crate) fn pid(&self) -> i32 {
        self.daemon.unwrap_or_else(|| self.running.pid())
    }

    /// Gives the workers, leaving ones included.
    pub(crate) fn workers(&self) -> Vec<i32> {
        children(self.pid())
    }

    /// Tells whether no worker is on its way out.
    pub(crate) fn settled(&self) -> bool {
        !self.workers().iter().any(|worker| leaving(*worker))
    }

    /// Sends a signal to the master.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("a running NGINX");
    }

    /// Makes one plain request; gives the whole answer as text, or nothing when there is none.
    pub(crate) fn get(&self, uri: &str) -> Option<String> {
        http_get(self.port, uri)
    }

    /// Makes one plain request that must succeed; gives the body.
    #[track_caller]
    pub(crate) fn body(&self, uri: &str) -> String {
        let answer = self.get(uri).unwrap_or_else(|| panic!("no answer to {uri}"));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no whole answer to {uri}: {answer}"));
        assert!(head.starts_with("HTTP/1.1 200"), "{uri}: {answer}");
        // Chunked answers of one short line: the size, the line, the end.
        if head.to_lowercase().contains("transfer-encoding: chunked") {
            let lines: Vec<&str> = body.split("\r\n").collect();
            return lines.iter().skip(1).step_by(2).copied().collect();
        }
        body.to_owned()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        if let Some(group) = self.daemon {
            killpg(Pid::from_raw(group), Signal::SIGKILL).ok();
        }
    }
}

fn leaving(pid: i32) -> bool {
    let title = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    title.is_empty() || String::from_utf8_lossy(&title).contains("shutting down")
}

fn write_configuration(ground: &Ground, site: &Site, port: u16) {
    let mut text = String::new();
    let path = |name: &str| ground.text(name);
    let add = |text: &mut String, line: &str| writeln!(text, "{line}").expect("writing to a string");
    if !site.affinity.is_empty() {
        add(&mut text, &format!("worker_cpu_affinity {};", site.affinity));
    }
    add(&mut text, &format!("user www-data;\nworker_processes {};\nworker_rlimit_nofile 16384;", site.workers.unwrap_or(2)));
    add(&mut text, &format!("pid {};\nerror_log {} info;", path("nginx/nginx.pid"), path("log/nginx.error")));
    add(&mut text, "events { worker_connections 4096; }\nhttp {");
    add(&mut text, &format!("log_format load '{LOG_FIELDS}';\naccess_log {} load;", path("log/access")));
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        add(&mut text, &format!("{kind}_temp_path {};", path(&format!("nginx/temp/{kind}"))));
    }
    // A client's own kept connection must end by nobody's doing but the test's.
    add(&mut text, "client_max_body_size 64m;\nkeepalive_requests 100000000;\nkeepalive_timeout 300s;\nfastcgi_read_timeout 300s;");
    add(&mut text, &format!("include {};", path("nginx/conf.d/*.conf")));
    for upstream in &site.upstreams {
        add(&mut text, &format!("upstream {} {{ {} }}", upstream.name, upstream.lines));
    }
    add(&mut text, &format!("server {{\nlisten 127.0.0.1:{port} backlog=4096;\nroot {};", path("www")));
    add(&mut text, "location = /alive { access_log off; return 204; }");
    for route in &site.routes {
        add(&mut text, &location(ground, route, &site.release));
    }
    add(&mut text, "}\n}");
    ground.write("nginx/nginx.conf", &text);
}

fn location(ground: &Ground, route: &Route, release: &str) -> String {
    let Route { name, pass, .. } = route;
    let mut text = format!("location ~ ^/{name}/(?<script>[a-z_]+\\.php)$ {{\nfastcgi_pass {pass};\n");
    if route.keep_conn {
        text.push_str("fastcgi_keep_conn on;\n");
    }
    let count = ground.text("log/count");
    let release = if release.is_empty() { "-" } else { release };
    let given = [("POOL", name.as_str()), ("COUNT_FILE", count.as_str()), ("RELEASE", release)];
    let standard = [
        ("SCRIPT_FILENAME", "$document_root/$script"),
        ("SCRIPT_NAME", "/$script"),
        ("QUERY_STRING", "$query_string"),
        ("REQUEST_METHOD", "$request_method"),
        ("CONTENT_TYPE", "$content_type"),
        ("CONTENT_LENGTH", "$content_length"),
        ("REQUEST_URI", "$request_uri"),
        ("SERVER_PROTOCOL", "$server_protocol"),
        ("REMOTE_ADDR", "$remote_addr"),
    ];
    for (name, value) in standard.iter().chain(&given) {
        writeln!(text, "fastcgi_param {name} {value};").expect("writing to a string");
    }
    text.push('}');
    text
}

/// Gives what `fastcgi_pass` says for a unix socket.
pub(crate) fn unix_pass(path: &Path) -> String {
    format!("unix:{}", path.display())
}

/// Makes one plain request to a port of this machine; gives the whole answer as text, or nothing when there is none.
pub(crate) fn http_get(port: u16, uri: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    stream.write_all(format!("GET {uri} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}
