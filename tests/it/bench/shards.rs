//! What pinned shards bring: one unpinned master against two shards, the same workers in all, in turns.

use std::path::Path;
use std::time::Duration;

use super::spread;
use crate::support::{Ground, Listener, Master, MasterPlan, Nginx, Route, Sandbox, Site, run, unix_pass};

const ROUNDS: usize = 5;
const SECONDS: u32 = 3;
const CLIENTS: u32 = 32;
const WORKERS: u32 = 32;

/// What one round of one layout came to.
struct Round {
    requests_per_second: f64,
    p99_ms: f64,
}

pub(super) fn against_one_master() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    let plan = MasterPlan::one_pool(&ground, "one", &listener, WORKERS);
    let master = Master::start(&ground, &plan);
    let one = Nginx::start(&ground, &Site::one(Route::new("www", &unix_pass(&ground.path("run/www.sock")))));
    let layouts = ["off", "auto"].map(shards);
    let layers: [(&str, &Nginx); 3] =
        [("one master, not pinned", &one), ("two shards, not pinned", layouts[0].nginx()), ("two shards, pinned", layouts[1].nginx())];
    let mut seen: [Vec<Round>; 3] = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for ((_, nginx), rounds) in layers.iter().zip(&mut seen) {
            rounds.push(wrk(nginx, &ground));
        }
    }
    eprintln!("\nThroughput of a trivial script: {CLIENTS} clients, {WORKERS} workers in all, {ROUNDS} interleaved rounds of {SECONDS} s");
    eprintln!("| what | requests/s | times one master | p99 |\n|---|---|---|---|");
    for (at, (what, _)) in layers.iter().enumerate() {
        let rate = spread(seen[at].iter().map(|round| round.requests_per_second).collect());
        let ratio = spread(seen[at].iter().zip(&seen[0]).map(|(round, one)| round.requests_per_second / one.requests_per_second).collect());
        let p99 = spread(seen[at].iter().map(|round| round.p99_ms).collect());
        let (low, high) = (ratio.1, ratio.2);
        eprintln!("| {what} | {:.0} | {:.2} ({low:.2}–{high:.2}) | {:.1} ms ({:.1}–{:.1}) |", rate.0, ratio.0, p99.0, p99.1, p99.2);
    }
    master.quit(Duration::from_secs(10));
}

fn shards(cpus: &str) -> Sandbox {
    let mut host = Sandbox::new();
    host.pool("www", WORKERS);
    host.set("shards", "routing", "split");
    host.set("shards", "cpus", cpus);
    host.set("health", "interval", "2s");
    host.set("log", "level", "info");
    host.front_at_old_paths(&["www"]);
    host.run();
    crate::support::eventually(Duration::from_secs(10), "the include is written", || {
        host.ground().read("nginx/conf.d/polyfpm.conf").contains(&Sandbox::upstream("www")).then_some(())
    });
    host.edit(&Site::one(Route::new("www", &Sandbox::upstream("www"))));
    host
}

fn wrk(nginx: &Nginx, ground: &Ground) -> Round {
    let url = format!("http://127.0.0.1:{}/www/hello.php?id=w", nginx.port());
    let (seconds, clients) = (format!("-d{SECONDS}s"), format!("-c{CLIENTS}"));
    let arguments = ["-t1", &clients, &seconds, "--latency", &url];
    let ended = run(Path::new("/usr/bin/wrk"), &arguments, &ground.path("log"), Duration::from_secs(60));
    let word = |start: &str| ended.out.lines().find_map(|line| line.trim().strip_prefix(start).map(|rest| rest.trim().to_owned()));
    let faults = word("Non-2xx").or_else(|| word("Socket errors"));
    assert!(faults.is_none(), "wrk saw faults:\n{}", ended.out);
    let requests_per_second = word("Requests/sec:").and_then(|text| text.parse().ok());
    let p99_ms = word("99%").and_then(|text| milliseconds(&text));
    Round { requests_per_second: requests_per_second.expect("wrk's rate"), p99_ms: p99_ms.expect("wrk's latency") }
}

/// Reads a time as wrk writes it.
fn milliseconds(text: &str) -> Option<f64> {
    for (unit, factor) in [("us", 0.001), ("ms", 1.0), ("s", 1000.0)] {
        if let Some(number) = text.strip_suffix(unit) {
            return number.parse::<f64>().ok().map(|number| number * factor);
        }
    }
    None
}
