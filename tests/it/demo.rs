//! `make run`: what a newcomer sees first must work, and leave nothing.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{Ground, Running, binary, eventually, http_get};

/// 30 s: two masters, an NGINX and a reload of it, on a machine that does other things too.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);

#[test]
fn it_shows_a_page_of_each_shard_and_leaves_nothing() {
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
