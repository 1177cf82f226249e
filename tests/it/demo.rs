//! `make run`: what a newcomer sees first must work, and leave nothing.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{Ground, Running, binary, eventually, http_get, run};

/// 30 s: two masters, an NGINX and a reload of it, on a machine that does other things too.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);

/// Gives the pid of the demo's supervisor, if one answers.
fn supervisor(home: &str) -> Option<i32> {
    let settings = format!("{home}/demo.toml");
    let told = run(&binary(), &["status", "--json", "-c", &settings], Path::new("/tmp"), SHOWN_WITHIN);
    let status: serde_json::Value = serde_json::from_str(&told.out).ok()?;
    i32::try_from(status["pid"].as_i64()?).ok()
}

#[test]
fn it_shows_a_page_of_each_shard_outlives_a_killed_supervisor_and_leaves_nothing() {
    let ground = Ground::new();
    let (port, program) = (ground.port(), binary().display().to_string());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("etc/demo/run.sh");
    let environment = [("DEMO_PORT", port.to_string()), ("TERM", "dumb".to_owned())];
    let environment: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut demo = Running::start(&script, &[&program], &environment, &ground.path("log/demo.out"));
    let home = eventually(SHOWN_WITHIN, "the demo tells what to try", || {
        assert!(demo.ended().is_none(), "the demo ended:\n{}", demo.output());
        let said = demo.output();
        let home = said.split_whitespace().find_map(|word| word.strip_suffix("/demo.toml")).map(str::to_owned);
        home.filter(|_| said.contains("default/2") && said.contains(&port.to_string()))
    });
    for shard in ["default/1", "default/2"] {
        eventually(SHOWN_WITHIN, "both shards answer", || http_get(port, "/").filter(|page| page.contains(shard)));
    }
    // Killed, as a newcomer will try: another supervisor comes, and the masters are its own.
    let first = supervisor(&home).expect("the supervisor's pid");
    kill(Pid::from_raw(first), Signal::SIGKILL).expect("our own supervisor");
    eventually(SHOWN_WITHIN, "another supervisor is there", || supervisor(&home).filter(|pid| *pid != first));
    demo.signal(Signal::SIGINT);
    demo.wait(Duration::from_secs(60));
    assert!(!Path::new(&home).exists(), "{home} is left");
    let named = |pid: i32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let left: Vec<i32> = crate::support::processes()
        .iter()
        .map(|process| process.pid)
        .filter(|pid| String::from_utf8_lossy(&named(*pid)).contains(&home))
        .collect();
    assert!(left.is_empty(), "left alive: {left:?}");
}
