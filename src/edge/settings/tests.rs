use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;

use super::keys::{GROUP, WARMUP};
use super::*;
use crate::model::settings::{Balance, CpuChoice, Keepalive, Limit, LogFormat, RoutingChoice, ShardCount};

const EXAMPLE: &str = include_str!("../../../etc/polyfpm.example.toml");
const DOCS: &str = include_str!("../../../docs/settings.md");
const PHP: &str = "[php]\nbinary = \"/usr/sbin/php-fpm8.2\"\nconfig = \"/etc/php/8.2/fpm/php-fpm.conf\"\n";

fn load_text(text: &str) -> Result<Loaded, Vec<Problem>> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("php8.2.toml");
    fs::write(&file, text).unwrap();
    load(&file)
}

/// Loads the text after a right `[php]` of three lines.
fn load_after_php(text: &str) -> Result<Loaded, Vec<Problem>> {
    load_text(&format!("{PHP}{text}"))
}

/// Shows each problem in one line: severity when it is no error, line, the marked part of the excerpt, message, remedy.
fn told(problems: &[Problem]) -> String {
    let lines = problems.iter().map(|problem| {
        let line = problem.place.as_ref().unwrap().line;
        let marked = problem.columns.map(|(start, end)| problem.excerpt.as_ref().unwrap().get(start..end).unwrap()).unwrap_or_default();
        let remedy = problem.remedy.as_deref().unwrap_or_default();
        let severity = match problem.severity {
            Severity::Error => "",
            Severity::Warning => "warning ",
            Severity::Note => "note ",
        };
        format!("{severity}{line} `{marked}` {} => {remedy}", problem.message)
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn errors(text: &str) -> String {
    told(&load_after_php(text).unwrap_err())
}

fn notices(text: &str) -> String {
    told(&load_after_php(text).unwrap().problems)
}

#[test]
fn a_file_with_the_required_keys_alone_has_every_default() {
    let Loaded { settings, problems } = load_text(PHP).unwrap();
    assert_eq!(problems, []);
    assert_eq!(settings.instance.as_str(), "php8.2");
    assert_eq!(settings.php.binary, Path::new("/usr/sbin/php-fpm8.2"));
    assert_eq!(settings.groups.len(), 1);
    assert_eq!(settings.groups[0].count, ShardCount::Auto);
    assert_eq!(settings.groups[0].cpus, CpuChoice::Nginx);
    assert_eq!(settings.groups[0].min_workers, 8);
    assert_eq!(settings.routing, RoutingChoice::Auto);
    assert_eq!(settings.runtime_directory, Path::new("/run/polyfpm/php8.2"));
    assert_eq!(settings.listen.directory, Path::new("/run/polyfpm/php8.2/sockets"));
    assert_eq!(settings.listen.backlog_connections, None);
    assert_eq!((settings.limits.nofile, settings.limits.core, settings.limits.nproc), (Some(65_536), Some(Limit::At(0)), None));
    assert_eq!(settings.restart.drain_timeout, Duration::from_secs(300));
    assert_eq!(settings.nginx.include, Path::new("/etc/nginx/conf.d/polyfpm-php8.2.conf"));
    assert_eq!((settings.nginx.balance, settings.nginx.keepalive), (Balance::LeastConn, Keepalive::Fixed(0)));
    assert_eq!(settings.control.socket, Path::new("/run/polyfpm/php8.2/control.sock"));
    assert_eq!(settings.metrics_listen, None);
    assert_eq!(settings.log.format, LogFormat::Auto);
}

/// Spells out every default of the list of keys as a settings file.
fn every_default_written() -> String {
    let mut lines = Vec::new();
    let mut table = "";
    for key in KEYS.iter().filter(|key| key.table != GROUP && key.table != WARMUP) {
        if key.table != table {
            table = key.table;
            lines.push(format!("[{table}]"));
        }
        match key.default {
            // The pattern of upstream names means the placeholder itself.
            Default::Is(value) if key.name == "upstream" => lines.push(format!("upstream = {value}")),
            Default::Is(value) => lines.push(format!("{} = {}", key.name, value.replace("{instance}", "php8.2"))),
            Default::Required => lines.extend(PHP.lines().filter(|line| line.starts_with(key.name)).map(str::to_owned)),
            Default::Unset | Default::OfShards(_) => {}
        }
    }
    lines.join("\n")
}

#[test]
fn the_listed_defaults_are_the_defaults() {
    let written = load_text(&every_default_written()).unwrap();
    let Loaded { mut settings, .. } = load_text(PHP).unwrap();
    settings.file = written.settings.file.clone();
    settings.written = written.settings.written.clone();
    assert_eq!(written.settings, settings);
    assert_eq!(told(&written.problems), "");
}

#[test]
fn a_group_and_a_warm_up_take_the_listed_defaults() {
    let text = "[shards]\ncount = 3\ncpus = \"off\"\nmin_workers = 5\n[group.b]\npools = [\"b\"]\n[group.a]\npools = [\"a\"]\nshards = \"auto\"\n\
                [[restart.warmup]]\npool = \"www\"\nscript = \"/x.php\"\n";
    let settings = load_after_php(text).unwrap().settings;
    let names: Vec<&str> = settings.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["default", "b", "a"], "in the order of the file");
    let inherited = &settings.groups[1];
    assert_eq!((inherited.count, &inherited.cpus, inherited.min_workers), (ShardCount::Fixed(3), &CpuChoice::Off, 5));
    assert_eq!(settings.groups[2].count, ShardCount::Auto);
    let written = KEYS.iter().filter(|key| key.table == WARMUP).filter_map(|key| match key.default {
        Default::Is(value) => Some(format!("{} = {value}\n", key.name)),
        Default::Required | Default::Unset | Default::OfShards(_) => None,
    });
    let same = load_after_php(&format!("{text}{}", written.collect::<String>())).unwrap().settings;
    assert_eq!(same.restart.warmup, settings.restart.warmup);
    assert_eq!(same.restart.warmup.len(), 1);
}

/// Turns the example's commented keys into written ones: those with no space after the `#`.
fn example_uncommented() -> String {
    let lines =
        EXAMPLE.lines().map(|line| line.strip_prefix('#').filter(|rest| !rest.is_empty() && !rest.starts_with(' ')).unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_example_loads_and_shows_every_key() {
    assert_eq!(load_text(EXAMPLE).unwrap().problems, []);
    let text = example_uncommented();
    let loaded = load_text(&text).unwrap();
    assert!(loaded.problems.iter().all(|problem| problem.severity == Severity::Note), "{}", told(&loaded.problems));
    let root = DeTable::parse(&text).unwrap();
    for key in KEYS {
        let (table, rest) = key.table.split_once('.').unwrap_or((key.table, ""));
        let mut entry = root.get_ref().get(table).unwrap().get_ref();
        if !rest.is_empty() {
            entry = entry.get(if key.table == GROUP { "store" } else { rest }).unwrap().get_ref();
        }
        let entry = entry.as_array().map_or(entry, |array| array[0].get_ref());
        assert!(entry.get(key.name).is_some(), "{}.{} is not in the example", key.table, key.name);
    }
}

#[test]
fn the_page_tells_every_key_with_its_default() {
    let rows: Vec<(String, String)> = DOCS
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let cells: Vec<&str> = line.split(" | ").collect();
            assert_eq!(cells.len(), 3, "{line}");
            (cells[0].trim_start_matches("| ").trim_end_matches(" †").trim_matches('`').to_owned(), cells[1].to_owned())
        })
        .collect();
    let listed: Vec<(String, String)> = KEYS
        .iter()
        .map(|key| {
            let default = match key.default {
                Default::Required => "required".to_owned(),
                Default::Unset => "unset".to_owned(),
                Default::Is(value) if key.name == "upstream" => format!("`{value}`"),
                Default::Is(value) => format!("`{}`", value.replace("{instance}", "INSTANCE")),
                Default::OfShards(name) => format!("as `shards.{name}`"),
            };
            (format!("{}.{}", key.table, key.name), default)
        })
        .collect();
    assert_eq!(rows, listed);
}

#[test]
fn every_fault_is_told_at_once_with_its_place_and_remedy() {
    let text = "[php]\nbinray = \"/x\"\nconfig = \"etc/php-fpm.conf\"\nmin_workers = 3\n\n[shards]\ncount = 0\ncpus = [\"0-3\", \"4-x\", \"3\"]\n\
                routing = \"wholly\"\n[health]\ninterval = 2\ntimeout = \"1\"\nrestart_hung = \"yes\"\n[ngnix]\nenabled = true\n";
    insta::assert_snapshot!(told(&load_text(text).unwrap_err()), @r#"
    1 `[php]` php.binary is not written => add binary = "/usr/sbin/php-fpm8.2" under [php]
    2 `binray` unknown key 'binray' in [php] => write 'binary'
    3 `"etc/php-fpm.conf"` php.config is 'etc/php-fpm.conf', not an absolute path => write the path from the root, beginning with "/"
    4 `min_workers` unknown key 'min_workers' in [php] => move it to [shards]
    7 `0` shards.count is 0, out of range => write "auto" or a whole number from 1 to 1024, without quotes
    8 `"4-x"` '4-x' in shards.cpus is no CPU or range of CPUs => write CPUs and ranges of CPUs, such as "0-3,8"
    warning 8 `"3"` CPU 3 is in two sets of shards.cpus => give each CPU to one shard; two that share one slow each other down
    9 `"wholly"` shards.routing is 'wholly', which it does not know => write "whole"
    11 `2` health.interval is a whole number, not a duration => write "2s" for seconds, with the quotes
    12 `"1"` health.timeout: '1' has no unit => write the unit: "1s" for seconds, "1ms" for milliseconds, "1m" for minutes
    13 `"yes"` health.restart_hung is a text, not a truth value => write true or false, without quotes
    14 `ngnix` unknown table [ngnix] => write [nginx]
    "#);
}

#[test]
fn wrong_syntax_is_told_with_the_rest() {
    insta::assert_snapshot!(errors(r#"[shards]
count = 4x
count = 3
foo = 1
[listen]
backlog == 3
"#), @r#"
    5 `4x` not TOML: string values must be quoted, expected literal string => put the value between double quotes
    6 `count` not TOML: duplicate key => keep one of the two
    7 `foo` unknown key 'foo' in [shards] => remove it; [shards] knows count, cpus, min_workers, routing
    9 `=` not TOML: extra `=`, expected nothing => mend the line; values are "text", 12, true, ["a", "b"] or { key = "value" }
    "#);
    insta::assert_snapshot!(told(&load_text("[php\nbinary = \"/x\"\n").unwrap_err()), @r#"1 `` not TOML: unclosed table, expected `]` => mend the line; values are "text", 12, true, ["a", "b"] or { key = "value" }"#);
}

#[test]
fn groups_are_checked() {
    insta::assert_snapshot!(errors(r#"[group.default]
pools = ["a"]
[group."a b"]
pools = []
[group.x]
shards = 2000
[group.y]
pools = ["q"]
[group.Y]
pools = ["q", 3]
[group]
z = 3
"#), @r#"
    4 `default` the group 'default' is [shards] => move its keys to [shards]
    6 `"a b"` 'a b' cannot name a group => use letters, digits, '_', '.' and '-', a letter, digit or '_' first, at most 64
    7 `[]` group.a b.pools names no pool => name at least one pool or pattern, or remove the group
    8 `[group.x]` group.x.pools is not written => add pools = ["NAME"] under [group.x]
    9 `2000` group.x.shards is 2000, out of range => write "auto" or a whole number from 1 to 1024, without quotes
    12 `Y` two groups are named 'Y', in upper or lower case => rename one of the two
    13 `"q"` 'q' is already in [group.y] => leave it in one of the two groups
    13 `3` group.Y.pools is a whole number, not a text => put the value between double quotes
    15 `3` group.z is a whole number, not a table => write [group.z] with keys below it
    "#);
}

#[test]
fn php_is_checked() {
    insta::assert_snapshot!(told(&load_text(r#"[php]
ini = "php.ini"
define = { opcache.enable = "1", "a b" = 1, x = true }
environment = { "1X" = "s3cret", NOTIFY_SOCKET = "s3cret", A = 12345 }
inherit_environment = ["DB-*", 3]
"#).unwrap_err()), @r#"
    1 `[php]` php.binary is not written => add binary = "/usr/sbin/php-fpm8.2" under [php]
    1 `[php]` php.config is not written => add config = "/etc/php/8.2/fpm/php-fpm.conf" under [php]
    2 `"php.ini"` php.ini is 'php.ini', not an absolute path => write the path from the root, beginning with "/"
    3 `opcache` php.define.opcache is a table, not a text => put the whole name and the value between double quotes, as in "opcache.enable" = "1"
    3 `1` 'a b' is no name of an INI setting => write a name such as "opcache.enable"
    3 `true` php.define.x is a truth value, not a text => put the whole name and the value between double quotes, as in "opcache.enable" = "1"
    4 `***` '1X' is no name of an environment variable => use letters, digits and '_', no digit first
    4 `***` NOTIFY_SOCKET is set by polyfpm itself => remove NOTIFY_SOCKET
    4 `***` php.environment.A is a whole number, not a text => put the value between double quotes
    5 `"DB-*"` 'DB-*' is no name or pattern of environment variables => write a name, or a pattern with '*' such as "DB_*"
    5 `3` php.inherit_environment is a whole number, not a text => put the value between double quotes
    "#);
}

#[test]
fn limits_and_times_are_checked() {
    insta::assert_snapshot!(errors(r#"[limits]
nofile = 3
core = "0MB"
nproc = "many"
memlock = true
nice = -21
oom_score_adjust = 1001
memory_max = "1M"
cpu_weight = 0
[restart]
ready_timeout = "0s"
drain_timeout = "8d"
backoff = "5m"
give_up_after = 1.5
warmup = { pool = "www" }
"#), @r#"
    5 `3` limits.nofile is 3, out of range => write a whole number from 64 to 2147483584, without quotes
    6 `"0MB"` limits.core: '0MB' does not end in K, M, G or T alone => write "0M"; K, M, G and T are powers of 1024
    7 `"many"` limits.nproc is a text, not a whole number => write a whole number from 1 to 4194304, without quotes
    8 `true` limits.memlock is a truth value, not a size => write "64M" or "2G", with the quotes
    9 `-21` limits.nice is -21, out of range => write a whole number from -20 to 19, without quotes
    10 `1001` limits.oom_score_adjust is 1001, out of range => write a whole number from -1000 to 1000, without quotes
    11 `"1M"` limits.memory_max is 1048576 bytes, too little for any master => write at least "16M"
    12 `0` limits.cpu_weight is 0, out of range => write a whole number from 1 to 10000, without quotes
    14 `"0s"` restart.ready_timeout is '0s', out of range => write a duration from 10ms to 7d
    15 `"8d"` restart.drain_timeout is '8d', out of range => write a duration from 10ms to 7d
    16 `"5m"` restart.backoff is '5m', out of range => write a duration from 10ms to 1m
    17 `1.5` restart.give_up_after is a fraction, not a whole number => write a whole number from 1 to 1000, without quotes
    18 `{ pool = "www" }` restart.warmup is a table, not a list => write [[restart.warmup]] with keys below it, once for each
    "#);
    insta::assert_snapshot!(errors(r#"[[restart.warmup]]
pool = ""
uri = "health"
expect = 99
timeout = "5M"
"#), @r#"
    4 `[[restart.warmup]]` restart.warmup.script is not written => add script = "/var/www/html/index.php" under [[restart.warmup]]
    5 `""` restart.warmup.pool is empty or has a control character in it => write the name as the pool files have it
    6 `"health"` restart.warmup.uri is 'health', no path of a URI => write a path with its query, such as "/health?warm=1"
    7 `99` restart.warmup.expect is 99, out of range => write a whole number from 100 to 599, without quotes
    8 `"5M"` restart.warmup.timeout: '5M' has the unit 'M', which is not one of ns, us, ms, s, m, h, d => write a number with a unit, such as "500ms", "10s", "5m" or "1h"
    "#);
}

#[test]
fn nginx_control_metrics_and_log_are_checked() {
    insta::assert_snapshot!(errors(r#"[nginx]
upstream = "php"
balance = "least-conn"
keepalive = "some"
[control]
group = "a b"
[metrics]
listen = "localhost:9253"
[log]
level = "verbose"
format = "syslog"
"#), @r#"
    5 `"php"` nginx.upstream is 'php', the same for every pool => put {pool} in it, as in "polyfpm_{instance}_{pool}"
    6 `"least-conn"` nginx.balance is 'least-conn', which it does not know => write "least_conn"
    7 `"some"` nginx.keepalive is 'some' => write "auto" or a whole number from 0 to 10000, without quotes
    9 `"a b"` control.group is 'a b', no name of a group of users => write a name from /etc/group, such as "adm"
    11 `"localhost:9253"` metrics.listen is 'localhost:9253', no numeric address with a port => write "127.0.0.1:9253" or "[::1]:9253"
    13 `"verbose"` log.level is 'verbose', which it does not know => write one of "error", "warn", "info", "debug", "trace"
    14 `"syslog"` log.format is 'syslog', which it does not know => write one of "auto", "text", "json", "journal"
    "#);
    insta::assert_snapshot!(errors("[nginx]\nupstream = \"{pool}_{host}\"\n"), @r#"5 `"{pool}_{host}"` nginx.upstream is '{pool}_{host}', which has more than names and placeholders in it => use letters, digits, '_', '.', '-', {instance} and {pool}"#);
    insta::assert_snapshot!(errors(&format!("[run]\ndirectory = \"/{}\"\n", "x".repeat(100))), @r#"5 `"/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"` the control socket's path has 114 bytes; a unix socket's holds 107 => choose a shorter run.directory"#);
}

#[test]
fn what_can_be_used_and_is_doubtful_is_told() {
    insta::assert_snapshot!(notices(r#"[shards]
count = 2
cpus = ["0-1", "1-2", "4"]
[nginx]
upstream = "fpm_{pool}"
"#), @r#"
    warning 6 `["0-1", "1-2", "4"]` shards.cpus has 3 sets for 2 shards => remove the sets that no shard uses, or raise the number of shards
    warning 6 `"1-2"` CPU 1 is in two sets of shards.cpus => give each CPU to one shard; two that share one slow each other down
    warning 8 `"fpm_{pool}"` nginx.upstream is 'fpm_{pool}', without {instance}: a pool of the same name in a second instance breaks NGINX => put {instance} in it
    "#);
}

#[test]
fn a_key_without_effect_says_so() {
    insta::assert_snapshot!(notices(r#"[shards]
cpus = "nginx"
[nginx]
balance = "affine"
[metrics]
listen = "[::1]:9253"
"#), @r#"
    note 7 `"affine"` accepted, has no effect yet: nginx.balance => 
    note 9 `"[::1]:9253"` accepted, has no effect yet: metrics.listen =>
    "#);
}

#[test]
fn no_secret_is_shown() {
    let values = [
        "environment = { A = \"s3cret\", \"1B\" = \"s3cret\", C = [\"s3cret\"] }",
        "environment = { A = \"s3cret\"",
        "environment = { A = \"s3cret }",
        "environment = { A = \"x\", NOTIFY_SOCKET = \"\"\"a\ns3cret\n\"\"\" }",
        "environment = \"s3cret\"",
        "environment.A = s3cret",
        "environment = { A = s3cret }\nbinary = 3",
        "[php.environment]\nA = 's3cret\nB = 3",
        "[php.environment]\nA-B = 's3cret'\n[php]\n",
        "environment = { A = \"s3cret\" } x",
    ];
    for value in values {
        let problems = load_text(&format!("{PHP}{value}\n")).unwrap_err();
        assert!(!format!("{problems:?}").contains("s3cret"), "{value}: {problems:?}");
    }
    let loaded = load_text(&format!("{PHP}environment = {{ A = \"s3cret\" }}\n")).unwrap();
    assert_eq!(loaded.settings.php.environment, [("A".to_owned(), "s3cret".to_owned())]);
    assert!(!format!("{loaded:?}").contains("s3cret"));
    assert!(format!("{loaded:?}").contains("environment: [\"A\"]"));
}

#[test]
fn a_masked_line_keeps_its_columns() {
    let problems = load_text(&format!("{PHP}environment = {{ A = \"s3cret\", 2 = \"s3cret\" }} # é\n")).unwrap_err();
    let problem = &problems[0];
    assert_eq!(problem.excerpt.as_deref(), Some("environment = { A = ***, 2 = *** } # é"));
    assert_eq!(problem.columns, Some((29, 32)));
}

#[test]
fn a_long_line_is_cut_around_the_fault() {
    let list = vec!["\"0-1\""; 200].join(", ");
    let problems = load_after_php(&format!("[shards]\ncpus = [{list}, \"x\", {list}]\n")).unwrap_err();
    let problem = problems.iter().find(|problem| problem.severity == Severity::Error).unwrap();
    let (start, end) = problem.columns.unwrap();
    let excerpt = problem.excerpt.as_deref().unwrap();
    assert!(excerpt.len() <= 240);
    assert_eq!(excerpt.get(start..end), Some("\"x\""));
}

#[test]
fn a_file_that_cannot_be_read_is_a_problem() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("latin.toml"), b"[php]\n# \xe9\n").unwrap();
    fs::write(path("big.toml"), vec![b'#'; 2 << 20]).unwrap();
    fs::write(path("a b.toml"), PHP).unwrap();
    fs::write(path("...toml"), PHP).unwrap();
    fs::create_dir(path("directory.toml")).unwrap();
    let message = |name: &str| load(&path(name)).unwrap_err()[0].to_string().replace(&format!("{}/", directory.path().display()), "");
    insta::assert_snapshot!(message("none.toml"), @r#"none.toml: the settings file cannot be read: No such file or directory (os error 2)"#);
    insta::assert_snapshot!(message("directory.toml"), @r#"directory.toml: the settings file is no regular file"#);
    insta::assert_snapshot!(message("latin.toml"), @r#"latin.toml:2: the line has bytes that are not UTF-8"#);
    insta::assert_snapshot!(message("big.toml"), @r#"big.toml: the settings file is bigger than 1M"#);
    insta::assert_snapshot!(message("a b.toml"), @r#"a b.toml: the file's name 'a b.toml' gives no name of an instance"#);
    insta::assert_snapshot!(message("...toml"), @r#"...toml: the file's name '...toml' gives no name of an instance"#);
}

#[test]
fn the_file_is_found() {
    let etc = tempfile::tempdir().unwrap();
    let error = |instance: Option<&str>| {
        let error = locate(None, instance, etc.path()).unwrap_err();
        format!("{error}; {}", error.hint()).replace(etc.path().to_str().unwrap(), "ETC")
    };
    assert_eq!(locate(Some(Path::new("x.toml")), None, etc.path()).unwrap(), PathBuf::from("x.toml"));
    insta::assert_snapshot!(error(None), @r#"there is no settings file in ETC; name one with -c FILE, or write ETC/NAME.toml"#);
    insta::assert_snapshot!(error(Some("php8.2")), @r#"there is no instance 'php8.2': ETC/php8.2.toml does not exist; name a settings file with -c FILE"#);
    insta::assert_snapshot!(error(Some("../x")), @r#"'../x' cannot name an instance; use letters, digits, '_', '.' and '-', a letter, digit or '_' first, at most 64"#);
    fs::write(etc.path().join("php8.2.toml"), "").unwrap();
    fs::write(etc.path().join(".php8.2.toml"), "").unwrap();
    fs::write(etc.path().join("php8.2.toml~"), "").unwrap();
    assert_eq!(locate(None, None, etc.path()).unwrap(), etc.path().join("php8.2.toml"));
    assert_eq!(locate(None, Some("php8.2"), etc.path()).unwrap(), etc.path().join("php8.2.toml"));
    fs::write(etc.path().join("ea-php81.toml"), "").unwrap();
    insta::assert_snapshot!(error(None), @r#"there are several instances: ea-php81, php8.2; choose one with --instance NAME"#);
    insta::assert_snapshot!(error(Some("php7")), @r#"there is no instance 'php7': ETC/php7.toml does not exist; choose one with --instance: ea-php81, php8.2"#);
    assert!(matches!(locate(None, None, &etc.path().join("none")), Err(LocateError::Nothing { .. })));
}

proptest! {
    /// Whatever is typed, the reader ends, and each problem points into the file.
    #[test]
    fn any_text_is_answered(at in 0..4000usize, cut in 0..40usize, typed in "[\\[\\]{}=\"'#,.a-zé0-9 \n\t\u{0}]{0,12}") {
        let mut text: Vec<char> = example_uncommented().chars().collect();
        let at = at.min(text.len());
        let end = (at + cut).min(text.len());
        text.splice(at..end, typed.chars());
        let text: String = text.into_iter().collect();
        let problems = match understand(Path::new("/etc/polyfpm/x.toml"), &text, |_, wanted| wanted) {
            Ok(loaded) => loaded.problems,
            Err(problems) => {
                prop_assert!(problems.iter().any(|problem| problem.severity == Severity::Error));
                problems
            }
        };
        for problem in problems {
            let line = problem.place.as_ref().map_or(0, |place| place.line);
            prop_assert!(line as usize <= text.lines().count() + 1);
            if let (Some(excerpt), Some((start, end))) = (&problem.excerpt, problem.columns) {
                prop_assert!(excerpt.get(start..end).is_some(), "{problem:?}");
            }
        }
    }
}

#[test]
fn the_control_socket_is_known_whatever_else_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("php8.2.toml");
    fs::write(&file, "[run]\ndirectory = \"/srv/run\"\nbogus = 1\n[shards]\ncount = = 2\n").unwrap();
    assert!(load(&file).is_err());
    assert_eq!(control_socket(&file), Some(PathBuf::from("/srv/run/control.sock")));
}
