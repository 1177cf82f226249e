//! What each new master is given and asked before it takes traffic, and what PHP sees of it.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use super::{AROUND, mixed_load};
use crate::support::Sandbox;

/// Writes down that it ran in which master: warm-up and traffic, each with the time.
const RECORD: &str = r#"<?php
$fields = explode(' ', substr(file_get_contents('/proc/self/stat'), strrpos(file_get_contents('/proc/self/stat'), ')') + 2));
$line = implode(' ', [$_GET['kind'] ?? 'warm-up', $fields[1], hrtime(true), $_SERVER['REQUEST_URI'] ?? '']);
file_put_contents(__DIR__ . '/../log/count', $line . "\n", FILE_APPEND);
echo "recorded\n";
"#;

fn with_warmup(routing: &str) -> Sandbox {
    let mut host = Sandbox::new();
    let script = host.ground().write("www/record.php", RECORD).display().to_string();
    let mut warmup = toml::Table::new();
    warmup.insert("pool".to_owned(), "www".into());
    warmup.insert("script".to_owned(), script.into());
    warmup.insert("uri".to_owned(), "/health?warm=1".into());
    warmup.insert("expect".to_owned(), 200.into());
    host.set("restart", "warmup", toml::Value::Array(vec![warmup.into()]));
    host.set("shards", "routing", routing);
    host.pool("www", 8);
    host
}

/// Gives, for each master, when it was warmed up and when it first served: times of the same clock.
fn recorded(host: &Sandbox) -> BTreeMap<i32, BTreeMap<String, u64>> {
    let mut times: BTreeMap<i32, BTreeMap<String, u64>> = BTreeMap::new();
    for line in host.ground().read("log/count").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [kind @ ("warm-up" | "traffic"), master, time, uri] = words.as_slice() else { continue };
        assert!(*kind == "traffic" || *uri == "/health?warm=1", "{line}");
        let (master, time) = (master.parse().expect("a pid"), time.parse().expect("nanoseconds"));
        let first = times.entry(master).or_default().entry((*kind).to_owned()).or_insert(time);
        *first = time.min(*first);
    }
    times
}

#[test]
fn each_new_master_is_warmed_up_before_it_serves() {
    warmed_up_first("split", 4);
}

/// Its masters accept on one listener: they come in together (design, routing).
#[test]
fn each_new_master_of_a_shared_pool_is_warmed_up_before_it_serves() {
    warmed_up_first("shared", 8);
}

/// Restarts three times and checks that nobody served unwarmed, and that so many of the eight masters were seen to serve.
fn warmed_up_first(routing: &str, serving: u32) {
    let mut host = with_warmup(routing);
    host.front_at_old_paths(&["www"]);
    host.run();
    let mut masters = host.masters();
    let load = mixed_load(&host, "www");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!(host.nginx().body("/www/record.php?kind=traffic"), "recorded\n");
            }
        });
        for _ in 0..3 {
            host.does(&["restart"]);
            masters.extend(host.masters());
        }
        load.run_for(AROUND);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    load.finish(host.ground()).assert_nothing_lost(100);
    let times = recorded(&host);
    assert_eq!(masters.len(), 8);
    let mut served = 0_u32;
    for master in masters {
        let of_master = times.get(&master).unwrap_or_else(|| panic!("master {master} was not warmed up: {times:?}"));
        let warmed = of_master.get("warm-up").unwrap_or_else(|| panic!("master {master} was not warmed up: {times:?}"));
        if let Some(traffic) = of_master.get("traffic") {
            served += 1;
            assert!(warmed < traffic, "master {master} served before it was warm");
        }
    }
    assert!(served >= serving, "each generation at the old path served: {times:?}");
}

#[test]
fn status_sockets_are_out_of_reach_for_pool_users() {
    let mut host = Sandbox::new();
    host.pool("www", 4);
    host.front_at_old_paths(&["www"]);
    host.run();
    let masters = host.ground().path("run/polyfpm/m");
    let mode = |path: &PathBuf| std::fs::symlink_metadata(path).expect("a path of a master").mode() & 0o7777;
    assert_eq!(mode(&masters), 0o700);
    let mut sockets = 0;
    for master in std::fs::read_dir(&masters).unwrap().flatten() {
        assert_eq!(mode(&master.path()), 0o700);
        for file in std::fs::read_dir(master.path()).unwrap().flatten() {
            if file.file_type().unwrap().is_socket() && file.file_name() != "notify" {
                sockets += 1;
                assert_eq!(mode(&file.path()), 0o600, "{file:?}");
            }
        }
    }
    assert_eq!(sockets, 2, "one status socket for each shard");
    let script = format!(
        "<?php $found = glob('{0}/*/*'); echo $found ? 'found' : 'nothing', ' ', is_readable('{0}') ? 'readable' : 'closed', \"\\n\";",
        masters.display()
    );
    host.ground().write("www/look.php", &script);
    assert_eq!(host.nginx().body("/www/look.php"), "nothing closed\n");
}

/// Tells every variable by name, and whether the notify socket can be reached.
const LOOK: &str = r#"<?php
// Of the process itself, without what NGINX passes.
$names = array_filter(array_keys(getenv()), fn ($name) => getenv($name, true) !== false);
sort($names);
echo implode(' ', $names), '; ', file_exists((string) getenv('NOTIFY_SOCKET')) ? 'reached' : 'out of reach', "\n";
"#;

#[test]
fn php_sees_no_more_of_the_environment_than_under_a_service_manager() {
    let mut host = Sandbox::new();
    let mut given = toml::Table::new();
    given.insert("APP_ENV".to_owned(), "prod".into());
    host.set("php", "environment", given);
    host.ground().write("www/look.php", LOOK);
    host.pool_at("open", &host.ground().text("run/open.sock"), 2, "clear_env = no");
    host.pool_at("clear", &host.ground().text("run/clear.sock"), 2, "env[OWN] = own");
    host.front_at_old_paths(&["open", "clear"]);
    host.run();
    assert_eq!(host.nginx().body("/clear/look.php"), "HOME OWN USER; out of reach\n");
    // php-fpm leaves its own two in the environment of a pool that does not clear it, under systemd as here.
    let all = "APP_ENV FPM_SOCKETS HOME LANG NOTIFY_SOCKET PATH USER; out of reach\n";
    assert_eq!(host.nginx().body("/open/look.php"), all);
}
