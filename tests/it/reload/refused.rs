//! New generations that would run without something the old ones have.

use super::{AROUND, mixed_load, runs};
use crate::support::Sandbox;

const GOOD: &str = "memory_limit = 128M\n";

fn with_ini(ini: &str) -> Sandbox {
    let mut host = Sandbox::new();
    host.pool("www", 16);
    let path = host.ground().write("php.ini", ini).display().to_string();
    host.set("php", "ini", path);
    host.set("shards", "routing", "split");
    host.front_at_old_paths(&["www"]);
    host.run();
    host
}

/// Does what must stop at the first shard, under load; gives what was said.
#[track_caller]
fn stopped(host: &Sandbox, arguments: &[&str], cause: &str) -> String {
    let before = runs(host);
    let load = mixed_load(host, "www");
    load.run_for(AROUND);
    let ended = host.polyfpm(arguments);
    load.run_for(AROUND);
    let report = load.finish(host.ground());
    report.assert_nothing_lost(50);
    let said = format!("{}{}", ended.out, ended.err);
    assert_eq!(ended.code, 1, "{said}");
    assert!(said.contains(cause), "the cause ({cause}) is not told: {said}");
    assert_eq!(runs(host), before, "the old masters serve on");
    let shards = before.iter().map(|(shard, generation, _)| format!("{shard} runs generation {generation}"));
    for runs in shards {
        assert!(said.contains(&runs), "'{runs}' is not told: {said}");
    }
    said
}

#[test]
fn an_extension_that_cannot_be_loaded_any_more() {
    let host = with_ini(GOOD);
    host.ground().write("php.ini", "extension = no_such_extension\n");
    let said = stopped(&host, &["restart"], "no_such_extension");
    assert!(said.contains("start default/1#2"), "{said}");
    // The same by a reload, which comes to the last shard first.
    let said = stopped(&host, &["reload"], "no_such_extension");
    assert!(said.contains("start default/2#2"), "{said}");
    let check = host.polyfpm(&["check"]);
    assert!(format!("{}{}", check.out, check.err).contains("no_such_extension"), "{}{}", check.out, check.err);
    host.ground().write("php.ini", GOOD);
    host.does(&["restart"]);
    assert!(runs(&host).iter().all(|(_, generation, _)| *generation == 3), "{:?}", runs(&host));
}

#[test]
fn a_php_ini_that_cannot_be_read() {
    let host = with_ini(GOOD);
    host.ground().write("php.ini", "memory_limit = \"128M\nuser_agent = (\n");
    stopped(&host, &["restart"], "syntax error");
}

#[test]
fn what_was_missing_from_the_start_stops_nothing() {
    let host = with_ini("extension = no_such_extension\n");
    host.does(&["restart"]);
    assert!(runs(&host).iter().all(|(_, generation, _)| *generation == 2), "{:?}", runs(&host));
}
