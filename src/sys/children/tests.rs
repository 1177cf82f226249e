use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::*;
use crate::sys::spawn::{Output, Session};

fn children() -> Children {
    Children::start(Subreaper::Yes).unwrap()
}

fn shell(script: &str) -> Command {
    Command::new("/bin/sh").args(["-c", script])
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_exit_is_told_as_it_was() {
    let children = children();
    let mut child = children.spawn(&shell("exit 78")).unwrap();
    assert_eq!(child.exit().await, Exit::Code(78));
    assert_eq!(child.exit().await, Exit::Code(78));
    let mut child = children.spawn(&shell("kill -KILL $$")).unwrap();
    assert_eq!(child.exit().await, Exit::Signal { signal: libc::SIGKILL, core: false });
    let mut child = children.spawn(&shell("kill -40 $$")).unwrap();
    assert_eq!(child.exit().await, Exit::Signal { signal: 40, core: false });
}

#[test]
fn an_exit_reads_as_a_person_says_it() {
    assert_eq!(Exit::Code(78).to_string(), "exit 78");
    assert_eq!(Exit::Signal { signal: libc::SIGSEGV, core: true }.to_string(), "SIGSEGV (core dumped)");
    assert_eq!(Exit::Signal { signal: 40, core: false }.to_string(), "signal 40");
}

#[tokio::test]
async fn nothing_that_was_collected_is_signalled() {
    let children = children();
    let mut child = children.spawn(&Command::new("/bin/sleep").arg("60")).unwrap();
    let mut ended = children.spawn(&Command::new("/bin/true")).unwrap();
    ended.exit().await;
    assert_eq!(children.signal(ended.pid(), Signal::SIGKILL).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    assert_eq!(ended.signal(Signal::SIGKILL).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    assert_eq!(children.signal(Pid::from_raw(1), Signal::SIGCONT).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    children.signal(child.pid(), Signal::SIGTERM).unwrap();
    assert_eq!(child.exit().await, Exit::Signal { signal: libc::SIGTERM, core: false });
}

#[test]
fn a_stale_handle_does_not_reach_the_next_process_with_its_pid() {
    let children = children();
    let child = children.spawn(&Command::new("/bin/sleep").arg("60")).unwrap();
    let (_sender, exit) = oneshot::channel();
    let stale = Child { pid: child.pid(), process: Process::Ours { serial: 0, exit }, ended: None, stdout: None, stderr: None };
    assert_eq!(stale.signal(Signal::SIGKILL).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    child.signal(Signal::SIGKILL).unwrap();
}

#[test]
fn our_own_group_and_everybody_are_never_signalled() {
    let children = children();
    for group in [0, -1, 1, getpgrp().as_raw()] {
        let error = children.signal_group(Pid::from_raw(group), Signal::SIGCONT).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{group}");
    }
}

#[tokio::test]
async fn a_group_outlives_its_leader_and_can_be_ended() {
    let children = children();
    let mut orphans = children.watch_orphans();
    let mut leader = children.spawn(&shell("sleep 60 & sleep 60 &").session(Session::New)).unwrap();
    assert_eq!(leader.exit().await, Exit::Code(0));
    let group = leader.pid();
    assert!(children.group_exists(group));
    children.signal_group(group, Signal::SIGTERM).unwrap();
    let terminated = Exit::Signal { signal: libc::SIGTERM, core: false };
    let mut ended = 0;
    while ended < 2 {
        // Orphans of other tests may come between.
        let orphan = tokio::time::timeout(Duration::from_secs(10), orphans.recv()).await.unwrap().unwrap();
        ended += usize::from(orphan.exit == terminated);
    }
    eventually("the group is gone", || !children.group_exists(group)).await;
    assert_eq!(children.signal_group(group, Signal::SIGTERM).unwrap_err().raw_os_error(), Some(libc::ESRCH));
}

async fn many_at_once() {
    let children = children();
    let before = children.orphans();
    let mut runs = JoinSet::new();
    for code in 0..200 {
        let children = children.clone();
        runs.spawn(async move {
            // Each leaves an orphan that ends after it or before it.
            let script = format!("(exit 3 &) ; echo {code}; exit {code}");
            let finished = children.run(shell(&script), Duration::from_secs(60), 100).await.unwrap();
            assert_eq!(finished.exit, Exit::Code(code));
            assert_eq!(String::from_utf8(finished.stdout).unwrap(), format!("{code}\n"));
            code
        });
    }
    let codes: BTreeSet<_> = runs.join_all().await.into_iter().collect();
    assert_eq!(codes.len(), 200);
    eventually("200 orphans collected", || children.orphans() >= before + 200).await;
}

#[tokio::test]
async fn two_hundred_at_once_with_orphans_on_one_thread() {
    many_at_once().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_at_once_with_orphans_on_four_threads() {
    many_at_once().await;
}

#[tokio::test]
async fn a_run_that_takes_too_long_is_killed_with_its_group() {
    let children = children();
    let directory = tempfile::tempdir().unwrap();
    let pids = directory.path().join("pids");
    let script = format!("sleep 60 & echo $$ $! > {}; wait", pids.display());
    let error = children.run(shell(&script), Duration::from_millis(500), 100).await.unwrap_err();
    assert!(matches!(error, RunError::TimedOut { .. }), "{error:?}");
    assert_eq!(error.to_string(), "/bin/sh did not end within 500ms");
    let written = std::fs::read_to_string(&pids).unwrap();
    let group = Pid::from_raw(written.split_whitespace().next().unwrap().parse().unwrap());
    eventually("the group is gone", || !children.group_exists(group)).await;
}

#[tokio::test]
async fn a_run_that_is_dropped_is_killed() {
    let children = children();
    let directory = tempfile::tempdir().unwrap();
    let pid = directory.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 60", pid.display());
    let mut run = Box::pin(children.run(shell(&script), Duration::from_secs(60), 100));
    let mut group = None;
    let deadline = Instant::now() + Duration::from_secs(10);
    while group.is_none() && Instant::now() < deadline {
        let pending = tokio::time::timeout(Duration::from_millis(5), &mut run).await;
        assert!(pending.is_err(), "{pending:?}");
        group = std::fs::read_to_string(&pid).ok().and_then(|text| text.trim().parse().ok()).map(Pid::from_raw);
    }
    let group = group.unwrap();
    assert!(children.group_exists(group));
    drop(run);
    eventually("the group is gone", || !children.group_exists(group)).await;
}

#[tokio::test]
async fn output_beyond_the_limit_is_dropped_and_does_not_block() {
    let script = "head -c 1000000 /dev/zero; head -c 300000 /dev/zero >&2; exit 5";
    let finished = children().run(shell(script), Duration::from_secs(20), 1000).await.unwrap();
    assert_eq!((finished.exit, finished.stdout.len(), finished.stderr.len()), (Exit::Code(5), 1000, 1000));
    assert!(finished.truncated);
    let finished = children().run(shell("head -c 1000 /dev/zero"), Duration::from_secs(20), 1000).await.unwrap();
    assert_eq!((finished.stdout.len(), finished.truncated), (1000, false));
}

#[tokio::test]
async fn a_process_left_behind_does_not_hold_up_a_run() {
    let began = Instant::now();
    let finished = children().run(shell("echo done; sleep 30 & exit 0"), Duration::from_secs(25), 1000).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!((finished.exit, finished.stdout.as_slice(), finished.truncated), (Exit::Code(0), b"done\n".as_slice(), true));
}

#[tokio::test]
async fn a_program_that_is_not_there_is_no_run() {
    let error = children().run(Command::new("/nonexistent"), Duration::from_secs(1), 10).await.unwrap_err();
    assert!(matches!(error, RunError::Spawn(_)), "{error:?}");
}

#[tokio::test]
async fn a_child_from_before_is_adopted_with_its_exit() {
    let children = children();
    let child = children.spawn(&Command::new("/bin/sleep").arg("60")).unwrap();
    assert_eq!(children.adopt(child.pid()).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    // As after executing ourselves again: the process is our child and the table does not know it.
    table().living.remove(&child.pid());
    let mut adopted = children.adopt(child.pid()).unwrap();
    adopted.signal(Signal::SIGTERM).unwrap();
    assert_eq!(adopted.exit().await, Exit::Signal { signal: libc::SIGTERM, core: false });
}

#[tokio::test]
async fn a_foreign_process_is_adopted_without_its_exit() {
    let children = children();
    // The shell is the parent of the sleep and stays; the sleep's pid is told on a pipe.
    let mut parent = children.spawn(&shell("sleep 60 & echo $!; wait; exit 4").stdout(Output::Pipe)).unwrap();
    let pid = {
        use std::io::BufRead as _;
        let mut line = String::new();
        io::BufReader::new(std::fs::File::from(parent.take_stdout().unwrap())).read_line(&mut line).unwrap();
        Pid::from_raw(line.trim().parse().unwrap())
    };
    let mut adopted = children.adopt(pid).unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(50), adopted.exit()).await.is_err());
    adopted.signal(Signal::SIGTERM).unwrap();
    assert_eq!(adopted.exit().await, Exit::Unknown);
    assert_eq!(parent.exit().await, Exit::Code(4));
    assert_eq!(adopted.signal(Signal::SIGTERM).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    assert_eq!(children.adopt(pid).unwrap_err().kind(), io::ErrorKind::NotFound);
}
