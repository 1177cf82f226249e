//! The supervisor is killed after every single step of a handover; the next one completes it or undoes it.
//!
//! The steps are not listed here: the supervisor names each one it passes (`runtime::fault`). A first handover tells them, and
//! each of the following ones is cut short after another one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use super::include_is_written;
use crate::support::{Clients, Load, Route, Running, Sandbox, Shard, Site, alive, eventually, until_shards, within};

/// Far above what any step takes.
const SOON: Duration = Duration::from_secs(20);

/// How long after the old master has gone the supervisor may take to write that down.
const AFTERWARDS: Duration = Duration::from_millis(300);

/// Both shards serve each kind of pool but the whole one.
const SHARDS: usize = 2;

/// Public unix paths of the three pools that have some: two of the split pool, one of the whole, one of the shared.
const UNIX_PATHS: usize = 4;

/// One step of a handover: its name, and the how manyth of that name it is.
type Step = (String, usize);

/// Every step is tried, unless `POLYFPM_TEST_STEPS` says to take only every third, say.
fn stride() -> usize {
    std::env::var("POLYFPM_TEST_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Which steps the supervisor passes, and after which it ends.
pub(super) struct Faults {
    directory: PathBuf,
}

impl Faults {
    pub(super) fn on(host: &Sandbox) -> Self {
        let directory = host.ground().path("faults");
        std::fs::create_dir_all(&directory).expect("a directory");
        Self { directory }
    }

    pub(super) fn launch(&self, host: &mut Sandbox) {
        let directory = self.directory.display().to_string();
        host.launch_with(&[("POLYFPM_FAULTS", &directory)]);
    }

    /// Ends the supervisor `way` after this step; steps are counted from now on.
    pub(super) fn arm(&self, host: &Sandbox, way: &str, (name, count): (&str, usize)) {
        std::fs::remove_file(self.directory.join("passed")).ok();
        host.ground().write("faults/armed", &format!("{way} {count} {name}"));
    }

    /// Lets the supervisor live; tells whether it was to end.
    pub(super) fn disarm(&self) -> bool {
        std::fs::remove_file(self.directory.join("armed")).is_ok()
    }

    /// Gives the steps passed since it was armed, in their order.
    fn passed(&self) -> Vec<Step> {
        let mut counts = BTreeMap::new();
        let text = std::fs::read_to_string(self.directory.join("passed")).unwrap_or_default();
        let counted = text.lines().map(|name| {
            let count = counts.entry(name.to_owned()).and_modify(|count| *count += 1).or_insert(1);
            (name.to_owned(), *count)
        });
        counted.collect()
    }
}

/// What must be the same before and after: nothing leaks.
#[derive(Debug, PartialEq, Eq)]
struct Inventory {
    masters: usize,
    sockets: BTreeSet<PathBuf>,
    second: usize,
    listeners: usize,
}

fn inventory(host: &Sandbox, port: u16) -> Inventory {
    let ground = host.ground();
    let masters = ground.population().iter().filter(|(_, what)| what.starts_with("php-fpm: master process")).count();
    let private = ground.path("run/polyfpm/m");
    // Second names are named after inodes, which differ with each generation: their number must not.
    let kept = ground.path("run/polyfpm/kept");
    let (second, sockets): (Vec<PathBuf>, Vec<PathBuf>) =
        ground.socket_files().into_iter().filter(|path| !path.starts_with(&private)).partition(|path| path.starts_with(&kept));
    let (second, sockets) = (second.len(), sockets.into_iter().collect());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("/proc/net/tcp");
    let listeners = table.lines().filter(|line| line.contains(&format!(":{port:04X} 00000000:0000 0A"))).count();
    Inventory { masters, sockets, second, listeners }
}

/// A split, a whole, a shared and a TCP pool, each with its own way to change hands.
fn every_kind(faults: impl FnOnce(&Sandbox) -> Faults) -> (Sandbox, Faults, u16) {
    let mut host = Sandbox::new();
    host.set("restart", "settle", "50ms");
    let port = host.ground().port();
    let address = format!("127.0.0.1:{port}");
    host.pool("www", 4);
    host.pool("solo", 1);
    host.pool("old", 4);
    host.pool_at("net", &address, 4, "");
    let site = |www: &str| {
        let own = ["solo", "old"].map(|pool| Route::new(pool, &host.pass(pool)));
        let mut site = Site::one(Route::new("www", www)).route(Route::new("net", &address));
        site.routes.extend(own);
        site
    };
    let (first, then) = (site(&host.pass("www")), site(&Sandbox::upstream("www")));
    host.front(&first);
    let faults = faults(&host);
    faults.launch(&mut host);
    host.ready();
    include_is_written(&host);
    host.edit(&then);
    host.does(&["reload"]);
    let plan = host.does(&["plan", "--json"]);
    for routing in ["split", "whole", "shared"] {
        assert!(plan.contains(&format!("\"{routing}\"")), "no pool is {routing}: {plan}");
    }
    (host, faults, port)
}

fn of(host: &Sandbox, name: &str) -> Shard {
    host.shards().into_iter().find(|shard| shard.shard == name).expect("the shard")
}

/// Restarts one shard and tells whether that ended the supervisor, which is to end after this step.
fn ends_in_a_restart(host: &mut Sandbox, faults: &Faults, shard: &str, step: (&str, usize)) -> bool {
    faults.arm(host, "kill", step);
    let mut restart = host.begin(&["restart", shard], "log/restart");
    eventually(SOON, "the supervisor or the restart ends", || {
        (host.supervisor().ended().is_some() || restart.ended().is_some()).then_some(())
    });
    restart.wait(SOON);
    // The last steps come after the restart's end: the old master goes, and is noted to be gone.
    let masters = host.ground().path("run/polyfpm/m");
    let generations = || std::fs::read_dir(&masters).map_or(0, Iterator::count);
    let over = eventually(SOON, "the supervisor ends, or the old master is gone", || match host.supervisor().ended() {
        Some(_) => Some(true),
        None => (generations() == SHARDS).then_some(false),
    });
    over || within(AFTERWARDS, || host.supervisor().ended()).is_some()
}

#[test]
fn a_supervisor_killed_after_any_step_of_a_handover_leaves_nothing_half_done() {
    let (mut host, faults, port) = every_kind(Faults::on);
    let shard = host.shards().into_iter().find(|shard| shard.pools.iter().any(|pool| pool == "solo")).expect("a shard").shard;
    let mut bystander = Running::start("/bin/sleep".as_ref(), &["600"], &[], &host.ground().path("log/bystander"));
    let loads: Vec<Load> = ["www", "solo", "old", "net"]
        .map(|route| Load::start(host.ground(), host.nginx(), route, Clients::keeping(1).resting(Duration::from_millis(5)), &[]))
        .into();
    host.does(&["restart"]);
    let whole = eventually(SOON, "the first masters are gone, and every new path has its second name", || {
        Some(inventory(&host, port)).filter(|all| all.masters == SHARDS && all.second == UNIX_PATHS)
    });
    assert!(!ends_in_a_restart(&mut host, &faults, &shard, ("none", 0)));
    let steps = faults.passed();
    let mut reached = BTreeSet::new();
    for (name, count) in steps.iter().step_by(stride()) {
        let before = of(&host, &shard);
        if !ends_in_a_restart(&mut host, &faults, &shard, (name, *count)) {
            // What is written down how often depends on what happens at the same time.
            assert!(faults.disarm(), "{name} was reached and the supervisor lives");
            continue;
        }
        let context = format!("killed after: {name}, number {count}");
        let has_passed = |what: &str| faults.passed().iter().any(|(name, _)| name == what);
        let old_lives = before.pid.is_some_and(alive);
        assert!(old_lives || has_passed("old master told to leave"), "{context}: the old master is dead");
        faults.launch(&mut host);
        host.ready();
        let after = of(&host, &shard);
        if has_passed("path taken") {
            assert!(after.generation > before.generation && after.pid != before.pid, "{context}: the successor had been proven");
        } else {
            assert_eq!(after.master(), before.master(), "{context}: the old master goes on");
        }
        let is_whole = || (inventory(&host, port) == whole).then_some(());
        assert!(within(SOON, is_whole).is_some(), "{context}: {:#?}\ninstead of {whole:#?}", inventory(&host, port));
        reached.insert(name.clone());
    }
    host.does(&["restart"]);
    eventually(SOON, "nothing is left over", || (inventory(&host, port) == whole).then_some(()));
    for load in loads {
        let report = load.finish(host.ground());
        report.assert_nothing_lost(100);
        report.assert_nothing_reset();
    }
    let named: BTreeSet<String> = steps.into_iter().map(|(name, _)| name).collect();
    assert!(named.len() >= 18, "a handover has more steps than {named:?}");
    assert!(stride() > 1 || reached == named, "not reached: {:?}", named.difference(&reached));
    assert!(bystander.ended().is_none(), "a stranger was killed");
    drop(bystander);
    until_shards(&host, "every shard serves", |shards| shards.iter().all(|shard| shard.verdict == "ready"));
    host.stop();
}

#[test]
fn a_supervisor_in_which_a_task_panics_ends_at_once_and_the_next_one_goes_on() {
    let (mut host, faults, _) = every_kind(Faults::on);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(2), &[]);
    for point in ["proof begun", "path taken"] {
        faults.arm(&host, "panic", (point, 1));
        let mut restart = host.begin(&["restart"], "log/restart");
        let code = host.supervisor().exit_code(SOON);
        assert_eq!(code, -(nix::libc::SIGABRT), "{point}");
        restart.wait(SOON);
        assert!(host.ground().read("log/polyfpm.out").contains(&format!("at the point: {point}")), "the panic is not told");
        faults.launch(&mut host);
        host.ready();
    }
    host.does(&["restart"]);
    let report = load.finish(host.ground());
    report.assert_nothing_lost(50);
    report.assert_nothing_reset();
    host.stop();
}
