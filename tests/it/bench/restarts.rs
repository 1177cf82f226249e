//! php-fpm's own reload beside a rolling restart, under the same load.

use std::ops::Range;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{Clients, Extra, Ground, Listener, Load, Master, MasterPlan, Nginx, Report, Route, Sandbox, Site, unix_pass};

const TIMES: u32 = 3;
const STEADY: Duration = Duration::from_secs(4);
const CLIENTS: u32 = 16;
const WORKERS: u32 = 16;
const SETTLE: &str = "1s";

/// A request that is under way whenever a restart begins.
const LONG: Duration = Duration::from_secs(3);

pub(super) fn side_by_side() {
    let long = [Extra::Long(LONG)];
    eprintln!(
        "\nRestarts under load: {TIMES} each, {CLIENTS} clients, {WORKERS} workers in all, polyfpm with two shards and settle = {SETTLE}"
    );
    header();
    own_reload("php-fpm reload (SIGUSR2), as shipped", "0", &[]).print();
    own_reload("php-fpm reload, process_control_timeout = 10s", "10s", &[]).print();
    rolling("polyfpm restart, unix", Way::Unix, &[]).print();
    rolling("polyfpm restart, unix, kept connections", Way::Kept, &[]).print();
    rolling("polyfpm restart, TCP", Way::Tcp, &[]).print();
    eprintln!("\nThe same with requests of {LONG:?} under way");
    header();
    own_reload("php-fpm reload (SIGUSR2), as shipped", "0", &long).print();
    own_reload("php-fpm reload, process_control_timeout = 10s", "10s", &long).print();
    rolling("polyfpm restart, unix", Way::Unix, &long).print();
}

/// How the load reaches polyfpm's shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Split over unix sockets, through the generated upstream.
    Unix,
    /// The same, NGINX keeping connections.
    Kept,
    /// Split over TCP, through the generated upstream.
    Tcp,
}

/// One row of the table.
struct Row {
    what: String,
    report: Report,
    steady: Range<Duration>,
    disturbed: Range<Duration>,
    each: Duration,
    reloads: u64,
}

fn header() {
    eprintln!(
        "| what | requests | failed | p50 steady / during | p99 steady | p99 during | ratio | slowest during | each took | NGINX reloads |"
    );
    eprintln!("|---|---|---|---|---|---|---|---|---|---|");
}

impl Row {
    fn print(&self) {
        let lost = self.report.failed.len() + self.report.hidden.len() + self.report.miscounted.len();
        let ms = |q: f64, span: &Range<Duration>| self.report.quantile_within(q, span).as_secs_f64() * 1000.0;
        let (steady, during) = (ms(0.99, &self.steady), ms(0.99, &self.disturbed));
        eprintln!(
            "| {} | {} | {} | {:.1} / {:.1} ms | {:.1} ms | {:.1} ms | {:.2} | {:.0} ms | {:.2} s | {} |",
            self.what,
            self.report.samples.len(),
            lost,
            ms(0.5, &self.steady),
            ms(0.5, &self.disturbed),
            steady,
            during,
            during / steady,
            ms(1.0, &self.disturbed),
            self.each.as_secs_f64(),
            self.reloads,
        );
    }
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
    Row { what: what.to_owned(), report, steady: warm..begin, disturbed: begin..end, each: spent / TIMES, reloads: 0 }
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

fn rolling(what: &str, way: Way, extras: &[Extra]) -> Row {
    let mut host = Sandbox::new();
    let (listen, pass) = match way {
        Way::Unix | Way::Kept => (host.ground().text("run/www.sock"), host.pass("www")),
        Way::Tcp => {
            let address = format!("127.0.0.1:{}", host.ground().port());
            (address.clone(), address)
        }
    };
    host.pool_at("www", &listen, WORKERS, "");
    host.set("shards", "routing", "split");
    host.set("restart", "settle", SETTLE);
    host.set("log", "level", "info");
    if way == Way::Kept {
        host.set("nginx", "keepalive", 2);
    }
    host.front(&Site::one(Route::new("www", &pass)));
    host.run();
    let route = Route::new("www", &Sandbox::upstream("www"));
    crate::support::eventually(Duration::from_secs(10), "the include is written", || {
        host.ground().read("nginx/conf.d/polyfpm.conf").contains(&Sandbox::upstream("www")).then_some(())
    });
    host.edit(&Site::one(if way == Way::Kept { route.keep_conn() } else { route }));
    // What polyfpm knows of NGINX's configuration decides how long it waits for kept connections.
    host.does(&["reload"]);
    let reloads = || host.status()["nginx"]["reloads"].as_u64().unwrap_or_default();
    let before = reloads();
    let row = row(what, host.ground(), host.nginx(), extras, || drop(host.does(&["restart"])));
    Row { reloads: reloads() - before, ..row }
}
