//! The control socket: one job at a time, rights, clients that go away, one supervisor for an instance.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::{SOON, all_ready, at_rest, pause, plain, round_robin};
use crate::support::{Clients, Load, Sandbox, binary, eventually, run};

/// Sends a request line and gives the last reply.
fn ask(host: &Sandbox, line: &str) -> JoinHandle<Value> {
    let mut stream = UnixStream::connect(host.ground().path("run/polyfpm/control.sock")).expect("the control socket");
    stream.write_all(format!("{line}\n").as_bytes()).expect("a request");
    std::thread::spawn(move || {
        let last = BufReader::new(stream).lines().map_while(Result::ok).last().expect("a reply");
        serde_json::from_str(&last).expect("a reply in JSON")
    })
}

#[test]
fn of_restarts_0_to_25_ms_apart_the_first_completes_and_the_others_are_refused() {
    let host = round_robin(|_| {});
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(3), &[]);
    let restart = r#"{"v":1,"command":"restart"}"#;
    for gap in [0, 1, 2, 5, 10, 15, 20, 25].map(Duration::from_millis) {
        let before = host.shards();
        let first = ask(&host, restart);
        pause(gap);
        let second = ask(&host, restart);
        pause(gap);
        let third = ask(&host, restart);
        let [first, second, third] = [first, second, third].map(|reply| reply.join().expect("a reply"));
        assert_eq!(first["reply"], "done", "{gap:?} apart: {first}");
        for refused in [second, third] {
            assert_eq!((&refused["reply"], &refused["code"]), (&"error".into(), &"busy".into()), "{gap:?} apart: {refused}");
            assert_eq!((&refused["job"]["verb"], &refused["job"]["total"]), (&"restart".into(), &2.into()), "{refused}");
            assert!(refused["message"].as_str().expect("a message").contains("of 2 shards done"), "{refused}");
        }
        for (old, new) in before.iter().zip(host.shards()) {
            assert_eq!(new.generation, old.generation + 1, "{gap:?} apart");
        }
    }
    load.finish(host.ground()).assert_nothing_lost(250);
}

#[test]
fn a_restart_during_a_restart_ends_with_75_and_tells_the_first_ones_progress() {
    let host = plain(|_| {});
    let mut first = host.begin(&["restart"], "log/first");
    eventually(SOON, "the restart is under way", || host.status()["job"].is_object().then_some(()));
    let second = host.polyfpm(&["restart"]);
    assert_eq!(second.code, 75, "{}{}", second.out, second.err);
    assert!(second.err.contains("restart: ") && second.err.contains("of 2 shards done"), "{}", second.err);
    assert_eq!(first.exit_code(SOON), 0, "{}", first.output());
}

#[test]
fn a_client_that_goes_away_does_not_stop_its_job() {
    let host = plain(|_| {});
    let client = host.begin(&["restart"], "log/client");
    eventually(SOON, "the restart is under way", || host.status()["job"].is_object().then_some(()));
    client.signal(Signal::SIGKILL);
    at_rest(&host);
    assert!(all_ready(&host).iter().all(|shard| shard.generation == 2));
}

#[test]
fn a_second_supervisor_is_refused_and_told_who_is_the_first() {
    let mut host = plain(|_| {});
    let first = host.supervisor().pid().to_string();
    let second = host.polyfpm(&["run"]);
    assert_eq!(second.code, 75, "{}", second.err);
    assert!(second.err.contains(&format!("pid {first}")), "{}", second.err);
    assert!(host.nginx().body("/www/hello.php?id=1").contains("hello 1"), "the first goes on");
    assert_eq!(host.polyfpm(&["status"]).code, 0);
}

/// Runs a command as `www-data`, with our program at a place where that user may read it.
fn as_www_data(host: &Sandbox, words: &[&str]) -> i32 {
    let program = host.ground().text("polyfpm");
    if !Path::new(&program).exists() {
        std::fs::copy(binary(), &program).expect("a copy of our program");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("our own file");
    }
    let settings = host.ground().text("web.toml");
    let mut arguments = vec!["--reuid=www-data", "--regid=www-data", "--clear-groups", program.as_str()];
    arguments.extend(words.iter().copied().chain(["-c", settings.as_str()]));
    // 126: another test's child, on its way to its own program, still has the copy open for writing.
    eventually(SOON, "the copy can be run", || {
        let code = run(Path::new("/usr/bin/setpriv"), &arguments, Path::new("/tmp"), SOON).code;
        (code != 126).then_some(code)
    })
}

#[test]
fn the_control_socket_is_roots_alone_unless_a_group_may_read() {
    let host = plain(|_| {});
    let socket = std::fs::metadata(host.ground().path("run/polyfpm/control.sock")).unwrap();
    assert_eq!((socket.uid(), socket.mode() & 0o777), (0, 0o600));
    assert_eq!(as_www_data(&host, &["status"]), 77);

    let host = plain(|host| host.set("control", "group", "www-data"));
    let socket = std::fs::metadata(host.ground().path("run/polyfpm/control.sock")).unwrap();
    assert_eq!((socket.uid(), socket.mode() & 0o777), (0, 0o660));
    assert_eq!(as_www_data(&host, &["status"]), 0);
    assert_eq!(as_www_data(&host, &["restart"]), 77);
    assert_eq!(as_www_data(&host, &["stop"]), 77);
    assert!(all_ready(&host).iter().all(|shard| shard.generation == 1), "nothing was changed");
}

#[test]
fn a_request_that_is_none_is_told_so() {
    let host = plain(|_| {});
    for (line, code) in [("restart", "usage"), (r#"{"v":9,"command":"restart"}"#, "usage"), (r#"{"v":1,"command":"dance"}"#, "usage")] {
        let reply = ask(&host, line).join().expect("a reply");
        assert_eq!((&reply["reply"], &reply["code"]), (&"error".into(), &code.into()), "{line}: {reply}");
    }
    assert_eq!(host.polyfpm(&["restart", "nosuch/1"]).code, 64);
    assert_eq!(host.polyfpm(&["park", "nosuch/1"]).code, 64);
}

#[test]
fn without_a_supervisor_commands_end_with_69() {
    let host = Sandbox::new();
    for words in [&["status"][..], &["restart"], &["reload"], &["stop"], &["reopen"], &["park", "default/1"]] {
        assert_eq!(host.polyfpm(words).code, 69, "{words:?}");
    }
}
