use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::model::endpoint::Endpoint;
use crate::model::ids::{GroupName, PoolName, ShardId};
use crate::model::listen::{Access, Handover, ListenerPlan};
use crate::model::plan::{Placement, ShardPlan};
use crate::model::pool::{Pool, ProcessManager, WorkerNumbers};

fn context() -> ReadContext {
    let constants = [("E_ALL", "32767"), ("E_NOTICE", "8")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let build = FpmBuild { version: Version(8, 2, 36), systemd: true, status_listen: true, constants: constants.into_iter().collect() };
    let variables = BTreeMap::from([("HOME".to_owned(), "/root".to_owned())]);
    ReadContext { build, prefix: PathBuf::from("/usr"), variables, runs_as: RunsAs::Root }
}

fn read_with(context: &ReadContext, files: &[(&str, &str)]) -> Reading {
    read(Path::new("/main"), context, &mut |request| {
        let wanted = match request {
            IncludeRequest::Main(path) | IncludeRequest::Pattern(path) => path,
        };
        let file = |path: &str, text: &str| SourceFile { path: path.into(), content: Ok(text.as_bytes().to_vec()) };
        let text = |path: &Path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(name, text)| file(name, text));
        if let Some(found) = text(&wanted) {
            return Ok(vec![found]);
        }
        if !wanted.to_string_lossy().ends_with("/*.conf") {
            return Err(IncludeError { path: wanted, reason: "No such file or directory".into() });
        }
        let inside = files.iter().filter(|(name, _)| Path::new(name).parent() == wanted.parent() && *name != "/main");
        Ok(inside.map(|(name, text)| file(name, text)).collect())
    })
}

fn read_one(text: &str) -> Reading {
    read_with(&context(), &[("/main", text)])
}

const GOOD: &str = "user = www-data\nlisten = /run/a.sock\npm = static\npm.max_children = 4\n";

fn good(name: &str) -> String {
    format!("[{name}]\nuser = www-data\nlisten = /run/{name}.sock\npm = static\npm.max_children = 4\n")
}

/// Gives what `php_value[x] = TEXT` means, or the message of its fault.
fn value(text: &str) -> Result<String, String> {
    let reading = read_one(&format!("[www]\n{GOOD}php_value[x] = {text}\n"));
    match reading.files.pools.first() {
        Some(pool) => Ok(pool.lines.last().unwrap().value.clone()),
        None => Err(reading.quarantined.first().unwrap().problem.message.clone()),
    }
}

#[test]
fn values_mean_what_php_fpm_reads() {
    for (text, meaning) in [
        ("plain", "plain"),
        ("a b  c", "a b  c"),
        ("a ; comment", "a"),
        ("E_ALL & ~E_NOTICE", "32759"),
        ("2|4&1^8", "8"),
        ("~1|2", "-2"),
        ("!0 | 6", "7"),
        ("(1|2)", "3"),
        ("99999999999|0", "1215752191"),
        ("a&b", "0"),
        ("YES", "1"),
        ("off", ""),
        ("null", ""),
        ("", ""),
        ("\"E_ALL\"", "E_ALL"),
        ("'E_ALL'", "E_ALL"),
        ("\"q\" tail", "qtail"),
        ("'x' y 'z'", "x y z"),
        ("\"a${HOME}b\"c", "a/rootbc"),
        ("${HOME:-x}", ""),
        (r#""a\\b\"c\'d\$e""#, r#"a\b"c\'d$e"#),
        (r#""C:\x\""#, r"C:\x\"),
        (r"a\\b", r"a\\b"),
        ("a$;b", "a$;b"),
        ("a$\" x", "a$\" x"),
        ("$HOME", "$HOME"),
        ("a]b", "a]b"),
    ] {
        assert_eq!(value(text).as_deref(), Ok(meaning), "{text}");
    }
}

#[test]
fn unreadable_values_name_what_is_wrong() {
    for text in ["a!b", "a)b", "a~b", "a=b", "\"open", "'open", "''", "yes sir", "(1", "|2", "\"${HOME\"", "1 |", "~"] {
        assert!(value(text).is_err(), "{text}");
    }
    assert_eq!(value("a!b").unwrap_err(), "syntax error, unexpected '!'");
}

#[test]
fn a_fallback_needs_php_8_3() {
    let mut newer = context();
    newer.build.version = Version(8, 3, 0);
    let text = format!("[www]\n{GOOD}php_value[x] = \"${{NONE:-E_ALL b}}c\"\n");
    let reading = read_with(&newer, &[("/main", &text)]);
    assert_eq!(reading.files.pools[0].lines.last().unwrap().value, "E_ALL bc");
    assert!(reading.variables.contains("NONE"));
}

#[test]
fn a_section_resumes_and_the_current_one_runs_through_includes() {
    let inner = format!("pm.max_requests = 7\n{}", good("b"));
    let main = format!("[a]\n{GOOD}include = /d/*.conf\nchdir = /\n[A]\nslowlog = /x\n[global]\npid = /p\n");
    let reading = read_with(&context(), &[("/main", &main), ("/d/b.conf", &inner)]);
    assert_eq!(reading.problems, []);
    let keys = |at: usize| reading.files.pools[at].lines.iter().map(|line| line.key.as_str()).collect::<Vec<_>>();
    assert_eq!(keys(0), ["user", "listen", "pm", "pm.max_children", "pm.max_requests", "slowlog"]);
    assert_eq!(keys(1), ["user", "listen", "pm", "pm.max_children", "chdir"]);
    assert_eq!(reading.files.files, [PathBuf::from("/main"), "/d/b.conf".into()]);
    assert_eq!(reading.files.patterns, [PathBuf::from("/d/*.conf")]);
    assert_eq!(reading.files.global.pid.as_deref(), Some("/p"));
}

#[test]
fn a_bad_pool_keeps_only_itself_out() {
    let main = "include = /d/*.conf\n";
    let bad = format!("{}pm.max_childern = 3\nnonsense\n", good("bad"));
    let files = [("/main", main), ("/d/a.conf", &*good("a")), ("/d/b.conf", &*bad), ("/d/c.conf", &*good("c"))];
    let reading = read_with(&context(), &files);
    assert!(reading.usable());
    assert_eq!(reading.files.pools.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>(), ["a", "c"]);
    let [bad] = &reading.quarantined[..] else { panic!("{:?}", reading.quarantined) };
    assert_eq!(bad.problem.to_string(), "/d/b.conf:6: unknown entry 'pm.max_childern'");
    assert_eq!(bad.problem.remedy.as_deref(), Some("write 'pm.max_children' if that is what is meant"));
    assert_eq!(reading.further.len(), 1);
}

#[test]
fn lines_below_a_broken_header_belong_to_nobody() {
    let files = [
        ("/main", "include = /d/*.conf\n"),
        ("/d/a.conf", &*good("a")),
        ("/d/b.conf", " [b]\nuser = root\nlisten = /stolen\n"),
        ("/d/c.conf", &*good("c")),
    ];
    let reading = read_with(&context(), &files);
    assert_eq!(reading.files.pools.iter().map(|pool| pool.listen.as_str()).collect::<Vec<_>>(), ["/run/a.sock", "/run/c.sock"]);
    assert_eq!(reading.quarantined[0].pool.as_str(), "b");
    assert_eq!(reading.quarantined[0].problem.remedy.as_deref(), Some("remove the space before '['"));
}

#[test]
fn pool_in_a_section_name_is_refused() {
    let reading = read_one(&format!("[x$pool]\n{GOOD}{}", good("ok")));
    assert_eq!(reading.quarantined[0].problem.place.as_ref().unwrap().line, 1);
    assert_eq!(reading.files.pools.len(), 1);
}

#[test]
fn faults_of_the_whole_are_errors_and_all_are_told() {
    let main = format!("nonsense = 1\nuser = x\ninclude = /missing/x.conf\nlog_limit = 5\n{}", good("a"));
    let reading = read_one(&main);
    assert!(!reading.usable());
    let lines: Vec<u32> = reading.problems.iter().map(|problem| problem.place.as_ref().unwrap().line).collect();
    assert_eq!(lines, [1, 2, 3, 4]);
    assert_eq!(reading.problems[1].remedy.as_deref(), Some("move 'user' below a pool's [section] line"));
    assert!(!read_one("").usable());
}

#[test]
fn a_file_that_includes_itself_ends() {
    let files = [("/main", "include = /d/*.conf\n"), ("/d/a.conf", "include = /d/*.conf\n"), ("/d/b.conf", "include = /d/*.conf\n")];
    let reading = read_with(&context(), &files);
    assert_eq!(reading.problems.iter().filter(|problem| problem.message.contains("more than 5 files")).count(), 1);
}

#[test]
fn numbers_follow_php_fpms_rules() {
    for (lines, fault) in [
        ("pm = dynamic\npm.max_children = 4\n", Some("pm.min_spare_servers(0) must be a positive value")),
        ("pm = dynamic\npm.max_children = 4\npm.min_spare_servers = 1\npm.max_spare_servers = 3\n", None),
        (
            "pm = dynamic\npm.max_children = 4\npm.min_spare_servers = 1\npm.max_spare_servers = 5\n",
            Some("pm.min_spare_servers(1) and pm.max_spare_servers(5) cannot be greater than pm.max_children(4)"),
        ),
        ("pm = static\npm.max_children = 0\n", Some("pm.max_children must be a positive value")),
        ("pm = ondemand\npm.max_children = 1\npm.process_idle_timeout = 0\n", Some("pm.process_idle_timeout(0s) must be greater than 0s")),
        ("pm.max_children = 1\n", Some("the process manager is missing (static, dynamic or ondemand)")),
        ("pm = static\npm.max_children = 1\npm.status_path = x\n", Some("the status path 'x' must start with a '/'")),
        (
            "pm = static\npm.max_children = 5k\n",
            Some("unable to parse value '5k' for entry 'pm.max_children': is not a valid number (greater or equal than zero)"),
        ),
    ] {
        let reading = read_one(&format!("[www]\nuser = a\nlisten = 9000\n{lines}"));
        assert_eq!(reading.quarantined.first().map(|bad| bad.problem.message.as_str()), fault, "{lines}");
    }
}

#[test]
fn two_pools_may_not_have_one_address() {
    let reading = read_one(&format!("[a]\n{GOOD}[b]\n{GOOD}"));
    assert_eq!(reading.files.pools.len(), 1);
    assert!(reading.quarantined[0].problem.message.contains("already used in another pool 'a'"));
}

#[test]
fn what_polyfpm_decides_by_is_told() {
    let text = "[www]\nprefix = srv\nuser = \"u-$pool\"\nlisten = $pool.sock\nlisten.mode = 0600\nlisten.owner = me\n\
                listen.acl_users = a,b\nlisten.backlog = 99\npm = ONDEMAND\npm.max_children = 2\npm.max_children = 9\n\
                pm.start_servers = 0\nping.path = /p\nrequest_terminate_timeout = 2m\n";
    let pool = read_one(text).files.pools.pop().unwrap();
    assert_eq!(pool.listen, "/usr/srv/www.sock");
    assert_eq!(pool.listen_origin.unwrap().line, 4);
    assert_eq!(pool.user.as_deref(), Some("u-www"));
    assert_eq!((pool.listen_names.mode, pool.listen_names.owner.as_deref()), (Some(0o600), Some("me")));
    assert_eq!(pool.listen_names.acl_users, ["a", "b"]);
    assert_eq!((pool.listen_backlog, pool.pm), (Some(99), ProcessManager::Ondemand));
    assert_eq!(pool.workers, WorkerNumbers { max_children: 9, ..Default::default() });
    assert_eq!(pool.ping_path.as_deref(), Some("/p"));
    assert_eq!(pool.request_terminate_timeout, Some(Duration::from_secs(120)));
}

fn shard_of(pools: &[Pool], workers: WorkerNumbers) -> ShardPlan {
    let placement = |pool: &Pool| Placement {
        pool: pool.name.clone(),
        workers,
        listener: ListenerPlan {
            pool: pool.name.clone(),
            endpoint: Endpoint::Unix("/run/x.sock".into()),
            handover: Handover::Rename,
            access: Access::default(),
            backlog_connections: 511,
            alias: format!("/polyfpm/{}", pool.name),
        },
    };
    let id = ShardId::new(&GroupName::new("default"), 1);
    ShardPlan { id, cpus: None, placements: pools.iter().map(placement).collect(), process_max: Some(12) }
}

#[test]
fn a_shard_gets_raw_lines_and_its_share() {
    let text = "pid = /p\nerror_log = \"/var/log/x\" ; here\ndaemonize = yes\nprocess.max = 40\nprocess_control_timeout = 3\n\
                [WWW] ; mine\n  user=  'a'\nLISTEN = /run/x\npm = dynamic\nPM.max_children = 9\npm.min_spare_servers = 2\n\
                pm.max_spare_servers = 4\nenv[B] = 2\nenv[A] = $HOME\nenv[B] = 3\npm.status_listen = /own\n";
    let reading = read_one(text);
    let workers = WorkerNumbers { max_children: 3, start_servers: None, min_spare_servers: Some(1), max_spare_servers: Some(2) };
    let shard = shard_of(&reading.files.pools, workers);
    let listener = StatusListener { alias: "/s".into(), status_path: "/st-1".into(), ping_path: "/pi-1".into() };
    let status = BTreeMap::from([(PoolName::new("WWW"), listener)]);
    let choices = ShardChoices { drain_timeout: Duration::from_millis(1500), status: &status, heartbeat: None };
    let rendered = render_shard(&reading.files, &shard, choices).unwrap();
    let expected = "; Generated by polyfpm for shard default/1. Changes are lost.\n[global]\nerror_log = \"/var/log/x\" ; here\n\
                    process_control_timeout = 2\nprocess.max = 12\n[WWW] ; mine\n  user=  'a'\npm = dynamic\nenv[B] = 2\n\
                    env[A] = $HOME\nenv[B] = 3\nlisten = \"/polyfpm/WWW\"\npm.status_listen = \"/s\"\npm.status_path = \"/st-1\"\n\
                    ping.path = \"/pi-1\"\npm.max_children = 3\npm.min_spare_servers = 1\npm.max_spare_servers = 2\n";
    assert_eq!(String::from_utf8(rendered.text.clone()).unwrap(), expected);
    assert_eq!(rendered.origin(7).unwrap().line, 7);
    assert_eq!(rendered.origin(12).unwrap().line, 15);
    assert_eq!(rendered.origins.len(), expected.lines().count());
}

#[test]
fn heartbeats_come_as_often_as_the_operator_says_or_else_as_asked() {
    let status = BTreeMap::new();
    let choices = ShardChoices { drain_timeout: Duration::ZERO, status: &status, heartbeat: Some(Duration::from_millis(2500)) };
    let lines = |global: &str| -> Vec<String> {
        let reading = read_one(&format!("{global}{}", good("a")));
        let shard = shard_of(&reading.files.pools, WorkerNumbers { max_children: 1, ..WorkerNumbers::default() });
        let text = String::from_utf8(render_shard(&reading.files, &shard, choices).unwrap().text).unwrap();
        text.lines().filter(|line| line.to_lowercase().starts_with("systemd_interval")).map(str::to_owned).collect()
    };
    assert_eq!(lines(""), ["systemd_interval = 3"]);
    assert_eq!(lines("Systemd_Interval = 7\n"), ["Systemd_Interval = 7"]);
}

#[test]
fn a_plan_must_fit_the_files() {
    let reading = read_one(&good("a"));
    let mut shard = shard_of(&reading.files.pools, WorkerNumbers::default());
    let status = BTreeMap::new();
    let choices = ShardChoices { drain_timeout: Duration::ZERO, status: &status, heartbeat: None };
    shard.placements[0].listener.alias = "/x$pool".into();
    assert!(matches!(render_shard(&reading.files, &shard, choices), Err(RenderError::Unwritable { .. })));
    shard.placements[0].pool = PoolName::new("b");
    assert!(matches!(render_shard(&reading.files, &shard, choices), Err(RenderError::UnknownPool { .. })));
}

#[test]
fn several_statements_on_a_line_are_kept_apart() {
    let reading = read_one("[www]user = a\nlisten = 9000\rpm = static\rpm.max_children = 1\r\n");
    let pool = &reading.files.pools[0];
    let texts: Vec<&[u8]> = pool.lines.iter().map(|line| line.text.as_slice()).collect();
    assert_eq!(pool.header, b"[www]");
    assert_eq!(texts, [&b"user = a"[..], b"listen = 9000", b"pm = static", b"pm.max_children = 1"]);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(text in proptest::collection::vec(any::<u8>(), 0..400)) {
        let reading = read(Path::new("/main"), &context(), &mut |request| match request {
            IncludeRequest::Main(path) => Ok(vec![SourceFile { path, content: Ok(text.clone()) }]),
            IncludeRequest::Pattern(_) => Ok(Vec::new()),
        });
        prop_assert!(reading.problems.len() + reading.further.len() + reading.quarantined.len() <= 2 * text.len() + 8);
    }

    #[test]
    fn likely_text_is_read_without_a_panic(text in "(\\[|\\]|www|\"|'|\\$|\\{|\\}|=|;|\n|\r| |\t|user|listen|env|x|:-|\\\\|\\||~|\\(|\\)|yes|1|\u{0}){0,60}") {
        for minor in [2, 3] {
            let mut context = context();
            context.build.version = Version(8, minor, 30);
            drop(read_with(&context, &[("/main", &text)]));
        }
    }

    #[test]
    fn a_quoted_text_is_read_back(text in "[ -~]{0,40}") {
        let quoted = quote(&text);
        prop_assert_eq!(quoted.is_none(), text.contains("$pool"));
        if let Some(quoted) = quoted {
            prop_assert_eq!(value(&quoted), Ok(text));
        }
    }
}
