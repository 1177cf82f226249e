//! Figures, not verdicts: `make bench` prints them. The table in README.md comes from here.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::promise::measure;
use crate::support::{Clients, Extra, Ground, Listener, Load, Master, MasterPlan, Nginx, Report, Route, Sandbox, Site, unix_pass};

const TIMES: u32 = 5;
const STEADY: Duration = Duration::from_secs(4);
const CLIENTS: u32 = 16;
const WORKERS: u32 = 16;

/// One row of the table.
struct Row {
    what: String,
    report: Report,
    steady: std::ops::Range<Duration>,
    disturbed: std::ops::Range<Duration>,
    each: Duration,
}

impl Row {
    fn print(&self) {
        let lost = self.report.failed.len() + self.report.hidden.len();
        let ms = |q: f64, span: &std::ops::Range<Duration>| self.report.quantile_within(q, span).as_secs_f64() * 1000.0;
        eprintln!(
            "| {:<46} | {:>7} | {:>5} | {:>6.1} | {:>6.1} | {:>6.1} | {:>7.1} | {:>5.2} s |",
            self.what,
            self.report.samples.len(),
            lost,
            ms(0.5, &self.steady),
            ms(0.99, &self.steady),
            ms(0.99, &self.disturbed),
            ms(1.0, &self.disturbed),
            self.each.as_secs_f64()
        );
    }
}

fn header() {
    eprintln!("| what | requests | failed | p50 ms | p99 ms | p99 during | slowest during | each took |");
    eprintln!("|---|---|---|---|---|---|---|---|");
}

/// Runs `act` some times under load, after a steady stretch.
fn row(what: &str, ground: &Ground, nginx: &Nginx, extras: &[Extra], mut act: impl FnMut()) -> Row {
    let load = Load::start(ground, nginx, "www", Clients::keeping(CLIENTS), extras);
    load.run_for(Duration::from_secs(1));
    let warm = load.now();
    load.run_for(STEADY);
    let begin = load.now();
    let mut spent = Duration::ZERO;
    for _ in 0..TIMES {
        let began = Instant::now();
        act();
        spent += began.elapsed();
        load.run_for(Duration::from_millis(300));
    }
    let end = load.now();
    let report = load.finish(ground);
    Row { what: what.to_owned(), report, steady: warm..begin, disturbed: begin..end, each: spent / TIMES }
}

/// php-fpm's own reload, as `systemctl reload php-fpm` does it.
fn own_reload(what: &str, timeout: &str, extras: &[Extra]) -> Row {
    let ground = Ground::new();
    let path = ground.path("run/www.sock");
    let listener = Listener::unix(&path);
    let plan = MasterPlan::one_pool(&ground, "own", &listener, WORKERS).global(&format!("process_control_timeout = {timeout}"));
    let master = Master::start(&ground, &plan);
    let nginx = Nginx::start(&ground, &Site::one(Route::new("www", &unix_pass(&path))));
    row(what, &ground, &nginx, extras, || {
        let before = master.workers();
        master.running.signal(Signal::SIGUSR2);
        crate::support::eventually(Duration::from_secs(60), "the workers are new", || {
            let now = master.workers();
            (!now.is_empty() && now.iter().all(|worker| !before.contains(worker))).then_some(())
        });
    })
}

fn rolling(what: &str, keep: bool, extras: &[Extra]) -> Row {
    let mut host = Sandbox::new();
    host.pool("www", WORKERS);
    host.set("shards", "routing", "split");
    host.set("restart", "settle", "1s");
    host.set("log", "level", "info");
    if keep {
        host.set("nginx", "keepalive", 2);
    }
    host.front_at_old_paths(&["www"]);
    host.run();
    let route = Route::new("www", &Sandbox::upstream("www"));
    host.edit(&Site::one(if keep { route.keep_conn() } else { route }));
    row(what, host.ground(), host.nginx(), extras, || drop(host.does(&["restart"])))
}

#[test]
#[ignore = "a benchmark: make bench"]
fn restarts_side_by_side() {
    let long = [Extra::Long(Duration::from_secs(3))];
    eprintln!("\n{TIMES} restarts, {CLIENTS} clients, {WORKERS} workers, two shards with settle 1s");
    header();
    own_reload("php-fpm reload, as shipped", "0", &[]).print();
    own_reload("php-fpm reload, process_control_timeout=30s", "30s", &[]).print();
    rolling("polyfpm restart", false, &[]).print();
    rolling("polyfpm restart, kept connections", true, &[]).print();
    eprintln!("\nthe same with requests of 3 s under way");
    header();
    own_reload("php-fpm reload, as shipped", "0", &long).print();
    own_reload("php-fpm reload, process_control_timeout=30s", "30s", &long).print();
    rolling("polyfpm restart", false, &long).print();
}

#[test]
#[ignore = "a benchmark: make bench"]
fn a_thousand_pools_side_by_side() {
    let seen = measure(1000, Duration::from_secs(10));
    eprintln!("\n1,000 on-demand pools on two masters: plain php-fpm {:?}, polyfpm {:?}", seen.plain, seen.polyfpm);
    eprintln!("supervisor: {} kB, {:.3} % of a CPU while idle", seen.memory_kb, seen.idle_cpu * 100.0);
}
