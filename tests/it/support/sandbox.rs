//! polyfpm as an operator runs it: a settings file, php-fpm.conf with pool files, NGINX, and the command line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;

use super::process::{Ended, Running, children, run};
use super::{Ground, Nginx, Route, Site, eventually, php_fpm, pool_lines, unix_pass, within};

/// 60 s: a thousand pools start in a few.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// 120 s: ten shards with requests of 45 s under way.
const COMMAND_WITHIN: Duration = Duration::from_secs(120);

/// 75 s: longer than the drain time-out of the settings below.
const STOPPED_WITHIN: Duration = Duration::from_secs(75);

/// One shard, as `status --json` shows it. The names of the keys are part of the promise.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Shard {
    pub(crate) group: String,
    pub(crate) shard: String,
    pub(crate) generation: u64,
    pub(crate) pid: Option<i32>,
    pub(crate) cpus: Option<String>,
    pub(crate) verdict: String,
    #[serde(default)]
    pub(crate) reason: Option<String>,
    #[serde(default)]
    pub(crate) workers_busy: Option<u32>,
    #[serde(default)]
    pub(crate) failures: u32,
    #[serde(default)]
    pub(crate) pools: Vec<String>,
}

impl Shard {
    /// Gives what a restart changes and nothing else does.
    pub(crate) fn master(&self) -> (&str, u64, Option<i32>) {
        (&self.shard, self.generation, self.pid)
    }
}

/// An instance of polyfpm with everything it needs, all of it the test's own.
pub(crate) struct Sandbox {
    supervisor: Option<Running>,
    nginx: Option<Nginx>,
    settings: BTreeMap<String, toml::Table>,
    program: PathBuf,
    ground: Ground,
}

impl Sandbox {
    /// Lays everything out; nothing runs yet. Two shards, and settings that do not make a test wait.
    pub(crate) fn new() -> Self {
        Self::on(Ground::new())
    }

    /// Lays everything out on this ground.
    pub(crate) fn on(ground: Ground) -> Self {
        let text = format!(
            "[global]\nerror_log = {}\npid = {}\ninclude = {}\n",
            ground.text("log/php-fpm.error"),
            ground.text("run/php-fpm.pid"),
            ground.text("pool.d/*.conf")
        );
        ground.write("php-fpm.conf", &text);
        std::fs::create_dir_all(ground.path("nginx/conf.d")).expect("a directory for the include");
        let mut sandbox = Self { supervisor: None, nginx: None, settings: BTreeMap::new(), program: binary(), ground };
        sandbox.set("php", "binary", php_fpm().display().to_string());
        sandbox.set("php", "config", sandbox.ground.text("php-fpm.conf"));
        sandbox.set("shards", "count", 2);
        sandbox.set("shards", "min_workers", 1);
        sandbox.set("run", "directory", sandbox.ground.text("run/polyfpm"));
        sandbox.set("health", "interval", "500ms");
        sandbox.set("restart", "settle", "200ms");
        sandbox.set("restart", "drain_timeout", "60s");
        sandbox.set("restart", "backoff", "100ms");
        sandbox.set("nginx", "binary", Nginx::binary().display().to_string());
        sandbox.set("nginx", "config", sandbox.ground.text("nginx/nginx.conf"));
        sandbox.set("nginx", "include", sandbox.ground.text("nginx/conf.d/polyfpm.conf"));
        sandbox.set("nginx", "upstream", "php_{instance}_{pool}");
        // Within the hard limit of small machines.
        sandbox.set("limits", "nofile", 8192);
        sandbox.set("log", "level", "debug");
        sandbox
    }

    /// Gives the ground everything lies on.
    pub(crate) fn ground(&self) -> &Ground {
        &self.ground
    }

    /// Gives the running NGINX.
    pub(crate) fn nginx(&self) -> &Nginx {
        self.nginx.as_ref().expect("front() comes first")
    }

    /// Sets a key of the settings, and writes the file.
    pub(crate) fn set(&mut self, table: &str, key: &str, value: impl Into<toml::Value>) {
        self.settings.entry(table.to_owned()).or_default().insert(key.to_owned(), value.into());
        let text = toml::to_string(&self.settings).expect("plain values");
        self.ground.write("web.toml", &text);
    }

    /// Writes a pool of `workers` that listens on `run/NAME.sock`.
    pub(crate) fn pool(&self, name: &str, workers: u32) {
        self.pool_at(name, &self.ground.text(&format!("run/{name}.sock")), workers, "");
    }

    /// Writes a pool that listens at `listen`, with further lines.
    pub(crate) fn pool_at(&self, name: &str, listen: &str, workers: u32, lines: &str) {
        let owner = "listen.owner = www-data\nlisten.group = www-data";
        self.pool_file(name, &format!("[{name}]\nlisten = {listen}\n{owner}\n{}{lines}\n", pool_lines(workers)));
    }

    /// Writes a pool file.
    pub(crate) fn pool_file(&self, name: &str, text: &str) {
        self.ground.write(&format!("pool.d/{name}.conf"), text);
    }

    /// Removes a pool file.
    pub(crate) fn no_pool(&self, name: &str) {
        std::fs::remove_file(self.ground.path(&format!("pool.d/{name}.conf"))).expect("a pool file");
    }

    /// Gives what `fastcgi_pass` says for a pool's own socket.
    pub(crate) fn pass(&self, pool: &str) -> String {
        unix_pass(&self.ground.path(&format!("run/{pool}.sock")))
    }

    /// Gives the name of a pool's generated upstream.
    pub(crate) fn upstream(pool: &str) -> String {
        format!("php_web_{pool}")
    }

    /// Ends NGINX without mercy and starts it anew with this site, at the same port.
    pub(crate) fn front_again(&mut self, site: &Site) {
        self.nginx.as_mut().expect("front() comes first").replace(&self.ground, site);
    }

    /// Makes NGINX a daemon that can be upgraded in place.
    pub(crate) fn daemonize_front(&mut self) {
        self.nginx.as_mut().expect("front() comes first").daemonize(&self.ground);
    }

    /// Starts NGINX with this site.
    pub(crate) fn front(&mut self, site: &Site) {
        self.nginx = Some(Nginx::start(&self.ground, site));
    }

    /// Starts NGINX with each of these pools at its old path, `/POOL/x.php`.
    pub(crate) fn front_at_old_paths(&mut self, pools: &[&str]) {
        let routes = pools.iter().map(|pool| Route::new(pool, &self.pass(pool))).collect();
        self.front(&Site { routes, ..Site::default() });
    }

    /// Edits NGINX's site while it runs.
    pub(crate) fn edit(&self, site: &Site) {
        self.nginx().edit(&self.ground, site);
    }

    /// Puts a copy of our program on the ground, from which the supervisor is started; gives its path.
    pub(crate) fn install(&mut self) -> PathBuf {
        self.program = self.ground.path("polyfpm");
        std::fs::copy(binary(), &self.program).expect("a copy of the program");
        self.program.clone()
    }

    /// Starts the supervisor and waits until every shard serves.
    #[track_caller]
    pub(crate) fn run(&mut self) {
        self.launch();
        self.ready();
    }

    /// Starts the supervisor and waits for nothing.
    pub(crate) fn launch(&mut self) {
        self.launch_with(&[]);
    }

    /// Starts the supervisor with these variables in its environment and waits for nothing.
    pub(crate) fn launch_with(&mut self, environment: &[(&str, &str)]) {
        let settings = self.ground.text("web.toml");
        let arguments = ["run", "-c", settings.as_str()];
        self.supervisor = Some(Running::start(&self.program, &arguments, environment, &self.ground.path("log/polyfpm.out")));
    }

    /// Starts the supervisor through another program, which drops rights, and waits for nothing.
    pub(crate) fn launch_through(&mut self, program: &str, arguments: &[&str]) {
        let (settings, polyfpm) = (self.ground.text("web.toml"), binary().display().to_string());
        let words: Vec<&str> = arguments.iter().copied().chain([polyfpm.as_str(), "run", "-c", settings.as_str()]).collect();
        self.supervisor = Some(Running::start(Path::new(program), &words, &[], &self.ground.path("log/polyfpm.out")));
    }

    /// Waits until every shard that has pools serves.
    #[track_caller]
    pub(crate) fn ready(&mut self) {
        let supervisor = self.supervisor.as_mut().expect("run() comes first");
        let (ground, what) = (&self.ground, "every shard serves");
        let seen = within(READY_WITHIN, || {
            assert!(supervisor.ended().is_none(), "polyfpm ended before it was ready:\n{}", supervisor.output());
            let shards = shards_of(ground)?;
            let halted = shards.iter().any(|shard| shard.verdict == "halted");
            (halted || !shards.is_empty() && shards.iter().all(serves)).then_some(!halted)
        });
        assert!(seen == Some(true), "not within {READY_WITHIN:?}: {what}; status: {:#?}", shards_of(ground));
        self.include_is_handled();
    }

    /// Waits until polyfpm has done with the include what it can: PHP does not wait for NGINX.
    #[track_caller]
    fn include_is_handled(&self) {
        let Some(nginx) = &self.nginx else { return };
        if self.settings["nginx"].get("enabled").and_then(toml::Value::as_bool) == Some(false) {
            return;
        }
        eventually(READY_WITHIN, "the include is handled", || {
            let state = status_of(&self.ground)?;
            (state["nginx"]["state"] != "off" && nginx.settled()).then_some(())
        });
    }

    /// Gives the supervisor.
    pub(crate) fn supervisor(&mut self) -> &mut Running {
        self.supervisor.as_mut().expect("run() comes first")
    }

    /// Sends the supervisor a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        self.supervisor.as_ref().expect("run() comes first").signal(signal);
    }

    /// Runs a command and gives how it ended.
    #[track_caller]
    pub(crate) fn polyfpm(&self, arguments: &[&str]) -> Ended {
        command(&self.ground, arguments)
    }

    /// Runs a command with another settings file.
    #[track_caller]
    pub(crate) fn second(&self, arguments: &[&str], settings: &str) -> Ended {
        let settings = self.ground.text(settings);
        let words: Vec<&str> = arguments.iter().copied().chain(["-c", settings.as_str()]).collect();
        run(&binary(), &words, &self.ground.path("log"), COMMAND_WITHIN)
    }

    /// Runs a command that must end well, and gives what it printed.
    #[track_caller]
    pub(crate) fn does(&self, arguments: &[&str]) -> String {
        let ended = self.polyfpm(arguments);
        assert_eq!(ended.code, 0, "polyfpm {arguments:?}\n{}{}\nits supervisor:\n{}", ended.out, ended.err, self.log_tail());
        ended.out
    }

    /// Starts a command and does not wait for it.
    pub(crate) fn begin(&self, arguments: &[&str], log: &str) -> Running {
        let settings = self.ground.text("web.toml");
        let words: Vec<&str> = arguments.iter().copied().chain(["-c", settings.as_str()]).collect();
        Running::start(&binary(), &words, &[], &self.ground.path(log))
    }

    /// Gives the picture as JSON.
    #[track_caller]
    pub(crate) fn status(&self) -> serde_json::Value {
        let out = self.does(&["status", "--json"]);
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("status --json is no JSON: {e}\n{out}"))
    }

    /// Gives every shard that has pools, in order.
    #[track_caller]
    pub(crate) fn shards(&self) -> Vec<Shard> {
        shards_of(&self.ground).expect("status --json")
    }

    /// Gives the masters' pids.
    #[track_caller]
    pub(crate) fn masters(&self) -> Vec<i32> {
        self.shards().iter().filter_map(|shard| shard.pid).collect()
    }

    /// Gives the workers of every master, those on status sockets (P31) included.
    #[track_caller]
    pub(crate) fn workers(&self) -> Vec<i32> {
        self.masters().iter().flat_map(|master| children(*master)).collect()
    }

    /// Gives the workers of a pool under every master. Those that only answer on the status socket (P31) carry another title.
    #[track_caller]
    pub(crate) fn pool_workers(&self, pool: &str) -> Vec<i32> {
        let title = format!("php-fpm: pool {pool}");
        let titled = |pid: &i32| {
            let shown = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&shown).trim_end_matches(['\0', ' ']) == title
        };
        self.masters().iter().flat_map(|master| children(*master)).filter(titled).collect()
    }

    /// Tells the supervisor to leave by SIGTERM, waits, and checks that nothing is left.
    #[track_caller]
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        self.gone();
    }

    /// Waits for the supervisor's end, and checks that it was in order and that nothing is left.
    #[track_caller]
    pub(crate) fn gone(&mut self) {
        let code = self.supervisor().exit_code(STOPPED_WITHIN);
        self.supervisor = None;
        assert_eq!(code, 0, "polyfpm's exit code:\n{}", self.log_tail());
        self.nginx = None;
        let left = self.ground.population();
        assert!(left.is_empty(), "left alive by polyfpm: {left:#?}");
        let sockets = self.ground.socket_files();
        assert!(sockets.is_empty(), "left behind by polyfpm: {sockets:#?}");
    }

    /// Waits for the supervisor's end, which must be in order, and leaves NGINX running.
    #[track_caller]
    pub(crate) fn ends(&mut self) {
        let code = self.supervisor().exit_code(STOPPED_WITHIN);
        self.supervisor = None;
        assert_eq!(code, 0, "polyfpm's exit code:\n{}", self.log_tail());
        let left: Vec<_> = self.ground.population().into_iter().filter(|(_, what)| !what.contains("nginx")).collect();
        assert!(left.is_empty(), "left alive by polyfpm: {left:#?}");
        let sockets = self.ground.socket_files();
        assert!(sockets.is_empty(), "left behind by polyfpm: {sockets:#?}");
        assert!(!self.ground.path("run/polyfpm").exists(), "the runtime directory was left behind");
    }

    /// Gives the end of the supervisor's log.
    pub(crate) fn log_tail(&self) -> String {
        let log = self.ground.read("log/polyfpm.out");
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let Some(mut supervisor) = self.supervisor.take() else { return };
        if std::thread::panicking() || supervisor.ended().is_some() {
            for (process, _) in self.ground.population() {
                kill(Pid::from_raw(process.pid), Signal::SIGKILL).ok();
            }
            return;
        }
        self.supervisor = Some(supervisor);
        self.stop();
    }
}

/// Gives our own program: `POLYFPM`, or what was built with the tests.
pub(crate) fn binary() -> PathBuf {
    std::env::var_os("POLYFPM").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_polyfpm")), PathBuf::from)
}

#[track_caller]
fn command(ground: &Ground, arguments: &[&str]) -> Ended {
    let settings = ground.text("web.toml");
    let words: Vec<&str> = arguments.iter().copied().chain(["-c", settings.as_str()]).collect();
    run(&binary(), &words, &ground.path("log"), COMMAND_WITHIN)
}

fn status_of(ground: &Ground) -> Option<serde_json::Value> {
    serde_json::from_str(&command(ground, &["status", "--json"]).out).ok()
}

fn shards_of(ground: &Ground) -> Option<Vec<Shard>> {
    let status = status_of(ground)?;
    let shards: Vec<Shard> = serde_json::from_value(status.get("shards")?.clone()).expect("the shards of status --json");
    Some(shards.into_iter().filter(|shard| shard.verdict != "empty").collect())
}

fn serves(shard: &Shard) -> bool {
    matches!(shard.verdict.as_str(), "ready" | "busy" | "saturated") && shard.pid.is_some()
}

/// A copy of the fake php-fpm whose behaviour a test chooses.
pub(crate) struct FakeFpm {
    path: PathBuf,
}

impl FakeFpm {
    /// Puts it on the ground; it runs the real one until told otherwise.
    pub(crate) fn on(ground: &Ground) -> Self {
        let tests = std::env::current_exe().expect("the test's own path");
        let built = tests.parent().and_then(Path::parent).expect("a build directory").join("examples/fake-fpm");
        let path = ground.path("fake-php-fpm");
        std::fs::copy(&built, &path).unwrap_or_else(|e| panic!("copy {}: {e}; cargo build --example fake-fpm makes it", built.display()));
        Self { path }
    }

    /// Gives its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Sets what it does from its next start on.
    pub(crate) fn does(&self, mode: &str) {
        let mut name = self.path.clone().into_os_string();
        name.push(".mode");
        std::fs::write(name, mode).expect("the fake's mode");
    }
}

/// Waits until the shards are as a test says.
#[track_caller]
pub(crate) fn until_shards(sandbox: &Sandbox, what: &str, is: impl Fn(&[Shard]) -> bool) -> Vec<Shard> {
    eventually(READY_WITHIN, what, || Some(sandbox.shards()).filter(|shards| is(shards)))
}
