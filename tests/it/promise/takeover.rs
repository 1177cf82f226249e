//! A running php-fpm that is not ours is taken over, and given back, while requests go on.

use std::path::PathBuf;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::Signal;

use super::STEADY;
use crate::support::{
    Clients, Extra, Load, Peer, Route, Running, Sandbox, Site, alive, binary, children, eventually, php_fpm, queue, run, stat,
};

/// A php-fpm that somebody started by hand on the sandbox's own files.
struct Stranger {
    running: Running,
}

impl Stranger {
    fn start(host: &Sandbox, listens: &[Peer]) -> Self {
        let config = host.ground().text("php-fpm.conf");
        let log = host.ground().path("log/stranger.out");
        let running = Running::start(&php_fpm(), &["--nodaemonize", "--fpm-config", &config], &[], &log);
        for listen in listens {
            eventually(Duration::from_secs(10), "the stranger listens", || queue(listen));
        }
        let stranger = Self { running };
        eventually(Duration::from_secs(10), "the stranger has workers", || (!children(stranger.pid()).is_empty()).then_some(()));
        stranger
    }

    fn pid(&self) -> i32 {
        self.running.pid()
    }
}

/// Sees whether names in `run/` ever vanish.
struct Paths {
    inotify: Inotify,
}

impl Paths {
    fn watch(host: &Sandbox) -> Self {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).expect("inotify");
        let flags = AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM;
        inotify.add_watch(&host.ground().path("run"), flags).expect("a watch on our own directory");
        Self { inotify }
    }

    /// Fails if a socket's public name was gone for however short a time.
    #[track_caller]
    fn assert_stood(&self, names: &[&str]) {
        let mut gone = Vec::new();
        while let Ok(events) = self.inotify.read_events() {
            gone.extend(events.into_iter().filter_map(|event| event.name).map(|name| name.to_string_lossy().into_owned()));
        }
        assert!(!gone.iter().any(|name| names.contains(&name.as_str())), "paths vanished: {gone:?}");
    }
}

fn unix(host: &Sandbox, pool: &str) -> Peer {
    Peer::Unix(host.ground().path(&format!("run/{pool}.sock")))
}

/// Waits until the supervisor has found out that it can start nothing.
fn kept_out(host: &Sandbox, pools: usize) {
    eventually(Duration::from_secs(20), "the supervisor keeps the pools out", || {
        let out = host.polyfpm(&["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&out.out).ok()?;
        let quarantined = status["quarantined"].as_array()?.len();
        (quarantined == pools && status["job"].is_null()).then_some(())
    });
}

#[test]
fn a_running_php_fpm_is_taken_over_and_nobody_notices() {
    let mut host = Sandbox::new();
    host.pool("www", 8);
    host.pool("blog", 3);
    let mut stranger = Stranger::start(&host, &[unix(&host, "www"), unix(&host, "blog")]);
    host.front_at_old_paths(&["www", "blog"]);
    host.launch();
    kept_out(&host, 2);
    let paths = Paths::watch(&host);
    let slow = [Extra::Long(Duration::from_secs(3)), Extra::Uploads];
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(3), &slow);
    let other = Load::start(host.ground(), host.nginx(), "blog", Clients::one_each(1), &[]);
    load.run_for(STEADY);
    let told = host.does(&["takeover"]);
    assert!(told.contains("taken over with 2 pools"), "{told}");
    stranger.running.wait(Duration::from_secs(1));
    load.run_for(STEADY);
    // What was taken over is handed over like any other.
    host.does(&["restart"]);
    load.run_for(STEADY / 2);
    for report in [load.finish(host.ground()), other.finish(host.ground())] {
        report.assert_nothing_lost(100);
    }
    paths.assert_stood(&["www.sock", "blog.sock"]);
    assert!(host.shards().iter().all(|shard| shard.verdict == "ready"), "{:#?}", host.shards());
    assert_eq!(host.pool_workers("www").len(), 8, "every worker is reached");
    host.stop();
}

#[test]
fn a_first_take_over_may_follow_the_start_at_once() {
    let mut host = Sandbox::new();
    host.pool("www", 4);
    let mut stranger = Stranger::start(&host, &[unix(&host, "www")]);
    host.front_at_old_paths(&["www"]);
    let checked = host.polyfpm(&["check"]);
    assert_eq!(checked.code, 0, "{}", checked.out);
    assert!(checked.out.contains("the pool is kept out until it is taken over"), "{}", checked.out);
    host.launch();
    // The supervisor answers, tries once more what it kept out, and must not refuse the command for that.
    eventually(Duration::from_secs(20), "the take-over is done", || {
        let ended = host.polyfpm(&["takeover"]);
        assert!(matches!(ended.code, 0 | 69), "{}{}", ended.out, ended.err);
        (ended.code == 0).then_some(())
    });
    stranger.running.wait(Duration::from_secs(1));
    host.stop();
}

#[test]
fn a_dry_run_tells_every_step_and_changes_nothing() {
    let mut host = Sandbox::new();
    host.pool("www", 4);
    let stranger = Stranger::start(&host, &[unix(&host, "www")]);
    host.launch();
    kept_out(&host, 1);
    let before = (children(stranger.pid()), queue(&unix(&host, "www")));
    let told = host.does(&["takeover", "--dry-run"]);
    for words in ["fetch: ", "start: ", "hold: ", "drain: ", "kill: ", "settle: ", "nothing was changed", &stranger.pid().to_string()] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert_eq!((children(stranger.pid()), queue(&unix(&host, "www"))), before);
    let by_pid = host.does(&["takeover", "--dry-run", "--from", &stranger.pid().to_string()]);
    assert!(by_pid.contains("fetch: "), "{by_pid}");
    drop(stranger);
    host.stop();
}

#[test]
fn addresses_are_taken_over_too() {
    let mut host = Sandbox::new();
    let port = host.ground().port();
    let address = format!("127.0.0.1:{port}");
    host.pool_at("net", &address, 6, "");
    host.pool("www", 4);
    let mut stranger = Stranger::start(&host, &[unix(&host, "www"), Peer::Tcp(address.parse().expect("an address"))]);
    let routes = vec![Route::new("net", &address), Route::new("www", &host.pass("www"))];
    host.front(&Site { routes, ..Site::default() });
    host.launch();
    kept_out(&host, 2);
    let load = Load::start(host.ground(), host.nginx(), "net", Clients::one_each(4), &[Extra::Long(Duration::from_secs(2))]);
    load.run_for(STEADY);
    host.does(&["takeover"]);
    stranger.running.wait(Duration::from_secs(1));
    // The socket was not bound to share its address: it goes on from hand to hand, also after an adoption.
    host.does(&["restart"]);
    host.signal(Signal::SIGKILL);
    host.supervisor().wait(Duration::from_secs(5));
    host.launch();
    host.ready();
    host.does(&["restart"]);
    host.does(&["reload"]);
    load.finish(host.ground()).assert_nothing_lost(200);
    assert_eq!(host.pool_workers("net").len(), 6);
    host.stop();
}

/// Takes over what was mended: the supervisor reads changed files of bad pools by itself, and may be at that.
#[track_caller]
fn takes_over(host: &Sandbox) {
    eventually(Duration::from_secs(30), "the supervisor has read the mended file", || {
        let ended = host.polyfpm(&["takeover"]);
        assert!(matches!(ended.code, 0 | 75), "{}{}", ended.out, ended.err);
        (ended.code == 0).then_some(())
    });
}

/// What the stranger serves with, and that it does.
fn untouched(host: &Sandbox, stranger: &Stranger, paths: &Paths) {
    assert!(alive(stranger.pid()), "the other master lives");
    assert_eq!(stat(stranger.pid()).map(|stat| stat.state), Some('S'), "and is not stopped");
    eventually(Duration::from_secs(10), "it has workers", || (!children(stranger.pid()).is_empty()).then_some(()));
    paths.assert_stood(&["www.sock", "blog.sock"]);
    let names: Vec<PathBuf> = host.ground().socket_files();
    let beside: Vec<&PathBuf> = names.iter().filter(|path| path.extension().is_some_and(|end| end == "00" || end == "01")).collect();
    assert!(beside.is_empty(), "second names are left: {beside:?}");
}

#[test]
fn a_pool_that_cannot_run_here_puts_everything_back() {
    let mut host = Sandbox::new();
    host.pool("www", 4);
    host.pool("blog", 2);
    let stranger = Stranger::start(&host, &[unix(&host, "www"), unix(&host, "blog")]);
    host.front_at_old_paths(&["www", "blog"]);
    host.launch();
    kept_out(&host, 2);
    let paths = Paths::watch(&host);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(3), &[Extra::Long(Duration::from_secs(1))]);
    let other = Load::start(host.ground(), host.nginx(), "blog", Clients::one_each(1), &[]);
    load.run_for(STEADY / 2);
    // The files were edited since the stranger read them.
    host.pool_at("blog", &host.ground().text("run/blog.sock"), 2, "user = nobody-of-this-name");
    let refused = host.polyfpm(&["takeover"]);
    assert_eq!(refused.code, 1, "{}{}", refused.out, refused.err);
    assert!(refused.err.contains("blog") && refused.err.contains("put back"), "{}", refused.err);
    kept_out(&host, 2);
    untouched(&host, &stranger, &paths);
    // Mended, it works.
    host.pool("blog", 2);
    takes_over(&host);
    load.run_for(STEADY / 2);
    for report in [load.finish(host.ground()), other.finish(host.ground())] {
        report.assert_nothing_lost(50);
    }
    host.stop();
}

#[test]
fn where_sockets_cannot_be_copied_new_ones_take_the_paths() {
    let mut host = Sandbox::new();
    host.pool("www", 8);
    host.pool("blog", 2);
    let mut stranger = Stranger::start(&host, &[unix(&host, "www"), unix(&host, "blog")]);
    host.front_at_old_paths(&["www", "blog"]);
    host.launch_through("/usr/bin/setpriv", &["--bounding-set=-sys_ptrace", "--"]);
    kept_out(&host, 2);
    let paths = Paths::watch(&host);
    let told = host.does(&["takeover", "--dry-run"]);
    assert!(told.contains("rename: "), "{told}");
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(3), &[Extra::Long(Duration::from_secs(2))]);
    let other = Load::start(host.ground(), host.nginx(), "blog", Clients::one_each(1), &[]);
    load.run_for(STEADY / 2);
    // The first try fails after our masters were bound beside, and leaves nothing.
    host.pool_at("blog", &host.ground().text("run/blog.sock"), 2, "user = nobody-of-this-name");
    assert_eq!(host.polyfpm(&["takeover"]).code, 1);
    kept_out(&host, 2);
    untouched(&host, &stranger, &paths);
    host.pool("blog", 2);
    takes_over(&host);
    stranger.running.wait(Duration::from_secs(1));
    host.does(&["restart"]);
    for report in [load.finish(host.ground()), other.finish(host.ground())] {
        report.assert_nothing_lost(50);
    }
    paths.assert_stood(&["www.sock", "blog.sock"]);
    host.stop();
}

#[test]
fn a_supervisor_that_is_told_to_stop_in_the_middle_leaves_the_other_as_it_was() {
    let mut host = Sandbox::new();
    host.pool("www", 8);
    let stranger = Stranger::start(&host, &[unix(&host, "www")]);
    host.front_at_old_paths(&["www"]);
    host.launch();
    kept_out(&host, 1);
    let paths = Paths::watch(&host);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(2), &[Extra::Long(Duration::from_secs(3))]);
    load.run_for(STEADY / 2);
    let mut takeover = host.begin(&["takeover"], "log/takeover.out");
    eventually(Duration::from_secs(20), "the old workers finish", || takeover.output().contains("drain: ").then_some(()));
    assert_eq!(stat(stranger.pid()).map(|stat| stat.state), Some('T'), "the old master is stopped");
    host.signal(Signal::SIGTERM);
    assert_ne!(takeover.exit_code(Duration::from_secs(20)), 0);
    assert_eq!(host.supervisor().exit_code(Duration::from_secs(20)), 0);
    untouched(&host, &stranger, &paths);
    load.run_for(STEADY / 2);
    load.finish(host.ground()).assert_nothing_lost(50);
}

/// Once, and after the steps that differ most; `POLYFPM_TEST_ROUNDS=2` asks for more and for every step.
fn rounds() -> usize {
    std::env::var("POLYFPM_TEST_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Gives the pid of the php-fpm that a hand-back left, which is a daemon.
fn daemon(host: &Sandbox) -> i32 {
    host.ground().read("run/php-fpm.pid").trim().parse().expect("its pid file")
}

#[test]
fn sockets_are_given_back_and_taken_again_while_requests_go_on() {
    let mut host = Sandbox::new();
    let port = host.ground().port();
    let address = format!("127.0.0.1:{port}");
    host.pool("www", 6);
    host.pool_at("net", &address, 2, "");
    host.set("shards", "routing", "split");
    let old = vec![Route::new("www", &host.pass("www")), Route::new("net", &address)];
    host.front(&Site { routes: old, ..Site::default() });
    host.run();
    // Half of the vhosts name what polyfpm generates, and go on doing so (S11).
    let named = vec![Route::new("www", &Sandbox::upstream("www")), Route::new("net", &address)];
    host.edit(&Site { routes: named, ..Site::default() });
    let paths = Paths::watch(&host);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(3), &[Extra::Long(Duration::from_secs(2))]);
    let other = Load::start(host.ground(), host.nginx(), "net", Clients::one_each(1), &[]);
    load.run_for(STEADY / 2);
    let told = host.does(&["handback", "--dry-run"]);
    assert!(told.contains("launch: ") && told.contains("nothing was changed"), "{told}");
    // A php-fpm that does not start changes nothing.
    let masters = host.masters();
    let settings = host.ground().text("web.toml");
    let arguments = ["-c", settings.as_str(), "handback", "--", "/bin/false"];
    let refused = run(&binary(), &arguments, &host.ground().path("log"), Duration::from_secs(30));
    assert_eq!(refused.code, 1, "{}{}", refused.out, refused.err);
    assert_eq!(host.masters(), masters);
    for _ in 0..rounds() {
        let told = host.does(&["handback"]);
        assert!(told.contains("serves"), "{told}");
        assert_eq!(host.supervisor().exit_code(Duration::from_secs(30)), 0, "{}", host.log_tail());
        assert!(alive(daemon(&host)));
        load.run_for(STEADY / 2);
        host.launch();
        kept_out(&host, 2);
        host.does(&["takeover"]);
    }
    load.run_for(STEADY / 2);
    for report in [load.finish(host.ground()), other.finish(host.ground())] {
        report.assert_nothing_lost(50);
    }
    paths.assert_stood(&["www.sock"]);
    host.stop();
}

#[test]
fn a_supervisor_that_is_killed_after_any_step_is_followed_by_one_that_goes_on() {
    let mut host = Sandbox::new();
    host.pool("www", 6);
    drop(Stranger::start(&host, &[unix(&host, "www")]));
    host.front_at_old_paths(&["www"]);
    let faults = host.ground().path("faults");
    std::fs::create_dir_all(&faults).expect("a directory");
    let faults = faults.display().to_string();
    host.run();
    host.does(&["handback"]);
    host.supervisor().wait(Duration::from_secs(30));
    let paths = Paths::watch(&host);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(2), &[Extra::Long(Duration::from_secs(1))]);
    let steps: &[&str] = if rounds() > 1 { &["fetch", "start", "hold", "drain", "kill", "settle"] } else { &["start", "drain", "kill"] };
    for step in steps {
        let other = daemon(&host);
        host.launch_with(&[("POLYFPM_FAULTS", &faults)]);
        kept_out(&host, 1);
        host.ground().write("faults/armed", &format!("kill 1 {step}"));
        let ended = host.polyfpm(&["takeover"]);
        assert_ne!(ended.code, 0, "{step}: {}{}", ended.out, ended.err);
        host.supervisor().wait(Duration::from_secs(10));
        std::fs::remove_file(host.ground().path("faults/passed")).ok();
        host.launch();
        host.ready();
        eventually(Duration::from_secs(20), &format!("after {step} the other master has gone"), || (!alive(other)).then_some(()));
        eventually(Duration::from_secs(20), "the take-over is over", || host.status()["job"].is_null().then_some(()));
        host.does(&["handback"]);
        host.supervisor().wait(Duration::from_secs(30));
    }
    load.finish(host.ground()).assert_nothing_lost(100);
    paths.assert_stood(&["www.sock"]);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(daemon(&host)), Signal::SIGQUIT).expect("the last daemon");
}
