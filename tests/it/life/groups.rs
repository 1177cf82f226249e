//! Control groups: each generation in its own, below a group that was delegated.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::SOON;
use crate::support::{Running, Sandbox, children, eventually, within};

/// A group as a service manager delegates it, with one below it for the supervisor.
struct Delegated(PathBuf);

impl Delegated {
    fn new() -> Self {
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let root = roots.into_iter().find(|root| root.join("cgroup.controllers").exists()).expect("cgroup v2: this test needs it");
        let path = root.join(format!("polyfpm-test-{}", std::process::id()));
        std::fs::create_dir_all(path.join("supervisor")).expect("a control group of our own");
        rustix::fs::setxattr(&path, "trusted.delegate", b"1", rustix::fs::XattrFlags::empty()).expect("a mark on it");
        Self(path)
    }

    /// Starts the supervisor in it.
    fn launch(&self, host: &mut Sandbox) {
        let enter = format!("echo $$ > {}/supervisor/cgroup.procs && exec \"$@\"", self.0.display());
        host.launch_through("/bin/sh", &["-c", &enter, "sh"]);
        host.ready();
    }

    fn generation(&self, number: u32) -> PathBuf {
        self.0.join(format!("shard-web@default.1/generation-{number}"))
    }

    fn members(&self, generation: u32) -> Vec<i32> {
        let text = std::fs::read_to_string(self.generation(generation).join("cgroup.procs")).unwrap_or_default();
        text.lines().map(|line| line.parse().expect("a pid")).collect()
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        std::fs::write(self.0.join("cgroup.kill"), "1").ok();
        within(Duration::from_secs(3), || {
            let shards: Vec<PathBuf> = std::fs::read_dir(&self.0).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
            for shard in shards.iter().filter(|path| path.is_dir()) {
                for generation in std::fs::read_dir(shard).into_iter().flatten().flatten() {
                    std::fs::remove_dir(generation.path()).ok();
                }
                std::fs::remove_dir(shard).ok();
            }
            std::fs::remove_dir(&self.0).ok()
        });
    }
}

fn site() -> Sandbox {
    let mut host = Sandbox::new();
    host.pool("www", 4);
    host.set("shards", "count", 1);
    host.set("restart", "drain_timeout", "1s");
    host
}

#[test]
fn each_generation_has_a_group_through_restart_crash_and_the_last_resort() {
    let delegated = Delegated::new();
    let mut host = site();
    delegated.launch(&mut host);
    let with_workers = |host: &Sandbox| {
        let masters = host.masters();
        let mut all: Vec<i32> = masters.iter().flat_map(|master| children(*master)).chain(masters.iter().copied()).collect();
        all.sort_unstable();
        all
    };
    let sorted = |mut pids: Vec<i32>| {
        pids.sort_unstable();
        pids
    };
    assert_eq!(sorted(delegated.members(1)), with_workers(&host));
    let groups = &host.status()["cgroups"];
    assert_eq!((groups["base"].as_str(), groups["limits"].as_bool()), (delegated.0.to_str(), Some(false)), "{groups}");

    host.does(&["restart"]);
    assert_eq!(sorted(delegated.members(2)), with_workers(&host));
    eventually(SOON, "the old generation's group is gone", || (!delegated.generation(1).exists()).then_some(()));

    host.signal(Signal::SIGKILL);
    host.supervisor().wait(SOON);
    delegated.launch(&mut host);
    assert_eq!(sorted(delegated.members(2)), with_workers(&host), "adopted where it was");

    // One that left the master's session, as a script may start it; and a master that hears nothing but SIGKILL.
    let mut stray = Running::start(Path::new("/bin/sleep"), &["300"], &[], &host.ground().path("log/stray"));
    std::fs::write(delegated.generation(2).join("cgroup.procs"), stray.pid().to_string()).expect("the stray in it");
    kill(Pid::from_raw(host.masters()[0]), Signal::SIGSTOP).expect("a living master");
    host.does(&["restart"]);
    eventually(SOON, "the stray is killed with its generation", || stray.ended());
    eventually(SOON, "its group is gone", || (!delegated.generation(2).exists()).then_some(()));
    host.stop();
    let left: Vec<_> = std::fs::read_dir(&delegated.0).expect("our group").flatten().filter(|entry| entry.path().is_dir()).collect();
    assert_eq!(left.len(), 1, "only the supervisor's: {left:?}");
}

#[test]
fn a_limit_that_is_not_held_is_told_and_keeps_nobody_from_serving() {
    let mut host = site();
    host.set("limits", "memory_max", "512M");
    host.run();
    let groups = &host.status()["cgroups"];
    assert_eq!(groups["limits"].as_bool(), Some(true), "{groups}");
    let why = groups["lacks"][0].as_str().unwrap_or_default().to_owned();
    assert!(host.does(&["status"]).contains(&format!("limit not held: {why}")), "{groups}");
    assert!(why.contains("control group") || why.contains("controller"), "{why}");
    host.stop();
}
