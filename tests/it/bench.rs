//! Figures, not verdicts: `make bench` prints them. The tables in docs/benchmarks.md come from here.

mod restarts;
mod shards;

use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use crate::promise::{Layout, Scale, measure};
use crate::support::{Nginx, php_fpm, run};

/// Runs of the start-up benchmark; the median is told.
const STARTS: usize = 7;

/// 20 s: ten looks at every shard.
const IDLE: Duration = Duration::from_secs(20);

#[test]
#[ignore = "a benchmark: make bench"]
fn a_thousand_pools() {
    machine();
    start_of_a_thousand();
}

#[test]
#[ignore = "a benchmark: make bench"]
fn restarts() {
    machine();
    restarts::side_by_side();
}

#[test]
#[ignore = "a benchmark: make bench"]
fn shards() {
    machine();
    shards::against_one_master();
}

/// Gives the middle of some figures, and the lowest and the highest.
fn spread(mut figures: Vec<f64>) -> (f64, f64, f64) {
    figures.sort_by(f64::total_cmp);
    (figures[figures.len() / 2], figures[0], figures[figures.len() - 1])
}

/// Tells, once in a run, what the figures were measured on.
fn machine() {
    static TOLD: Once = Once::new();
    TOLD.call_once(tell_machine);
}

fn tell_machine() {
    let first = |program: &Path, argument: &str| {
        let ended = run(program, &[argument], Path::new("/tmp"), Duration::from_secs(20));
        format!("{}{}", ended.out, ended.err).lines().next().unwrap_or_default().to_owned()
    };
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map_or("", |(_, model)| model);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    eprintln!("\nMachine: {} CPUs ({model}), Linux {}", cpus.matches("processor\t").count(), kernel.trim());
    eprintln!("Versions: {}; {}; polyfpm {}", first(&php_fpm(), "-v"), first(&Nginx::binary(), "-v"), env!("CARGO_PKG_VERSION"));
    eprintln!("Build: {}", if cfg!(debug_assertions) { "debug: not the figures to quote" } else { "release" });
    eprintln!("Load average before: {}", load.split(' ').next().unwrap_or_default());
}

fn start_of_a_thousand() {
    let shared = start_of(Layout::Shared, "all 1,000 on each of two masters");
    let whole = start_of(Layout::Whole, "500 on each of two masters");
    for (layout, last) in [("each pool on both shards", shared), ("each pool on one shard", whole)] {
        let idle = last.idle_cpu.unwrap_or_default() * 100.0;
        eprintln!(
            "Supervisor, {layout}: {} kB PSS, {} open files, {idle:.2} % of a CPU while idle ({IDLE:?})",
            last.memory_kb, last.open_files
        );
    }
}

/// Tells what starts took both ways, and gives the last one.
fn start_of(layout: Layout, words: &str) -> Scale {
    let seen: Vec<Scale> = (0..STARTS).map(|at| measure(1000, layout, (at + 1 == STARTS).then_some(IDLE))).collect();
    let ms = |of: &dyn Fn(&Scale) -> Duration| spread(seen.iter().map(|scale| of(scale).as_secs_f64() * 1000.0).collect());
    let (plain, ours) = (ms(&|scale| scale.plain), ms(&|scale| scale.polyfpm));
    let ratio = spread(seen.iter().map(|scale| scale.polyfpm.as_secs_f64() / scale.plain.as_secs_f64()).collect());
    eprintln!("\nStart of 1,000 on-demand pools, {words}; median (lowest–highest) of {STARTS} interleaved starts");
    eprintln!("| what | ready after |\n|---|---|");
    eprintln!("| two plain php-fpm masters, started together | {:.0} ms ({:.0}–{:.0}) |", plain.0, plain.1, plain.2);
    eprintln!("| polyfpm with two shards | {:.0} ms ({:.0}–{:.0}) |", ours.0, ours.1, ours.2);
    eprintln!("| ratio | {:.2} ({:.2}–{:.2}) |", ratio.0, ratio.1, ratio.2);
    seen[STARTS - 1]
}
