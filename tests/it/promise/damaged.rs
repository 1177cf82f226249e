//! State files that are damaged, stale or something else: the next supervisor starts cleanly, says so, and signals no stranger.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::split;
use crate::support::{Clients, Load, Running, Sandbox, alive, eventually};

/// Far above what anything here takes.
const SOON: Duration = Duration::from_secs(20);

/// A process that has nothing to do with us.
struct Stranger(Running);

impl Stranger {
    fn new(host: &Sandbox) -> Self {
        Self(Running::start("/bin/sleep".as_ref(), &["600"], &[], &host.ground().path("log/stranger")))
    }

    #[track_caller]
    fn lives(&mut self, after: &str) {
        assert!(self.0.ended().is_none(), "a stranger was killed: {after}");
    }
}

fn end_supervisor(host: &mut Sandbox) {
    host.signal(Signal::SIGKILL);
    host.supervisor().wait(SOON);
}

/// Puts something into the place of a file.
fn damage(file: &Path, how: &str) {
    let whole = std::fs::read(file).expect("the file");
    std::fs::remove_file(file).expect("the file");
    let text = String::from_utf8_lossy(&whole).into_owned();
    let put = |bytes: &[u8]| std::fs::write(file, bytes).expect("a file");
    match how {
        "truncated" => put(&whole[..whole.len() / 2]),
        "empty" => put(b""),
        "garbage" => put(b"\x00\xff{]"),
        "another boot" => put(text.replacen("\"boot\":\"", "\"boot\":\"0", 1).as_bytes()),
        "huge" => std::fs::File::create(file).and_then(|file| file.set_len(1 << 40)).expect("a sparse file"),
        "a link" => symlink("/etc/passwd", file).expect("a link"),
        "a FIFO" => nix::unistd::mkfifo(file, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO"),
        other => panic!("nothing is {other}"),
    }
}

#[test]
fn a_damaged_file_of_the_instance_costs_nothing_and_its_masters_are_adopted_all_the_same() {
    let mut host = split(8);
    let mut stranger = Stranger::new(&host);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(2), &[]);
    let before = host.masters();
    let all = ["truncated", "empty", "garbage", "huge", "a link", "a FIFO"];
    // A newer version is refused, which `adoption` shows.
    let state = ["another boot"].iter().chain(&all).map(|how| ("state.json", *how));
    for (name, how) in state.chain(all.map(|how| ("plan.json", how))) {
        let file = host.ground().path(&format!("run/polyfpm/{name}"));
        eventually(SOON, "the file is written", || file.is_file().then_some(()));
        end_supervisor(&mut host);
        damage(&file, how);
        host.launch();
        host.ready();
        assert_eq!(host.masters(), before, "{name} {how}");
        stranger.lives(how);
    }
    drop(stranger);
    let log = host.ground().read("log/polyfpm.out");
    assert_eq!(log.matches("state file was not usable").count(), 2 * all.len(), "a warning for each");
    assert_eq!(log.matches("state file is of another boot or version").count(), 1);
    let report = load.finish(host.ground());
    report.assert_nothing_lost(100);
    host.stop();
}

#[test]
fn a_master_whose_file_is_damaged_finishes_and_another_takes_its_place() {
    let mut host = split(8);
    let mut stranger = Stranger::new(&host);
    for how in ["truncated", "another boot", "a link", "a FIFO"] {
        let before = host.shards();
        let (victim, generation) = (before[0].pid.expect("a master"), before[0].generation);
        end_supervisor(&mut host);
        damage(&host.ground().path(&format!("run/polyfpm/m/default.1.{generation}/master.json")), how);
        host.launch();
        let serves = || {
            let shards = host.shards();
            let all = shards.len() == 2 && shards.iter().all(|shard| shard.verdict == "ready" && shard.pools == ["www"]);
            all.then_some(shards)
        };
        eventually(SOON, "the supervisor answers", || (host.polyfpm(&["status"]).code == 0).then_some(()));
        let after = eventually(SOON, &format!("both shards serve: {how}"), serves);
        eventually(SOON, "the former master is gone", || (!alive(victim)).then_some(()));
        assert!(after[0].pid != Some(victim) && after[0].generation > generation, "{how}: {after:?}");
        assert_eq!(after[1].master(), before[1].master(), "{how}: the other was adopted");
        stranger.lives(how);
    }
    drop(stranger);
    host.stop();
}

#[test]
fn a_pid_that_passed_to_a_stranger_is_not_taken_for_the_master() {
    let mut host = split(8);
    let mut stranger = Stranger::new(&host);
    let before = host.shards();
    let victim = before[0].pid.expect("a master");
    end_supervisor(&mut host);
    nix::sys::signal::killpg(nix::unistd::Pid::from_raw(victim), Signal::SIGKILL).expect("a living group");
    let file = host.ground().path(&format!("run/polyfpm/m/default.1.{}/master.json", before[0].generation));
    let text = std::fs::read_to_string(&file).expect("the file");
    let named = format!("\"pid\":{victim},");
    assert!(text.contains(&named), "{text}");
    std::fs::write(&file, text.replacen(&named, &format!("\"pid\":{},", stranger.0.pid()), 1)).expect("the file");
    host.launch();
    host.ready();
    let after = host.shards();
    assert_eq!(after[0].generation, before[0].generation + 1);
    host.does(&["restart"]);
    stranger.lives("it had the pid of a master");
    drop(stranger);
    host.stop();
}
