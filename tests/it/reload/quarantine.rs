//! Bad pool files: the pool alone suffers, a pool that ran goes on as it was, and a mended file is found without being asked.

use std::time::Duration;

use super::{AROUND, mixed_load, quarantined, runs, until_idle};
use crate::support::{Sandbox, eventually, pool_lines};

fn pool_text(host: &Sandbox, name: &str, agent: &str, more: &str) -> String {
    let listen = host.ground().text(&format!("run/{name}.sock"));
    let owner = "listen.owner = www-data\nlisten.group = www-data";
    format!("[{name}]\nlisten = {listen}\n{owner}\nphp_admin_value[user_agent] = {agent}\n{}{more}", pool_lines(4))
}

/// What is wrong, and how it is told.
fn faults(host: &Sandbox, name: &str) -> [(&'static str, String, &'static str); 3] {
    let text = |more: &str| pool_text(host, name, "new", more);
    [
        ("an unknown key", text("no_such_key = 1\n"), "no_such_key"),
        ("a user that does not exist", text("user = nobody-of-that-name\n"), "nobody-of-that-name"),
        ("a line php-fpm cannot read", text("pm.max_requests = (\n"), ""),
    ]
}

/// Checks that everybody is told which file is at fault.
#[track_caller]
fn assert_named(host: &Sandbox, name: &str, what: &str, word: &str) {
    let place = format!("{name}.conf");
    let check = host.polyfpm(&["check"]);
    let said = format!("{}{}", check.out, check.err);
    assert_eq!(check.code, 78, "{what}: {said}");
    assert!(said.contains(&format!("{place}:")) && said.contains(word), "check does not name {what}: {said}");
    let bad = quarantined(host);
    let problem = &bad.iter().find(|(pool, _)| pool == name).unwrap_or_else(|| panic!("status does not name {what}: {bad:?}")).1;
    assert!(problem.contains(&place) && problem.contains("\"line\":") && problem.contains(word), "{what}: {problem}");
    let log = host.ground().read("log/polyfpm.out");
    assert!(log.lines().any(|line| line.contains(&format!("{place}:")) && line.contains(word)), "the log does not name {what}");
}

fn answers(host: &Sandbox, pool: &str) -> String {
    host.nginx().body(&format!("/{pool}/agent.php")).trim().to_owned()
}

fn laid_out() -> Sandbox {
    let mut host = Sandbox::new();
    host.ground().write("www/agent.php", "<?php echo ini_get('user_agent');");
    host.pool("other", 8);
    host.pool_file("www", &pool_text(&host, "www", "old", ""));
    host.front_at_old_paths(&["other", "www"]);
    host.run();
    host
}

#[test]
fn a_pool_that_ran_goes_on_as_it_last_was_good_until_its_file_is_mended() {
    let host = laid_out();
    let before = runs(&host);
    let load = mixed_load(&host, "www");
    for (what, text, word) in faults(&host, "www") {
        host.pool_file("www", &text);
        host.does(&["reload"]);
        assert_named(&host, "www", what, word);
        assert_eq!(answers(&host, "www"), "old", "{what}");
        assert_eq!(runs(&host), before, "{what}: nothing that runs is changed by a bad file");
        host.pool_file("www", &pool_text(&host, "www", "old", ""));
        eventually(Duration::from_secs(20), "the mended file is found", || quarantined(&host).is_empty().then_some(()));
        until_idle(&host);
        assert_eq!(runs(&host), before, "{what}: the mended file says what runs");
    }
    let (_, text, _) = &faults(&host, "www")[0];
    host.pool_file("www", text);
    host.does(&["reload"]);
    host.does(&["restart"]);
    assert_eq!(answers(&host, "www"), "old", "a restart does not lose the pool");
    host.pool_file("www", &pool_text(&host, "www", "mended", ""));
    eventually(Duration::from_secs(20), "the mended file is in force", || (answers(&host, "www") == "mended").then_some(()));
    load.run_for(AROUND);
    load.finish(host.ground()).assert_nothing_lost(200);
    assert!(quarantined(&host).is_empty());
}

#[test]
fn a_new_pool_that_is_bad_is_kept_out_and_comes_in_when_mended() {
    let host = laid_out();
    let load = mixed_load(&host, "other");
    for (what, text, word) in faults(&host, "bad") {
        host.pool_file("bad", &text);
        host.does(&["reload"]);
        assert_named(&host, "bad", what, word);
        assert!(!host.ground().path("run/bad.sock").exists(), "{what}");
        host.pool_file("bad", &pool_text(&host, "bad", "new", ""));
        eventually(Duration::from_secs(20), "the mended pool serves", || {
            (quarantined(&host).is_empty() && host.ground().path("run/bad.sock").exists()).then_some(())
        });
        until_idle(&host);
        host.no_pool("bad");
        host.does(&["reload"]);
        let gone = || (!host.ground().path("run/bad.sock").exists()).then_some(());
        eventually(Duration::from_secs(20), "the removed pool's path is gone", gone);
    }
    load.run_for(AROUND);
    load.finish(host.ground()).assert_nothing_lost(200);
}

#[test]
fn at_boot_a_bad_pool_stops_no_other() {
    for number in 0..3 {
        let mut host = Sandbox::new();
        host.ground().write("www/agent.php", "<?php echo ini_get('user_agent');");
        host.pool("other", 8);
        let (what, text, word) = faults(&host, "www")[number].clone();
        host.pool_file("www", &text);
        host.front_at_old_paths(&["other", "www"]);
        host.run();
        assert_eq!(host.nginx().body("/other/hello.php?id=1"), "hello 1\n", "{what}");
        eventually(Duration::from_secs(20), "the bad pool is told apart", || (quarantined(&host).len() == 1).then_some(()));
        assert_named(&host, "www", what, word);
        host.pool_file("www", &pool_text(&host, "www", "mended", ""));
        let serves = || host.nginx().get("/www/agent.php").filter(|answer| answer.contains(" 200 ") && answer.contains("mended"));
        eventually(Duration::from_secs(20), "the mended pool serves", serves);
        assert!(quarantined(&host).is_empty(), "{what}");
    }
}
