//! Links, pipes, devices and directories where something of ours belongs: named, left alone, and waited for by nobody.

use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;

use super::{SOON, nginx_is, split};
use crate::support::{Route, Sandbox, Site, eventually};

const KINDS: [&str; 5] = ["pipe", "device", "directory", "link", "dangling"];

/// Puts something of a kind at `path`; a link leads to `victim`.
fn put(kind: &str, path: &Path, victim: &Path) {
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("its directory");
    match kind {
        "pipe" => mkfifo(path, Mode::from_bits_truncate(0o600)).expect("a pipe"),
        "device" => mknod(path, SFlag::S_IFCHR, Mode::from_bits_truncate(0o600), makedev(1, 7)).expect("/dev/full by another name"),
        "directory" => std::fs::create_dir(path).expect("a directory"),
        "link" => symlink(victim, path).expect("a link"),
        _ => symlink(victim.with_extension("nowhere"), path).expect("a link"),
    }
}

/// Tells whether it is still there.
fn stands(kind: &str, path: &Path) -> bool {
    let Ok(found) = std::fs::symlink_metadata(path).map(|found| found.file_type()) else { return false };
    match kind {
        "pipe" => found.is_fifo(),
        "device" => found.is_char_device(),
        "directory" => found.is_dir(),
        _ => found.is_symlink(),
    }
}

fn victim(host: &Sandbox) -> PathBuf {
    host.ground().write("victim", "kept\n")
}

fn is_kept(victim: &Path) -> bool {
    std::fs::read_to_string(victim).is_ok_and(|text| text == "kept\n") && !victim.with_extension("nowhere").exists()
}

#[test]
fn where_a_pools_socket_belongs_the_pool_is_kept_out_by_name() {
    let mut host = Sandbox::new();
    host.pool("www", 4);
    let victim = victim(&host);
    // Links in a directory of root's are followed, as php-fpm does; what they lead to is no socket.
    for kind in ["pipe", "device", "directory", "link"] {
        host.pool(kind, 2);
        put(kind, &host.ground().path(&format!("run/{kind}.sock")), &victim);
    }
    host.front_at_old_paths(&["www"]);
    host.run();
    let status = host.status();
    for kind in ["pipe", "device", "directory", "link"] {
        let path = host.ground().path(&format!("run/{kind}.sock"));
        let bad = status["quarantined"].as_array().expect("a list").iter().find(|bad| bad["pool"] == kind);
        let text = bad.unwrap_or_else(|| panic!("{kind} is not kept out: {:#}", status["quarantined"])).to_string();
        let named = if kind == "link" { victim.display().to_string() } else { path.display().to_string() };
        assert!(text.contains(&named), "{kind}: {text}");
        assert!(stands(kind, &path), "{kind} was touched");
    }
    assert!(is_kept(&victim));
    assert!(host.nginx().body("/www/hello.php?id=1").contains("hello 1"));
    host.stop();
}

#[test]
fn where_the_include_belongs_nothing_is_written_and_php_serves() {
    for kind in ["pipe", "device", "directory"] {
        let mut host = Sandbox::new();
        host.pool("www", 4);
        let path = host.ground().path("nginx/conf.d/include");
        host.set("nginx", "include", path.display().to_string());
        put(kind, &path, &victim(&host));
        host.front(&Site::one(Route::new("www", &host.pass("www"))));
        host.run();
        nginx_is(&host, "failed");
        let detail = host.status()["nginx"]["detail"].to_string();
        assert!(detail.contains("nginx/conf.d/include"), "{kind}: {detail}");
        assert!(stands(kind, &path));
        assert!(host.nginx().body("/www/hello.php?id=1").contains("hello 1"));
        host.stop();
    }
}

#[test]
fn where_lock_or_control_socket_belong_the_supervisor_says_so_and_ends() {
    for name in ["lock", "control.sock"] {
        // A link of root's in a directory of root's alone is followed for the control socket, and what it leads to judged.
        for kind in KINDS.into_iter().filter(|kind| (name, *kind) != ("control.sock", "dangling")) {
            let host = Sandbox::new();
            host.pool("www", 4);
            let (victim, path) = (victim(&host), host.ground().path(&format!("run/polyfpm/{name}")));
            put(kind, &path, &victim);
            let ended = host.polyfpm(&["run"]);
            assert!(matches!(ended.code, 1 | 73 | 75), "{name}, {kind}: {} {}", ended.code, ended.err);
            assert!(ended.err.contains(&path.display().to_string()), "{name}, {kind}: {}", ended.err);
            assert!(stands(kind, &path), "{name}, {kind} was touched");
            assert!(is_kept(&victim), "{name}, {kind}");
            assert!(host.ground().population().is_empty(), "{name}, {kind}");
        }
    }
}

#[test]
fn where_state_files_belong_the_next_supervisor_starts_all_the_same() {
    for kind in KINDS {
        let mut host = split(|_| {});
        let (victim, masters) = (victim(&host), host.masters());
        host.signal(Signal::SIGKILL);
        host.supervisor().wait(SOON);
        for name in ["state.json", "plan.json"] {
            let path = host.ground().path(&format!("run/polyfpm/{name}"));
            std::fs::remove_file(&path).expect("our own file");
            put(kind, &path, &victim);
        }
        host.launch();
        host.ready();
        assert_eq!(host.masters(), masters, "{kind}: each master's own file is enough");
        assert!(is_kept(&victim), "{kind}");
        if kind == "directory" {
            // What cannot be replaced is told with the next job.
            assert_eq!(host.polyfpm(&["restart"]).code, 1);
            for name in ["state.json", "plan.json"] {
                std::fs::remove_dir(host.ground().path(&format!("run/polyfpm/{name}"))).expect("our own directory");
            }
            eventually(SOON, "they are written", || host.ground().path("run/polyfpm/plan.json").is_file().then_some(()));
        }
        host.does(&["restart"]);
        assert!(is_kept(&victim), "{kind}");
        host.stop();
    }
}
