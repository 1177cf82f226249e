use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::*;
use crate::sys::children::{Children, Exit, Subreaper};

fn children() -> Children {
    Children::start(Subreaper::No).unwrap()
}

async fn output(command: Command) -> String {
    let finished = children().run(command, Duration::from_secs(20), 1 << 20).await.unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{finished:?}");
    assert!(!finished.truncated);
    String::from_utf8(finished.stdout).unwrap()
}

fn failure(command: &Command) -> (SpawnStage, Option<i32>) {
    let error = children().spawn(command).unwrap_err();
    (error.stage, error.source.raw_os_error())
}

#[tokio::test]
async fn the_environment_is_the_given_one_and_nothing_else() {
    let shown = output(Command::new("/usr/bin/env").environment(vec![("A".into(), "1".into())]).env("B", "2").env("A", "3")).await;
    assert_eq!(shown, "A=3\nB=2\n");
    let base = output(Command::new("/usr/bin/env")).await;
    assert!(base.lines().any(|line| line.starts_with("PATH=/")), "{base}");
    assert!(base.lines().any(|line| line.starts_with("LANG=")), "{base}");
    assert!(base.lines().all(|line| ["PATH=", "LANG=", "LC_ALL=", "TZ="].iter().any(|known| line.starts_with(known))), "{base}");
}

#[tokio::test]
async fn what_is_set_before_exec_shows_in_the_program() {
    let command = Command::new("/bin/cat")
        .args(["/proc/self/limits", "/proc/self/status", "/proc/self/oom_score_adj"])
        .limit(Resource::RLIMIT_NOFILE, Limit { soft: 512, hard: 1000 })
        .limit(Resource::RLIMIT_CORE, Limit::both(0))
        .cpus("0".parse().unwrap())
        .nice(7)
        .oom_score_adj(321);
    let shown = output(command).await;
    let line = |name: &str| {
        let line = shown.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {shown}"));
        line.trim_start_matches(name).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("Max open files"), "512 1000 files");
    assert_eq!(line("Max core file size"), "0 0 bytes");
    assert_eq!(line("Cpus_allowed_list:"), "0");
    assert_eq!(line("Umask:"), "0022");
    // 32 and 33 belong to the C library, which lets nobody change them.
    let signals = |name: &str| u64::from_str_radix(&line(name), 16).unwrap() & !(0b11 << 31);
    assert_eq!((signals("SigBlk:"), signals("SigIgn:")), (0, 0));
    assert!(shown.ends_with("\n321\n"), "{shown}");
    // Field 19 of stat is the nice value.
    let stat = output(Command::new("/bin/cat").arg("/proc/self/stat").nice(7)).await;
    assert_eq!(stat.split(' ').nth(18), Some("7"), "{stat}");
}

#[tokio::test]
async fn a_new_session_has_the_pid_as_its_group() {
    let mut child = children().spawn(&Command::new("/bin/cat").arg("/proc/self/stat").session(Session::New).stdout(Output::Pipe)).unwrap();
    let mut stat = String::new();
    File::from(child.take_stdout().unwrap()).read_to_string(&mut stat).unwrap();
    let pid = child.pid().to_string();
    let fields: Vec<_> = stat.split(' ').collect();
    assert_eq!((fields[0], fields[4], fields[5]), (pid.as_str(), pid.as_str(), pid.as_str()), "{stat}");
    assert_eq!(child.exit().await, Exit::Code(0));
}

#[tokio::test]
async fn only_the_descriptors_named_are_inherited_under_their_numbers() {
    let kept = Arc::new(OwnedFd::from(File::open("/etc/hostname").unwrap()));
    let not_kept = File::open("/etc/passwd").unwrap();
    // Something that was handed to us without the flag.
    fcntl(&not_kept, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let shown = output(Command::new("/bin/ls").arg("-l").arg("/proc/self/fd").keep(Arc::clone(&kept))).await;
    fcntl(&not_kept, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
    assert!(shown.contains(&format!(" {} -> /etc/hostname\n", kept.as_raw_fd())), "{shown}");
    assert!(!shown.contains("/etc/passwd"), "{shown}");
    assert!(shown.contains(" 0 -> /dev/null\n"), "{shown}");
    // In this process the descriptor is still closed on exec.
    let flags = FdFlag::from_bits_retain(fcntl(&kept, FcntlArg::F_GETFD).unwrap());
    assert_eq!(flags, FdFlag::FD_CLOEXEC);
}

#[tokio::test]
async fn outputs_go_to_the_file_given() {
    let mut file = tempfile::tempfile().unwrap();
    let to_file = Output::file(file.try_clone().unwrap());
    let command = Command::new("/bin/ls").args(["/etc/hostname", "/nonexistent"]).stdout(to_file.clone()).stderr(to_file);
    let mut child = children().spawn(&command).unwrap();
    assert_eq!(child.exit().await, Exit::Code(2));
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert!(text.contains("/etc/hostname\n") && text.contains("/nonexistent"), "{text}");
}

#[tokio::test]
async fn the_directory_is_the_given_one() {
    assert_eq!(output(Command::new("/bin/pwd")).await, "/\n");
    assert_eq!(output(Command::new("/bin/pwd").directory("/usr")).await, "/usr\n");
}

#[test]
fn a_failed_step_is_named() {
    let program = || Command::new("/bin/true");
    assert_eq!(failure(&Command::new("/nonexistent/php-fpm")), (SpawnStage::Exec, Some(libc::ENOENT)));
    assert_eq!(failure(&Command::new("/etc/passwd")), (SpawnStage::Exec, Some(libc::EACCES)));
    assert_eq!(failure(&program().directory("/nonexistent")), (SpawnStage::Directory, Some(libc::ENOENT)));
    assert_eq!(failure(&program().oom_score_adj(5000)), (SpawnStage::OomScore, Some(libc::EINVAL)));
    let inverted = Limit { soft: 20, hard: 10 };
    let command = program().limit(Resource::RLIMIT_CORE, Limit::both(0)).limit(Resource::RLIMIT_NPROC, inverted);
    assert_eq!(failure(&command), (SpawnStage::Limit(Resource::RLIMIT_NPROC), Some(libc::EINVAL)));
    assert_eq!(failure(&program().directory("/a\0b")).0, SpawnStage::Prepare);
}

#[test]
fn cpus_that_are_not_there_are_refused_also_beyond_1024() {
    for absent in ["1000", "1024", "5000-5003"] {
        let command = Command::new("/bin/true").cpus(absent.parse().unwrap());
        assert_eq!(failure(&command), (SpawnStage::Affinity, Some(libc::EINVAL)), "{absent}");
    }
}

#[tokio::test]
async fn a_set_that_reaches_beyond_1024_binds_to_the_cpus_there_are() {
    let shown = output(Command::new("/bin/grep").args(["Cpus_allowed_list", "/proc/self/status"]).cpus("0,5000".parse().unwrap())).await;
    assert_eq!(shown, "Cpus_allowed_list:\t0\n");
}

#[test]
fn the_mask_is_as_long_as_its_highest_cpu() {
    assert_eq!(kernel_mask(&"0,2,64".parse().unwrap()), [0b101, 1]);
    assert_eq!(kernel_mask(&"1024".parse().unwrap()).len(), 17);
    assert!(kernel_mask(&CpuSet::default()).is_empty());
}

#[test]
fn an_error_names_program_and_step_and_keeps_the_cause_apart() {
    let error = children().spawn(&Command::new("/bin/true").cpus("1000".parse().unwrap())).unwrap_err();
    assert_eq!(error.to_string(), "start /bin/true: set CPU affinity");
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("Invalid argument"));
}
