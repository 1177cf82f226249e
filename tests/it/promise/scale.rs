//! A thousand pools: as fast to start as plain php-fpm, and light to watch.

use std::time::{Duration, Instant};

use crate::support::{Ground, Listener, Master, MasterPlan, Peer, Request, Sandbox, stat, within};

const ON_DEMAND: &str = "user = www-data\ngroup = www-data\npm = ondemand\npm.max_children = 4\npm.process_idle_timeout = 60s";

/// How many pools lie on two shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Every pool on one of them.
    Whole,
    /// Every pool on both.
    Shared,
}

impl Layout {
    /// Gives how many of so many pools each of two masters has.
    fn of_each(self, count: usize) -> usize {
        match self {
            Self::Whole => count / 2,
            Self::Shared => count,
        }
    }
}

/// What a start of many pools took, side by side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Two plain masters, each with as many pools as a shard.
    pub(crate) plain: Duration,
    /// polyfpm with two shards, from exec to "instance serving".
    pub(crate) polyfpm: Duration,
    /// The supervisor's memory (private and its share of shared pages), in kB.
    pub(crate) memory_kb: u64,
    /// Its open files.
    pub(crate) open_files: usize,
    /// The part of one CPU it takes while nothing happens; absent where that was not watched.
    pub(crate) idle_cpu: Option<f64>,
}

fn pools(of: &Ground, count: usize) -> String {
    let pool = |n: usize| format!("[p{n}]\nlisten = {}\nlisten.owner = www-data\n{ON_DEMAND}\n", of.text(&format!("run/{n}.sock")));
    (0..count).map(pool).collect()
}

/// Lays out so many whole pools; nothing runs yet.
fn many(count: usize, shards: i64) -> Sandbox {
    let mut host = Sandbox::on(Ground::in_memory());
    host.pool_file("many", &pools(host.ground(), count));
    host.set("shards", "count", shards);
    host.set("shards", "min_workers", 8);
    host.set("health", "interval", "2s");
    host.set("nginx", "enabled", false);
    host.set("log", "level", "info");
    host
}

/// Starts so many pools both ways and, where asked, watches the supervisor for a while.
pub(crate) fn measure(count: usize, layout: Layout, idle: Option<Duration>) -> Scale {
    let plain = plain_masters(layout.of_each(count));
    let mut host = many(count, 2);
    if layout == Layout::Shared {
        host.set("shards", "min_workers", 1);
    }
    let began = Instant::now();
    host.launch();
    let serving = within(Duration::from_secs(60), || host.ground().read("log/polyfpm.out").contains("instance serving").then_some(()));
    let polyfpm = began.elapsed();
    assert!(serving.is_some(), "not serving:\n{}", host.log_tail());
    let pid = host.supervisor().pid();
    let idle_cpu = idle.map(|span| idle_share(pid, span));
    let memory = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the supervisor's memory");
    let pss = memory.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.parse().ok());
    let open_files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the supervisor's files").count();
    let scale = Scale { plain, polyfpm, memory_kb: pss.expect("Pss"), open_files, idle_cpu };
    let placed = everything_serves(&mut host, count);
    assert_eq!(placed, 2 * layout.of_each(count));
    scale
}

/// Gives the part of a CPU a process takes over a while.
fn idle_share(pid: i32, span: Duration) -> f64 {
    // What follows a start, such as the first heartbeats, is no idling.
    within(Duration::from_secs(2), || None::<()>);
    let before = cpu_nanoseconds(pid);
    within(span, || None::<()>);
    #[expect(clippy::cast_precision_loss, reason = "a share of a CPU")]
    let used = (cpu_nanoseconds(pid) - before) as f64;
    used / 1e9 / span.as_secs_f64()
}

/// Ticks of 10 ms are too coarse for a fifth of a percent; the scheduler counts nanoseconds.
fn cpu_nanoseconds(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("the supervisor");
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).expect("nanoseconds")
}

/// Two plain masters of so many pools each, started together.
fn plain_masters(each: usize) -> Duration {
    let grounds = [Ground::in_memory(), Ground::in_memory()];
    let unused: Vec<Listener> = grounds.iter().map(|ground| Listener::unix(&ground.path("run/unused"))).collect();
    let plans: Vec<MasterPlan<'_>> = grounds
        .iter()
        .zip(&unused)
        .map(|(ground, unused)| {
            let mut plan = MasterPlan::one_pool(ground, "plain", unused, 1);
            plan.sockets.clear();
            plan.pools = pools(ground, each);
            plan
        })
        .collect();
    let began = Instant::now();
    let mut masters: Vec<Master> = grounds.iter().zip(&plans).map(|(ground, plan)| Master::launch(ground, plan)).collect();
    for master in &mut masters {
        master.ready();
    }
    began.elapsed()
}

/// Checks every shard and every socket, and asks one pool in fifty for a page. Gives how many placements there are.
#[track_caller]
fn everything_serves(host: &mut Sandbox, count: usize) -> usize {
    host.ready();
    let shards = host.shards();
    let names: std::collections::BTreeSet<&String> = shards.iter().flat_map(|shard| &shard.pools).collect();
    assert_eq!(names.len(), count, "every pool is somewhere");
    let sizes: Vec<usize> = shards.iter().map(|shard| shard.pools.len()).collect();
    assert!(sizes.iter().all(|size| size.abs_diff(sizes[0]) <= 1), "pools are spread unevenly: {sizes:?}");
    let hello = Request::get(&host.ground().path(""), "/hello.php?id=s");
    for n in (0..count).step_by(50).chain([count - 1]) {
        let peer = Peer::Unix(host.ground().path(&format!("run/{n}.sock")));
        assert_eq!(hello.to(&peer).body(), "hello s\n", "pool p{n}");
    }
    sizes.iter().sum()
}

#[test]
fn a_thousand_pools_on_two_shards() {
    let seen = measure(1000, Layout::Whole, Some(Duration::from_secs(4)));
    eprintln!("1,000 pools, {} build: {seen:?}", if cfg!(debug_assertions) { "debug" } else { "release" });
    // Time and idle CPU are the benchmark's to show; these hold however busy the machine is.
    assert!(seen.open_files < 1_100, "one file for each pool, and a few: {}", seen.open_files);
    let most = if cfg!(debug_assertions) { 40_000 } else { 20_000 };
    assert!(seen.memory_kb < most, "the supervisor takes {} kB", seen.memory_kb);
    assert!(seen.idle_cpu.is_some_and(|share| share < 0.05), "the idle supervisor is at work: {seen:?}");
}

#[test]
fn one_pool_of_500_changes_and_one_shard_is_handed_over() {
    let mut host = many(500, 2);
    host.run();
    let (before, text) = (host.shards(), pools(host.ground(), 500));
    let changed = text.replace("[p7]\n", "[p7]\nphp_admin_value[user_agent] = changed\n");
    host.pool_file("many", &changed);
    let began = Instant::now();
    host.does(&["reload"]);
    eprintln!("reload of one pool of 500: {:?}", began.elapsed());
    let after = host.shards();
    let moved: Vec<&str> = before.iter().zip(&after).filter(|(old, new)| old.pid != new.pid).map(|(_, new)| new.shard.as_str()).collect();
    let owner = before.iter().find(|shard| shard.pools.iter().any(|pool| pool == "p7")).expect("a shard with the pool");
    assert_eq!(moved, [owner.shard.as_str()]);
    assert_eq!(after.iter().map(|shard| &shard.pools).collect::<Vec<_>>(), before.iter().map(|shard| &shard.pools).collect::<Vec<_>>());
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    everything_serves(&mut host, 500);
}

#[test]
fn one_master_takes_over_four_thousand_sockets() {
    let mut host = many(4000, 1);
    host.set("limits", "nofile", 9000);
    let began = Instant::now();
    host.run();
    eprintln!("4,000 pools in one master: {:?}", began.elapsed());
    let pid = host.masters()[0];
    everything_serves(&mut host, 4000);
    assert!(stat(pid).is_some(), "the master lives on");
    let began = Instant::now();
    host.does(&["restart"]);
    eprintln!("4,000 pools handed over: {:?}", began.elapsed());
    assert_ne!(host.masters()[0], pid);
    everything_serves(&mut host, 4000);
}
