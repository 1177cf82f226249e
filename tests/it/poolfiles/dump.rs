//! Compares a reading with php-fpm's own dump of what it read.

use std::collections::BTreeMap;

use polyfpm::model::host::FpmBuild;
use polyfpm::model::pool::{Pool, PoolFiles, ProcessManager, RawLine};

/// One section of a dump, its entries in order.
type Section = Vec<(String, String)>;

fn sections(dump: &str) -> BTreeMap<String, Section> {
    let mut found: BTreeMap<String, Section> = BTreeMap::new();
    let mut current = String::new();
    let mut open = false;
    for line in dump.lines() {
        let Some((_, said)) = line.split_once("] NOTICE: ") else {
            // A value may hold a line end: what follows belongs to the entry above.
            if open && let Some((_, value)) = found.get_mut(&current).and_then(|section| section.last_mut()) {
                value.push('\n');
                value.push_str(line);
            }
            continue;
        };
        open = false;
        if let Some(entry) = said.strip_prefix('\t') {
            let (key, value) = entry.split_once(" = ").unwrap_or_else(|| panic!("a dump line without a value: {entry}"));
            found.get_mut(&current).unwrap().push((key.to_owned(), value.to_owned()));
            open = true;
        } else if let Some(name) = said.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            current = name.to_owned();
            found.entry(current.clone()).or_default();
        }
    }
    found
}

/// C's atoi, for the comparison.
fn atoi(text: &str) -> i32 {
    let text = text.trim_start();
    let digits: String = text.char_indices().take_while(|(at, c)| c.is_ascii_digit() || (*at == 0 && *c == '-')).map(|(_, c)| c).collect();
    let wide = digits.parse::<i64>().unwrap_or_default();
    i32::try_from(wide.rem_euclid(1 << 32)).unwrap_or_else(|_| i32::try_from(wide.rem_euclid(1 << 32) - (1 << 32)).unwrap())
}

fn seconds(text: &str) -> i32 {
    let unit = match text.chars().last() {
        Some('m') => 60,
        Some('h') => 3600,
        Some('d') => 86_400,
        _ => 1,
    };
    atoi(text) * unit
}

/// Keys that hold a path, which the dump shows with its prefix.
const PATHS: [&str; 9] = ["prefix", "listen", "access.log", "slowlog", "chroot", "chdir", "error_log", "pid", "pm.status_listen"];

/// Says whether `shown` is what php-fpm makes of `value`.
fn same(key: &str, value: &str, shown: &str) -> bool {
    if value == shown {
        return true;
    }
    match key {
        _ if PATHS.contains(&key) => {
            let rest = value.strip_prefix("$prefix").unwrap_or(value);
            shown.starts_with('/') && !value.starts_with('/') && (shown.ends_with(&format!("/{rest}")) || rest.is_empty())
        }
        // The dump shows the level before it is set, and the facility's number.
        "log_level" | "syslog.facility" => true,
        "rlimit_core" if value.eq_ignore_ascii_case("unlimited") => shown == "-1",
        "pm" | "events.mechanism" => value.eq_ignore_ascii_case(shown),
        _ if shown == "yes" => matches!(value, "1" | "yes" | "true" | "on"),
        _ if shown == "no" => matches!(value, "" | "0" | "no" | "false" | "off" | "none"),
        _ => match shown.strip_suffix('s').unwrap_or(shown).parse::<i32>() {
            Ok(number) => number == atoi(value) || number == seconds(value),
            Err(_) => false,
        },
    }
}

/// Keys whose value php-fpm changes or drops by other keys.
fn settled(pool: &Pool, key: &str) -> bool {
    let ondemand = pool.pm == ProcessManager::Ondemand;
    match key {
        "pm.start_servers" | "pm.min_spare_servers" | "pm.max_spare_servers" | "listen.backlog" => ondemand,
        "ping.response" => pool.ping_path.is_none(),
        _ => false,
    }
}

fn scalars(lines: &[RawLine]) -> BTreeMap<&str, &str> {
    lines.iter().filter(|line| line.element.is_none()).map(|line| (line.key.as_str(), line.value.as_str())).collect()
}

/// Compares everything the files say with the dump.
pub(super) fn assert_same(build: &FpmBuild, files: &PoolFiles, dump: &str, case: &str) {
    let mut sections = sections(dump);
    let global = sections.remove("global").unwrap_or_else(|| panic!("{case}: no dump\n{dump}"));
    let find = |section: &Section, key: &str| section.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone());
    for (key, value) in scalars(&files.global.lines) {
        let shown = find(&global, key).unwrap_or_else(|| panic!("{case}: {key} is not dumped by {}", build.version));
        assert!(same(key, value, &shown), "{case}: {key} is {value:?} to us and {shown:?} to php-fpm");
    }
    let hidden = |name: &String| files.pools.iter().any(|pool| *name == format!("{}_status", pool.name));
    let theirs: Vec<&String> = sections.keys().filter(|name| !hidden(name)).collect();
    let mut ours: Vec<&str> = files.pools.iter().map(|pool| pool.name.as_str()).collect();
    ours.sort_unstable();
    assert_eq!(ours, theirs, "{case}: the pools");
    for pool in &files.pools {
        assert_pool(pool, &sections[pool.name.as_str()], case);
    }
}

fn assert_pool(pool: &Pool, section: &Section, case: &str) {
    let name = &pool.name;
    let shown: BTreeMap<&str, &str> = section.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(Some(&pool.listen.as_str()), shown.get("listen"), "{case}: listen of {name}");
    assert_eq!(pool.workers.max_children.to_string(), shown["pm.max_children"], "{case}: {name}");
    for (key, value) in scalars(&pool.lines) {
        let value = value.replace("$pool", name.as_str());
        let theirs = shown.get(key).unwrap_or_else(|| panic!("{case}: {name}: {key} is not dumped"));
        assert!(settled(pool, key) || same(key, &value, theirs), "{case}: {name}: {key} is {value:?} to us and {theirs:?} to php-fpm");
    }
    // php-fpm puts each new entry in front of its list; flags are in the list of values.
    for (list, keys) in [
        ("env", &["env"][..]),
        ("php_value", &["php_value", "php_flag"]),
        ("php_admin_value", &["php_admin_value", "php_admin_flag"]),
        ("access.suppress_path", &["access.suppress_path"]),
    ] {
        let ours = pool.lines.iter().rev().filter(|line| line.element.is_some() && keys.contains(&line.key.as_str()));
        let ours: Vec<(String, String)> =
            ours.map(|line| (format!("{list}[{}]", line.element.as_ref().unwrap()), line.value.replace("$pool", name.as_str()))).collect();
        let theirs: Vec<&(String, String)> = section.iter().filter(|(key, _)| key.starts_with(&format!("{list}["))).collect();
        assert_eq!(ours.len(), theirs.len(), "{case}: {name}: {list}: {ours:?} and {theirs:?}");
        for ((key, value), (their_key, shown)) in ours.iter().zip(theirs) {
            let with_prefix =
                shown.starts_with('/') && shown.ends_with(&format!("/{value}")) && key.contains("error_log") | key.contains("_dir");
            assert_eq!(key, their_key, "{case}: {name}");
            assert!(value == shown || with_prefix, "{case}: {name}: {key} is {value:?} to us and {shown:?} to php-fpm");
        }
    }
}
