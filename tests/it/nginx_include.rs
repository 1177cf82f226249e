//! The NGINX include as a transaction, with a real NGINX on a private prefix.

#![expect(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use polyfpm::edge::nginx::{
    Applied, IncludeOutcome, NginxState, NotReloaded, Process, RELOAD_TIME, Wanted, apply_include, page_bytes, probe, wait_old_workers,
};
use polyfpm::model::clients::PassTarget;
use polyfpm::model::endpoint::Endpoint;
use polyfpm::model::ids::{GroupName, InstanceName, PoolName, ShardId};
use polyfpm::model::plan::UpstreamServer;
use polyfpm::model::settings::{Balance, Keepalive, Nginx};
use polyfpm::sys::children::{Child, Children, Subreaper};
use polyfpm::sys::spawn::{Command, Session};
use polyfpm::text::nginx::{IncludeInput, IncludeUpstream, render_include};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener};

const NGINX: &str = "/usr/sbin/nginx";
const NOBODY: u32 = 65_534;
const DEADLINE: Duration = Duration::from_secs(20);

/// An NGINX of its own: configuration, port, pid file. What it started is killed at the end.
struct Lab {
    directory: tempfile::TempDir,
    children: Children,
    settings: Nginx,
    port: u16,
    server: Option<Child>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            // Killed as a group: a stopped master would not hear SIGTERM.
            let _gone = self.children.signal_group(server.pid(), Signal::SIGKILL);
        }
    }
}

impl Lab {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("ng").tempdir_in("/tmp").unwrap();
        let root = directory.path();
        for name in ["conf.d", "sites"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let temporary: String = ["client_body", "fastcgi", "proxy", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {0}/tmp;\n", root.display()))
            .concat();
        let config = format!(
            "daemon off;\nuser root;\nworker_processes 2;\npid {0}/nginx.pid;\nerror_log {0}/error.log notice;\n\
             events {{ worker_connections 64; }}\nhttp {{\naccess_log off;\n{temporary}\
             include conf.d/*.conf;\ninclude {0}/sites/*;\n\
             server {{ listen 127.0.0.1:{port}; location / {{ return 204; }} include {0}/locations*; }}\n}}\n",
            root.display()
        );
        fs::write(root.join("nginx.conf"), config).unwrap();
        let settings = Nginx {
            enabled: true,
            binary: NGINX.into(),
            config: root.join("nginx.conf"),
            include: root.join("conf.d/polyfpm.conf"),
            upstream: "polyfpm_{pool}".to_owned(),
            balance: Balance::LeastConn,
            keepalive: Keepalive::Fixed(0),
            reload: true,
        };
        let children = Children::start(Subreaper::No).unwrap();
        Self { directory, children, settings, port, server: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn include(&self) -> Option<String> {
        fs::read_to_string(&self.settings.include).ok()
    }

    /// Starts NGINX and waits until it has its workers.
    async fn start(&mut self) {
        let command = Command::new(NGINX).arg("-c").arg(&self.settings.config).session(Session::New);
        self.server = Some(self.children.spawn(&command).unwrap());
        eventually("workers", async || self.state().await.running.is_some_and(|running| running.workers.len() == 2)).await;
    }

    async fn state(&self) -> NginxState {
        probe(&self.children, &self.settings).await
    }

    async fn apply(&self, text: &str) -> Applied {
        self.apply_with(text, &BTreeMap::new(), RELOAD_TIME).await
    }

    async fn apply_with(&self, text: &str, fallbacks: &BTreeMap<String, Endpoint>, reload_time: Duration) -> Applied {
        let state = self.state().await;
        apply_include(&self.children, &self.settings, &state, Wanted { text, fallbacks, reload_time }).await
    }

    async fn workers(&self) -> Vec<Pid> {
        self.state().await.running.unwrap().workers.iter().map(|worker| worker.pid).collect()
    }

    async fn connect(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    fn text(&self, upstreams: &[(&str, &[&str])]) -> String {
        render(&self.input(upstreams))
    }

    fn input(&self, upstreams: &[(&str, &[&str])]) -> IncludeInput {
        let upstreams = upstreams.iter().map(|(name, sockets)| IncludeUpstream {
            name: (*name).to_owned(),
            pool: PoolName::new(*name),
            servers: sockets.iter().map(|socket| server(&self.path(socket))).collect(),
            keepalive: 0,
        });
        IncludeInput {
            instance: InstanceName::new("lab"),
            build: polyfpm::text::nginx::Build::of_version(polyfpm::model::host::Version(1, 22, 1)),
            page_bytes: page_bytes(),
            balance: Balance::LeastConn,
            upstreams: upstreams.collect(),
        }
    }
}

fn server(socket: &Path) -> UpstreamServer {
    let shards = vec![ShardId::new(&GroupName::new("default"), 1)];
    UpstreamServer { endpoint: Endpoint::Unix(socket.to_owned()), workers: 4, shards }
}

fn render(input: &IncludeInput) -> String {
    let rendered = render_include(input);
    assert_eq!(rendered.refused, []);
    rendered.text
}

/// Waits for a condition, which must come within 20 s.
async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition().await {
        assert!(Instant::now() < deadline, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Gives the old workers among `workers`: those that another test's killed NGINX left behind count too.
fn of_ours(applied: Applied, workers: &[Pid]) -> Vec<Process> {
    applied.old_workers.into_iter().filter(|worker| workers.contains(&worker.pid)).collect()
}

#[tokio::test]
async fn an_include_is_written_reloaded_verified_and_then_left_alone() {
    let mut lab = Lab::new();
    lab.start().await;
    let state = lab.state().await;
    assert!(state.reads_include && state.clients.known, "{state:?}");
    assert_eq!(state.problems, []);
    let before = lab.workers().await;

    let text = lab.text(&[("a", &["1.sock", "2.sock"])]);
    let applied = lab.apply(&text).await;
    assert!(matches!(applied.outcome, IncludeOutcome::Reloaded), "{applied:?}");
    let old_workers = of_ours(applied, &before);
    assert_eq!(old_workers.len(), before.len());
    assert_eq!(wait_old_workers(&old_workers, DEADLINE).await, []);
    assert_eq!(lab.include(), Some(text.clone()));
    let after = lab.workers().await;
    assert!(after.len() == 2 && after.iter().all(|pid| !before.contains(pid)), "{before:?} {after:?}");
    let upstreams = lab.state().await.clients.upstreams;
    assert_eq!(upstreams.iter().map(|upstream| upstream.name.as_str()).collect::<Vec<_>>(), ["a"]);

    let applied = lab.apply(&text).await;
    assert!(matches!(applied.outcome, IncludeOutcome::Unchanged), "{applied:?}");
    assert_eq!(lab.workers().await, after);
}

#[tokio::test]
async fn every_method_passes_the_test_of_the_installed_nginx() {
    let lab = Lab::new();
    let build = lab.state().await.build.unwrap();
    assert!(build.version.is_some(), "{build:?}");
    for balance in [Balance::RoundRobin, Balance::LeastConn, Balance::Random, Balance::Affine] {
        for keepalive in [0, 2] {
            let mut input = lab.input(&[("a", &["1.sock", "2.sock", "3.sock"]), ("b", &["1.sock"])]);
            (input.build, input.balance) = (build.clone(), balance);
            input.upstreams[0].servers[1].workers = 7;
            input.upstreams[0].keepalive = keepalive;
            let applied = lab.apply(&render(&input)).await;
            let good = matches!(applied.outcome, IncludeOutcome::Written(NotReloaded::NotRunning) | IncludeOutcome::Unchanged);
            assert!(good, "{balance:?} {keepalive}: {applied:?}");
        }
    }
}

#[tokio::test]
async fn a_refused_text_is_taken_back() {
    let mut lab = Lab::new();
    lab.start().await;
    let before = lab.workers().await;
    let good = lab.text(&[("a", &["1.sock"])]);
    let bad = good.replace("server ", "bogus ");

    let applied = lab.apply(&bad).await;
    let IncludeOutcome::Refused(failure) = applied.outcome else { panic!("{applied:?}") };
    assert_eq!(failure.place.unwrap().file, lab.settings.include);
    assert!(failure.message.contains("bogus"), "{}", failure.message);
    assert_eq!(lab.include(), None);
    assert_eq!(lab.workers().await, before);

    lab.apply(&good).await;
    let applied = lab.apply(&bad).await;
    assert!(matches!(applied.outcome, IncludeOutcome::Refused(_)), "{applied:?}");
    assert_eq!(lab.include(), Some(good));
    assert_eq!(fs::read_dir(lab.path("conf.d")).unwrap().count(), 1);
}

#[tokio::test]
async fn a_configuration_broken_by_somebody_else_is_named_with_its_place() {
    let mut lab = Lab::new();
    lab.start().await;
    lab.write("sites/other", "server {\n    nonsense on;\n}\n");
    let state = lab.state().await;
    assert!(!state.clients.known);
    assert!(state.problems[0].message.contains("sites/other:2"), "{:?}", state.problems);

    let applied = lab.apply(&lab.text(&[("a", &["1.sock"])])).await;
    let IncludeOutcome::BrokenByOthers(failure) = applied.outcome else { panic!("{applied:?}") };
    assert_eq!(failure.to_string(), format!("{}:2: unknown directive \"nonsense\"", lab.path("sites/other").display()));
    assert_eq!(lab.include(), None);
}

#[tokio::test]
async fn an_include_that_mends_the_configuration_is_taken() {
    let lab = Lab::new();
    lab.write("sites/a", "server { listen 127.0.0.1:1; location / { fastcgi_pass a; } }");
    assert!(!lab.state().await.clients.known, "the upstream is missing");
    // Port 1 is only for NGINX's test, which binds it.
    let applied = lab.apply(&lab.text(&[("a", &["1.sock"])])).await;
    assert!(matches!(applied.outcome, IncludeOutcome::Written(NotReloaded::NotRunning)), "{applied:?}");
}

#[tokio::test]
async fn an_upstream_stays_while_something_refers_to_it() {
    let lab = Lab::new();
    let both = lab.text(&[("a", &["1.sock"]), ("b", &["2.sock"])]);
    let none = lab.text(&[]);
    lab.apply(&both).await;
    lab.write("locations", "location /a {\nfastcgi_pass A;\n}\n");

    let applied = lab.apply(&none).await;
    assert!(matches!(applied.outcome, IncludeOutcome::Written(_)), "{applied:?}");
    let kept: Vec<String> = applied.kept.iter().map(|kept| format!("{} {}", kept.name, kept.used_at[0])).collect();
    assert_eq!(kept, [format!("a {}:2", lab.path("locations").display())]);
    let include = lab.include().unwrap();
    assert!(include.contains("upstream a {") && include.contains("1.sock") && !include.contains("upstream b {"), "{include}");

    let applied = lab.apply(&none).await;
    assert!(matches!(applied.outcome, IncludeOutcome::Unchanged) && applied.kept.len() == 1, "{applied:?}");

    let fallbacks = BTreeMap::from([("a".to_owned(), Endpoint::Unix("/run/stock.sock".into()))]);
    lab.apply_with(&none, &fallbacks, RELOAD_TIME).await;
    assert!(lab.include().unwrap().contains("server unix:/run/stock.sock"), "{:?}", lab.include());

    lab.write("locations", "location /a { return 200; }\n");
    let applied = lab.apply(&none).await;
    assert!(matches!(applied.outcome, IncludeOutcome::Written(_)) && applied.kept.is_empty(), "{applied:?}");
    assert_eq!(lab.include(), Some(none));
}

#[tokio::test]
async fn every_upstream_stays_while_the_configuration_cannot_be_read() {
    let lab = Lab::new();
    lab.apply(&lab.text(&[("a", &["1.sock"])])).await;
    lab.write("sites/other", "nonsense");
    let applied = lab.apply(&lab.text(&[])).await;
    assert!(matches!(applied.outcome, IncludeOutcome::Unchanged | IncludeOutcome::BrokenByOthers(_)), "{applied:?}");
    assert!(applied.kept.len() == 1 && applied.kept[0].used_at.is_empty(), "{applied:?}");
    assert!(lab.include().unwrap().contains("upstream a {"));
}

#[tokio::test]
async fn nginx_that_is_absent_or_off_is_no_error() {
    let mut lab = Lab::new();
    lab.settings.binary = lab.path("nginx");
    let state = lab.state().await;
    assert!(state.build.is_none() && !state.clients.known && state.problems.len() == 1, "{state:?}");
    let applied = lab.apply(&lab.text(&[])).await;
    assert!(matches!(applied.outcome, IncludeOutcome::Absent), "{applied:?}");
    assert_eq!(lab.include(), None);
    lab.settings.enabled = false;
    assert_eq!(lab.state().await, NginxState::default());
}

#[tokio::test]
async fn without_reload_the_running_nginx_is_left_alone() {
    let mut lab = Lab::new();
    lab.start().await;
    lab.settings.reload = false;
    let before = lab.workers().await;
    let text = lab.text(&[("a", &["1.sock"])]);
    let applied = lab.apply(&text).await;
    assert!(matches!(applied.outcome, IncludeOutcome::Written(NotReloaded::Off)), "{applied:?}");
    assert_eq!(lab.include(), Some(text));
    assert_eq!(lab.workers().await, before);
    assert_eq!(of_ours(applied, &before).len(), before.len(), "they know the former text until somebody reloads");
}

#[tokio::test]
async fn a_reload_that_was_missed_is_made_up_for() {
    let mut lab = Lab::new();
    lab.start().await;
    // As a supervisor leaves it that ended between writing and reloading. Times of processes come in steps of 10 ms.
    let text = lab.text(&[("a", &["1.sock"])]);
    eventually("a younger file", async || {
        fs::write(&lab.settings.include, &text).unwrap();
        matches!(lab.apply(&text).await.outcome, IncludeOutcome::Reloaded)
    })
    .await;
    assert!(matches!(lab.apply(&text).await.outcome, IncludeOutcome::Unchanged));
}

#[tokio::test]
async fn a_reload_that_does_not_take_is_taken_back() {
    let mut lab = Lab::new();
    lab.start().await;
    let former = lab.text(&[("a", &["1.sock"])]);
    lab.apply(&former).await;
    let master = lab.server.as_ref().unwrap();
    master.signal(Signal::SIGSTOP).unwrap();
    let applied = lab.apply_with(&lab.text(&[]), &BTreeMap::new(), Duration::from_millis(300)).await;
    let IncludeOutcome::NotTaken(message) = applied.outcome else { panic!("{applied:?}") };
    assert!(message.contains("no new workers within 300ms"), "{message}");
    assert_eq!(lab.include(), Some(former));
}

#[tokio::test]
async fn somebody_elses_file_and_link_are_left_alone() {
    let mut lab = Lab::new();
    let text = lab.text(&[]);
    lab.write("conf.d/polyfpm.conf", "map $a $b { default 1; }\n");
    let applied = lab.apply(&text).await;
    assert!(matches!(applied.outcome, IncludeOutcome::Foreign { instance: None, .. }), "{applied:?}");
    lab.write("conf.d/polyfpm.conf", &text.replace("instance lab:", "instance other:"));
    let applied = lab.apply(&text).await;
    let IncludeOutcome::Foreign { instance, .. } = applied.outcome else { panic!("{applied:?}") };
    assert_eq!(instance.as_deref(), Some("other"));

    let theirs = lab.path("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
    lab.write("victim", "kept");
    symlink(lab.path("victim"), theirs.join("x.conf")).unwrap();
    lchown(theirs.join("x.conf"), Some(NOBODY), Some(NOBODY)).unwrap();
    lab.settings.include = theirs.join("x.conf");
    let applied = lab.apply(&text).await;
    assert!(matches!(applied.outcome, IncludeOutcome::File(_)), "{applied:?}");
    assert_eq!(fs::read_to_string(lab.path("victim")).unwrap(), "kept");
}

#[tokio::test]
async fn old_workers_are_waited_for() {
    let mut lab = Lab::new();
    lab.start().await;
    let mut held = lab.connect("GET / HTTP/1.1\r\nHost: a\r\n").await;
    let before = lab.workers().await;
    let applied = lab.apply(&lab.text(&[("a", &["1.sock"])])).await;
    assert!(matches!(applied.outcome, IncludeOutcome::Reloaded), "{applied:?}");
    let old_workers = of_ours(applied, &before);
    let left = wait_old_workers(&old_workers, Duration::from_secs(1)).await;
    assert_eq!(left.len(), 1, "the worker with the unfinished request");
    held.shutdown().await.unwrap();
    drop(held);
    assert_eq!(wait_old_workers(&left, DEADLINE).await, []);
}

#[tokio::test]
async fn nginx_connects_to_any_path_that_is_written() {
    let mut lab = Lab::new();
    let names = ["plain", "a:b", "a b", "a;b{c}", "$x${y}", "q\"'\\t", "é#"];
    let listeners: Vec<UnixListener> = names.iter().map(|name| UnixListener::bind(lab.path(name)).unwrap()).collect();
    let upstreams: Vec<(String, [&str; 1])> = names.iter().enumerate().map(|(number, name)| (format!("u{number}"), [*name])).collect();
    let upstreams: Vec<(&str, &[&str])> = upstreams.iter().map(|(name, sockets)| (name.as_str(), sockets.as_slice())).collect();
    let locations: String = (0..names.len()).map(|number| format!("location /{number} {{ fastcgi_pass u{number}; }}\n")).collect();
    lab.apply(&lab.text(&upstreams)).await;
    lab.write("locations", &locations);
    lab.start().await;
    let clients = lab.state().await.clients;
    for (number, listener) in listeners.iter().enumerate() {
        let endpoint = Endpoint::Unix(lab.path(names[number]));
        assert_eq!(clients.upstreams[number].servers, [endpoint], "{}", names[number]);
        let mut client = lab.connect(&format!("GET /{number} HTTP/1.0\r\n\r\n")).await;
        let accepted = tokio::time::timeout(DEADLINE, listener.accept()).await;
        drop(accepted.unwrap_or_else(|_| panic!("nobody connected to {}", names[number])));
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 502"), "{}", String::from_utf8_lossy(&answer));
    }
}

#[tokio::test]
async fn clients_are_found_with_their_links_resolved() {
    let lab = Lab::new();
    let socket = lab.path("real.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    symlink(&socket, lab.path("link.sock")).unwrap();
    symlink(lab.directory.path(), lab.path("run")).unwrap();
    let root = lab.directory.path().display();
    lab.write(
        "locations",
        &format!(
            "location /1 {{ fastcgi_pass unix:{root}/link.sock; }}\nlocation /2 {{ fastcgi_pass unix:{root}/run/none.sock; }}\n\
             location /3 {{ fastcgi_keep_conn on; fastcgi_pass $uri; }}\n"
        ),
    );
    let clients = lab.state().await.clients;
    assert!(clients.known);
    let found: Vec<(u32, &PassTarget, bool)> = clients.passes.iter().map(|pass| (pass.place.line, &pass.target, pass.keep_conn)).collect();
    let expected = [
        (1, &PassTarget::Endpoint(Endpoint::Unix(socket)), false),
        (2, &PassTarget::Endpoint(Endpoint::Unix(lab.path("none.sock"))), false),
        (3, &PassTarget::Variable("$uri".to_owned()), true),
    ];
    assert_eq!(found, expected);
}
