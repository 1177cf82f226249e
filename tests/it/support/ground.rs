//! A test's own piece of the machine: a directory with a short path, PHP scripts, ports. It must be bare again at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::process::{Stat, processes};
use super::within;

/// What tests ask PHP for.
const SCRIPTS: [(&str, &str); 9] = [
    ("once.php", include_str!("../php/once.php")),
    ("count.php", include_str!("../php/count.php")),
    ("upload.php", include_str!("../php/upload.php")),
    ("hello.php", include_str!("../php/hello.php")),
    ("slow.php", include_str!("../php/slow.php")),
    ("stream.php", include_str!("../php/stream.php")),
    ("who.php", include_str!("../php/who.php")),
    ("value.php", include_str!("../php/value.php")),
    ("opcache.php", include_str!("../php/opcache.php")),
];

/// Where ports are reserved, for test processes that run at the same time.
const PORT_LOCKS: &str = "/tmp/polyfpm-test-ports";

/// Below the range from which the kernel takes ports for clients (32768 and up by default).
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// 3 s: php-fpm workers whose master was killed see it only after their current request.
const BARE_WITHIN: Duration = Duration::from_secs(3);

/// A test's own directory and ports.
pub(crate) struct Ground {
    directory: Option<tempfile::TempDir>,
    root: PathBuf,
    ports: Mutex<Vec<File>>,
}

impl Ground {
    /// Makes the directory, with scripts that users other than root may read.
    pub(crate) fn new() -> Self {
        Self::below("/tmp")
    }

    /// Makes it in memory, as `/run` is where sockets are in earnest. On a disk's filesystem, a thousand sockets that were
    /// removed a moment ago make new ones many times slower (ext4 looks at each inode that was deleted within seconds).
    pub(crate) fn in_memory() -> Self {
        Self::below("/dev/shm")
    }

    fn below(base: &str) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "the tests start php-fpm pools of other users: run them as root");
        // Orphans come to us instead of PID 1, so that none is overlooked.
        nix::sys::prctl::set_child_subreaper(true).expect("subreaper");
        let directory = tempfile::Builder::new().prefix("pf-").rand_bytes(5).tempdir_in(base).expect("a directory for the test");
        let root = directory.path().to_owned();
        let ground = Self { directory: Some(directory), root, ports: Mutex::default() };
        open_to_all(&ground.root, 0o755);
        for folder in ["www", "log", "run", "pool.d"] {
            std::fs::create_dir(ground.path(folder)).expect("a new directory");
            open_to_all(&ground.path(folder), 0o755);
        }
        for (name, text) in SCRIPTS {
            age(&ground.write(&format!("www/{name}"), text));
        }
        ground.write("log/count", "");
        open_to_all(&ground.path("log/count"), 0o666);
        ground
    }

    /// Gives the path of something in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Gives that path as text.
    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Writes a file that everybody may read, whole or not at all.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let (path, next) = (self.path(name), self.path(&format!("{name}.next")));
        std::fs::write(&next, text).unwrap_or_else(|e| panic!("write {name}: {e}"));
        open_to_all(&next, 0o644);
        std::fs::rename(&next, &path).unwrap_or_else(|e| panic!("rename to {name}: {e}"));
        path
    }

    /// Reads a file; nothing when it is not there.
    pub(crate) fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.path(name)).unwrap_or_default()).into_owned()
    }

    /// Gives how often each POST ran.
    pub(crate) fn runs(&self) -> BTreeMap<String, u32> {
        let mut runs = BTreeMap::new();
        for id in self.read("log/count").lines() {
            *runs.entry(id.to_owned()).or_insert(0) += 1;
        }
        runs
    }

    /// Reserves a free port on 127.0.0.1 until the test ends.
    pub(crate) fn port(&self) -> u16 {
        std::fs::create_dir_all(PORT_LOCKS).expect("a directory for port locks");
        let count = PORTS.end - PORTS.start;
        let seed = std::process::id().wrapping_mul(97) % u32::from(count);
        let first = u16::try_from(seed).expect("less than the range");
        for step in 0..count {
            let port = PORTS.start + (first + step) % count;
            let lock = File::options().create(true).append(true).open(format!("{PORT_LOCKS}/{port}")).expect("a lock file");
            if lock.try_lock().is_ok() && std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
                self.ports.lock().expect("no test panics here").push(lock);
                return port;
            }
        }
        panic!("no free port in {PORTS:?}");
    }

    /// Lists the processes that are of this ground: they name the directory, have something in it open, or listen on a socket in it.
    pub(crate) fn population(&self) -> Vec<(Stat, String)> {
        let sockets = socket_inodes_under(&self.root);
        let ours = std::process::id().cast_signed();
        let all = processes();
        let others = all.into_iter().filter(|p| p.pid != ours && !matches!(p.state, 'Z' | 'X'));
        others.filter_map(|p| belongs(&p, &self.root, &sockets).map(|why| (p, why))).collect()
    }

    /// Lists the socket files in the directory.
    pub(crate) fn socket_files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut left = vec![self.root.clone()];
        while let Some(directory) = left.pop() {
            for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_dir() {
                    left.push(entry.path());
                } else if kind.is_socket() {
                    found.push(entry.path());
                }
            }
        }
        found
    }

    /// Gives the ends of all log files, for a failure's report.
    pub(crate) fn logs(&self) -> String {
        let mut text = String::new();
        let mut names: Vec<PathBuf> = std::fs::read_dir(self.path("log")).into_iter().flatten().flatten().map(|e| e.path()).collect();
        names.sort();
        for path in names.iter().filter(|path| !path.ends_with("count") && !path.ends_with("access")) {
            let lines = String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
            let tail: Vec<&str> = lines.lines().rev().take(30).collect();
            text.push_str(&format!("== {}\n", path.display()));
            text.extend(tail.iter().rev().map(|line| format!("{line}\n")));
        }
        text
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let bare = || self.population().is_empty().then_some(());
        let left = if within(BARE_WITHIN, bare).is_some() { Vec::new() } else { self.population() };
        for (process, _) in &left {
            kill(Pid::from_raw(process.pid), Signal::SIGKILL).ok();
        }
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        if std::env::var_os("POLYFPM_TEST_KEEP").is_some() {
            let kept = self.directory.take().map(tempfile::TempDir::keep);
            eprintln!("kept: {}", kept.unwrap_or_default().display());
        }
        assert!(left.is_empty() || std::thread::panicking(), "left alive at the end of the test: {left:#?}");
    }
}

fn open_to_all(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("permissions of our own file");
}

/// Makes a script look an hour old: opcache leaves files alone that were changed in the last two seconds (`opcache.file_update_protection`).
pub(crate) fn age(script: &Path) {
    let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
    File::options().append(true).open(script).and_then(|file| file.set_modified(hour_ago)).expect("our own script");
}

fn socket_inodes_under(root: &Path) -> BTreeSet<String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let root = root.display().to_string();
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.filter(|f| f.get(7).is_some_and(|path| path.starts_with(&root))).filter_map(|f| f.get(6).map(|s| (*s).to_owned())).collect()
}

fn belongs(process: &Stat, root: &Path, sockets: &BTreeSet<String>) -> Option<String> {
    let proc = PathBuf::from(format!("/proc/{}", process.pid));
    let command = std::fs::read(proc.join("cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    if command.contains(&*root.to_string_lossy()) {
        return Some(command);
    }
    let fds = std::fs::read_dir(proc.join("fd")).into_iter().flatten().flatten().map(|e| e.path());
    for link in fds.chain([proc.join("cwd"), proc.join("exe")]).filter_map(|path| std::fs::read_link(path).ok()) {
        let text = link.to_string_lossy();
        let socket = text.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')).is_some_and(|inode| sockets.contains(inode));
        if socket || link.starts_with(root) {
            return Some(format!("{command} has {text}"));
        }
    }
    None
}
