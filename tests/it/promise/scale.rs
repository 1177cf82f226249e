//! A thousand pools: as fast to start as plain php-fpm, and light to watch.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::support::{Ground, Listener, Master, MasterPlan, Sandbox, stat, within};

/// A pool of two on-demand workers, one for each shard.
const WORKERS: &str = "user = www-data\ngroup = www-data\npm = ondemand\npm.max_children = 2\npm.process_idle_timeout = 60s";

/// What a start of many pools took, side by side.
#[derive(Debug)]
pub(crate) struct Scale {
    /// Two plain masters, each with every pool.
    pub(crate) plain: Duration,
    /// polyfpm with two shards, from exec to "every shard ready".
    pub(crate) polyfpm: Duration,
    /// The supervisor's own memory (private and its share of shared pages), in kB.
    pub(crate) memory_kb: u64,
    /// The part of one CPU it takes while nothing happens.
    pub(crate) idle_cpu: f64,
}

/// Starts so many pools both ways.
pub(crate) fn measure(pools: usize, idle: Duration) -> Scale {
    let plain = plain_masters(pools);
    let mut host = Sandbox::new();
    let mut text = String::new();
    for n in 0..pools {
        let socket = host.ground().text(&format!("run/{n}.sock"));
        writeln!(text, "[p{n}]\nlisten = {socket}\nlisten.owner = www-data\n{WORKERS}").unwrap();
    }
    host.pool_file("many", &text);
    host.set("nginx", "enabled", false);
    host.set("log", "level", "info");
    // The default.
    host.set("health", "interval", "2s");
    let began = Instant::now();
    host.run();
    let polyfpm = began.elapsed();
    let pid = host.supervisor().pid();
    let before = stat(pid).expect("the supervisor").ticks;
    within(idle, || None::<()>);
    let ticks = stat(pid).expect("the supervisor").ticks - before;
    let memory = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the supervisor's memory");
    let anonymous = memory.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.parse().ok());
    let ticks_per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).unwrap().expect("ticks a second");
    #[expect(clippy::cast_precision_loss, reason = "a share of a CPU")]
    let idle_cpu = ticks as f64 / ticks_per_second as f64 / idle.as_secs_f64();
    Scale { plain, polyfpm, memory_kb: anonymous.expect("Pss"), idle_cpu }
}

fn plain_masters(pools: usize) -> Duration {
    let ground = Ground::new();
    let unused = Listener::unix(&ground.path("run/unused"));
    let began = Instant::now();
    let plans = ["one", "two"].map(|name| {
        let mut plan = MasterPlan::one_pool(&ground, name, &unused, 1);
        plan.sockets.clear();
        plan.pools = (0..pools).map(|n| format!("[p{n}]\nlisten = {}\n{WORKERS}\n", ground.text(&format!("run/{name}.{n}")))).collect();
        plan
    });
    // Both at once, as polyfpm may start its shards.
    let mut masters: Vec<Master> = plans.iter().map(|plan| Master::launch(&ground, plan)).collect();
    for master in &mut masters {
        master.ready();
    }
    began.elapsed()
}

#[test]
fn a_thousand_pools_on_two_shards() {
    let seen = measure(1000, Duration::from_secs(10));
    eprintln!("{seen:?}");
    assert!(seen.memory_kb < 20_000, "the supervisor takes {} kB", seen.memory_kb);
    assert!(seen.idle_cpu < 0.002, "the idle supervisor takes {:.2} % of a CPU", seen.idle_cpu * 100.0);
    // A debug build reads and digests a few times slower; the promise is that of a release build, and the benchmark shows it.
    let allowed = if cfg!(debug_assertions) { 4.0 } else { 1.5 };
    assert!(seen.polyfpm < seen.plain.mul_f64(allowed), "{:?} against {:?} of plain masters", seen.polyfpm, seen.plain);
}
