//! A supervisor without descriptors or processes to spare: a change is refused with its reason, everything serves, and once there
//! is enough again the same command succeeds.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{SOON, generations, split};
use crate::support::{Clients, Load, Sandbox, run, stat, within};

fn load(host: &Sandbox) -> Load {
    Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[])
}

/// Lets the supervisor have so many descriptors more than it has, or as many as before.
#[track_caller]
fn spare_descriptors(host: &mut Sandbox, spare: Option<usize>) {
    let pid = host.supervisor().pid();
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").flatten();
    let used: Vec<usize> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The limit is on the highest number: the first so many gaps are left.
    let limit = spare.map_or(8192, |spare| (0..).filter(|number| !used.contains(number)).nth(spare).expect("a gap"));
    let (pid, limit) = (pid.to_string(), format!("--nofile={limit}:"));
    let ended = run(Path::new("/usr/bin/prlimit"), &["--pid", &pid, &limit], Path::new("/tmp"), SOON);
    assert_eq!(ended.code, 0, "{}", ended.err);
}

#[track_caller]
fn refused(host: &Sandbox, words: &[&str], says: &str) {
    let before = generations(host);
    let ended = host.polyfpm(words);
    assert_eq!(ended.code, 1, "{words:?}: {}{}\n{}", ended.out, ended.err, host.log_tail());
    assert!(ended.err.contains(says), "{words:?} does not say {says}: {}", ended.err);
    assert_eq!(generations(host), before, "{words:?} changed something");
}

#[test]
fn without_descriptors_a_restart_is_refused_and_nothing_is_lost() {
    let mut host = split(|_| {});
    let load = load(&host);
    for spare in [3, 6, 9] {
        spare_descriptors(&mut host, Some(spare));
        refused(&host, &["restart", "default/1"], "Too many open files");
    }
    spare_descriptors(&mut host, None);
    host.does(&["restart"]);
    host.does(&["reload"]);
    load.finish(host.ground()).assert_nothing_lost(50);
    host.stop();
}

#[test]
fn without_descriptors_a_reload_is_refused_and_says_why() {
    let mut host = split(|_| {});
    spare_descriptors(&mut host, Some(2));
    refused(&host, &["reload"], "Too many open files");
    spare_descriptors(&mut host, None);
    host.does(&["reload"]);
    host.stop();
}

#[test]
fn without_descriptors_the_control_socket_waits_without_spinning() {
    let mut host = split(|_| {});
    spare_descriptors(&mut host, Some(0));
    let mut client = UnixStream::connect(host.ground().path("run/polyfpm/control.sock")).expect("it waits in the queue");
    client.write_all(b"{\"v\":1,\"command\":\"status\"}\n").expect("a request");
    let pid = host.supervisor().pid();
    let ticks = || stat(pid).expect("the supervisor").ticks;
    let before = ticks();
    within(Duration::from_secs(2), || None::<()>);
    let used = ticks() - before;
    assert!(used < 60, "{used} of 200 ticks in two seconds: it spins");
    assert!(host.nginx().body("/www/hello.php?id=1").contains("hello 1"));
    spare_descriptors(&mut host, None);
    client.set_read_timeout(Some(SOON)).expect("our own socket");
    let mut line = String::new();
    BufReader::new(client).read_line(&mut line).expect("an answer in the end");
    assert!(line.contains("\"reply\":\"status\""), "{line}");
    host.stop();
}

/// A control group in which no more processes than those of the supervisor may be.
struct Pids(PathBuf);

impl Pids {
    fn full(host: &mut Sandbox) -> Self {
        let root = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(Path::new).into_iter().find(|root| root.join("cgroup.procs").exists());
        let path = root.expect("control groups: this test needs them").join(format!("polyfpm-test-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a control group of our own");
        std::fs::write(path.join("cgroup.procs"), host.supervisor().pid().to_string()).expect("the supervisor in it");
        let group = Self(path);
        let now = std::fs::read_to_string(group.0.join("pids.current")).expect("the pids controller");
        group.set(now.trim());
        group
    }

    fn set(&self, most: &str) {
        std::fs::write(self.0.join("pids.max"), most).expect("our own control group");
    }
}

impl Drop for Pids {
    fn drop(&mut self) {
        self.set("max");
        let root = self.0.parent().expect("its parent").join("cgroup.procs");
        for pid in std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            std::fs::write(&root, pid).ok();
        }
        within(Duration::from_secs(3), || std::fs::remove_dir(&self.0).ok());
    }
}

#[test]
fn without_processes_changes_are_refused_and_nothing_is_lost() {
    let mut host = split(|_| {});
    let load = load(&host);
    let pids = Pids::full(&mut host);
    refused(&host, &["restart"], "Resource temporarily unavailable");
    refused(&host, &["reload"], "Resource temporarily unavailable");
    assert!(!host.ground().read("log/polyfpm.out").contains("panicked"), "{}", host.log_tail());
    pids.set("max");
    host.does(&["restart"]);
    host.does(&["reload"]);
    load.finish(host.ground()).assert_nothing_lost(50);
    host.stop();
    drop(pids);
}
