use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid};

use super::*;
use crate::sys::children::{Children, Subreaper};
use crate::sys::spawn::{Command, Resource, Session};

fn children() -> Children {
    Children::start(Subreaper::Yes).unwrap()
}

#[test]
fn names_may_hold_spaces_and_parentheses() {
    let text = "42 (a) R (b c)) S 1 40 39 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1000 2 18446744073709551615 0\n";
    let stat = parse_stat(text).unwrap();
    assert_eq!(stat.comm, "a) R (b c)");
    assert_eq!((stat.state, stat.start_ticks), ('S', 987_654));
    assert_eq!((stat.parent, stat.group, stat.session), (Pid::from_raw(1), Pid::from_raw(40), Pid::from_raw(39)));
    assert_eq!(parse_stat("42 (a) S 1 40"), None);
    assert_eq!(parse_stat(""), None);
}

#[test]
fn limits_are_read_with_and_without_a_unit() {
    let text = "Max nice priority         0                    20                   \n";
    assert_eq!(parse_limit(text.trim_end_matches('\n')), Some(("Max nice priority".to_owned(), Limit { soft: 0, hard: 20 })));
    let text = "Max open files            1024                 unlimited            files     ";
    assert_eq!(parse_limit(text), Some(("Max open files".to_owned(), Limit { soft: 1024, hard: Limit::UNLIMITED })));
    assert_eq!(parse_limit("Max"), None);
}

#[test]
fn we_see_ourselves() {
    let proc = Proc::default();
    let stat = proc.stat(getpid()).unwrap();
    assert_eq!(stat.parent, getppid());
    assert!(!stat.is_zombie());
    assert_eq!(proc.exe(getpid()).unwrap(), Exe { path: std::env::current_exe().unwrap(), deleted: false });
    assert!(proc.pids().unwrap().contains(&getpid()));
    assert!(proc.memory_pss(getpid()).unwrap() > 100 * 1024);
    let listener = UnixListener::bind(tempfile::tempdir().unwrap().path().join("s")).unwrap();
    let inode = nix::sys::stat::fstat(&listener).unwrap().st_ino;
    assert!(listener.as_raw_fd() > 2);
    assert!(proc.socket_inodes_of(getpid()).unwrap().contains(&inode));
    drop(listener);
    assert!(!proc.socket_inodes_of(getpid()).unwrap().contains(&inode));
}

#[test]
fn our_cpus_are_what_the_kernel_shows() {
    let cpus = available_cpus().unwrap();
    assert!(!cpus.is_empty());
    assert_eq!(Proc::default().cpus_allowed(getpid()).unwrap(), cpus);
    assert_eq!(cpus_of(&[0b101, 0, 1 << 63]).to_string(), "0,2,191");
}

#[tokio::test]
async fn a_program_is_seen_as_it_was_started() {
    let proc = Proc::default();
    let command = Command::new("/bin/sleep").arg("60").session(Session::New).limit(Resource::RLIMIT_NOFILE, Limit { soft: 100, hard: 200 });
    let mut child = children().spawn(&command.cpus("0".parse().unwrap())).unwrap();
    let pid = child.pid();
    let stat = proc.stat(pid).unwrap();
    assert_eq!((stat.comm.as_str(), stat.parent, stat.group, stat.session), ("sleep", getpid(), pid, pid));
    assert!(stat.start_ticks > 0);
    assert_eq!(proc.cmdline(pid).unwrap(), ["/bin/sleep", "60"]);
    assert_eq!(proc.title(pid).unwrap(), "/bin/sleep 60");
    assert_eq!(proc.cpus_allowed(pid).unwrap().to_string(), "0");
    assert_eq!(proc.limits(pid).unwrap()["Max open files"], Limit { soft: 100, hard: 200 });
    assert!(proc.children_of(getpid()).unwrap().contains(&pid));
    assert!(proc.children_by_parent(getpid()).unwrap().contains(&pid));
    child.signal(Signal::SIGKILL).unwrap();
    child.exit().await;
    assert!(proc.stat(pid).unwrap_err().is_gone());
    assert!(proc.children_of(pid).unwrap_err().is_gone());
    assert!(proc.cmdline(pid).unwrap_err().is_gone());
}

#[tokio::test]
async fn a_program_that_was_replaced_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("sleep");
    fs::copy("/bin/sleep", &program).unwrap();
    // The copy may still be open for writing in a child that another test has just forked.
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut child = loop {
        match children().spawn(&Command::new(&program).arg("60")) {
            Ok(child) => break child,
            Err(error) => assert!(error.source.raw_os_error() == Some(libc::ETXTBSY) && Instant::now() < deadline, "{error:?}"),
        }
        tokio::task::yield_now().await;
    };
    fs::remove_file(&program).unwrap();
    assert_eq!(Proc::default().exe(child.pid()).unwrap(), Exe { path: program, deleted: true });
    child.signal(Signal::SIGKILL).unwrap();
    child.exit().await;
}

#[test]
fn a_title_written_over_the_arguments_is_read_without_its_rest() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("7")).unwrap();
    fs::write(directory.path().join("7/cmdline"), "php-fpm: master process (/etc/php-fpm.conf)\0\0\0\0").unwrap();
    let proc = Proc::at(directory.path());
    assert_eq!(proc.title(Pid::from_raw(7)).unwrap(), "php-fpm: master process (/etc/php-fpm.conf)");
    fs::write(directory.path().join("7/cmdline"), "").unwrap();
    assert!(proc.cmdline(Pid::from_raw(7)).unwrap().is_empty());
    let error = proc.stat(Pid::from_raw(7)).unwrap_err();
    assert!(error.is_gone());
    assert_eq!(error.to_string(), format!("read {}", directory.path().join("7/stat").display()));
}

#[test]
fn memory_is_told_in_bytes() {
    let proc = Proc::default();
    let available = proc.memory_available().unwrap();
    let (resident, shared) = proc.memory_resident(getpid()).unwrap();
    assert!(resident > shared && shared > 0, "{resident} {shared}");
    assert!(available > 1 << 20, "{available}");
    let block = vec![1_u8; 32 << 20];
    let (more, _) = proc.memory_resident(getpid()).unwrap();
    assert!(more >= resident + (31 << 20), "32 MiB were taken: {resident} {more} {}", block.len());
}
