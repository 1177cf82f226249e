//! The tables that stand for themselves: `[run]`, `[listen]`, `[limits]`, `[health]`, `[restart]`, `[nginx]`, `[control]`,
//! `[metrics]`, `[log]`.

use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::reader::{Reader, Section, Value};
use super::{Attainable, keys};
use crate::model::endpoint::UNIX_PATH_LIMIT_BYTES;
use crate::model::ids::InstanceName;
use crate::model::problem::Problem;
use crate::model::settings::{
    Balance, Control, Health, Keepalive, Limit, Limits, Listen, Log, LogFormat, LogLevel, Nginx, Restart, Warmup,
};
use crate::sys::spawn::{Limit as SpawnLimit, Resource};

/// The longest time any key takes: nothing here is meant to wait longer, and a slip such as `5d` for `5s` is told.
const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// The shortest time of a wait that must not be zero.
const SHORTEST: Duration = Duration::from_millis(10);

/// The kernel's bound of open files, `sysctl_nr_open_max` (Linux `fs/file.c`).
const MAX_NOFILE: u64 = 2_147_483_584;

/// The kernel's bound of processes, `PID_MAX_LIMIT` (Linux `include/linux/threads.h`).
const MAX_NPROC: u64 = 4_194_304;

/// Reads `[run]`.
pub(super) fn run_directory(reader: &Reader<'_>, instance: &InstanceName) -> PathBuf {
    let section = reader.section("run");
    section.refuse_unknown_keys();
    section.path("directory").unwrap_or_else(|| Path::new("/run/polyfpm").join(instance.as_str()))
}

/// Reads `[listen]`.
pub(super) fn listen(reader: &Reader<'_>, run_directory: &Path) -> Listen {
    let section = reader.section("listen");
    section.refuse_unknown_keys();
    let backlog = section.get("backlog").filter(|value| value.as_text() != Some("auto"));
    Listen {
        backlog_connections: backlog.and_then(|value| value.number_or(1..=65_535, "\"auto\" or ")),
        directory: section.path("directory").unwrap_or_else(|| run_directory.join("sockets")),
    }
}

/// The default of `limits.nofile`: what distributions give their own php-fpm units at most.
const DEFAULT_NOFILE: u64 = 65_536;

/// Reads `[limits]`. `attainable` gives how much of a resource a master can be allowed.
pub(super) fn limits(reader: &Reader<'_>, attainable: Attainable) -> Limits {
    let section = reader.section("limits");
    section.refuse_unknown_keys();
    Limits {
        nofile: nofile(reader, &section, attainable),
        core: section.get("core").map_or(Some(Limit::At(0)), |value| limit(&value, |wanted| attainable(Resource::RLIMIT_CORE, wanted))),
        nproc: section.get("nproc").and_then(|value| nproc(&value, attainable)),
        memlock: section.get("memlock").and_then(|value| limit(&value, |wanted| attainable(Resource::RLIMIT_MEMLOCK, wanted))),
        nice: section.number("nice", -20..=19),
        oom_score_adjust: section.number("oom_score_adjust", -1000..=1000),
        memory_max: section.get("memory_max").and_then(|value| memory_max(&value)),
        cpu_weight: section.number("cpu_weight", 1..=10_000),
    }
}

/// An explicit number that cannot be had is an error: whoever wrote it counts on it. The default gives way with a warning.
fn nofile(reader: &Reader<'_>, section: &Section<'_>, attainable: Attainable) -> Option<u64> {
    if let Some(value) = section.get("nofile") {
        let wanted = value.number_or(64..=MAX_NOFILE, "")?;
        let most = attainable(Resource::RLIMIT_NOFILE, wanted);
        if most < wanted {
            let message = format!("limits.nofile is {wanted}, above the hard limit of {most} open files");
            value.fail(message, format!("write at most {most}, or raise the hard limit (LimitNOFILE= of the unit, or the container's)"));
        }
        return Some(wanted);
    }
    let most = attainable(Resource::RLIMIT_NOFILE, DEFAULT_NOFILE);
    if most < DEFAULT_NOFILE {
        let message = format!("masters get {most} open files, the hard limit, instead of the default of {DEFAULT_NOFILE}");
        reader.report_file(Problem::warning(message).remedy(format!("raise the hard limit, or set limits.nofile = {most}")));
    }
    Some(most)
}

/// Reads a size that may be off. One above the hard limit is an error, as otherwise each start would fail at it.
fn limit(value: &Value<'_>, attainable: impl Fn(u64) -> u64) -> Option<Limit> {
    let shown = |bytes: u64| if bytes == SpawnLimit::UNLIMITED { "\"unlimited\"".to_owned() } else { format!("{bytes} bytes") };
    let limit = if value.as_text() == Some("unlimited") { Limit::Unlimited } else { Limit::At(value.size_bytes()?) };
    let wanted = match limit {
        Limit::Unlimited => SpawnLimit::UNLIMITED,
        Limit::At(bytes) => bytes,
    };
    let most = attainable(wanted);
    if most < wanted {
        let message = format!("{} is {}, above the hard limit of {}", value.name(), shown(wanted), shown(most));
        value.fail(message, format!("write at most {most}, in bytes, or raise the hard limit of the unit or the container"));
    }
    Some(limit)
}

fn nproc(value: &Value<'_>, attainable: Attainable) -> Option<u64> {
    let wanted = value.number_or(1..=MAX_NPROC, "")?;
    let most = attainable(Resource::RLIMIT_NPROC, wanted);
    if most < wanted {
        let message = format!("limits.nproc is {wanted}, above the hard limit of {most} processes");
        value.fail(message, format!("write at most {most}, or raise the hard limit (LimitNPROC= of the unit, or the container's)"));
    }
    Some(wanted)
}

fn memory_max(value: &Value<'_>) -> Option<u64> {
    let bytes = value.size_bytes()?;
    // 16 MiB: an idle master with opcache already takes about 10 MB (P42).
    if bytes < 16 << 20 {
        value.fail(format!("{} is {bytes} bytes, too little for any master", value.name()), "write at least \"16M\"");
        return None;
    }
    Some(bytes)
}

/// Reads `[health]`.
pub(super) fn health(reader: &Reader<'_>) -> Health {
    let section = reader.section("health");
    section.refuse_unknown_keys();
    Health {
        interval: section.duration("interval", Duration::from_millis(100)..=LONGEST).unwrap_or(Duration::from_secs(2)),
        timeout: section.duration("timeout", SHORTEST..=LONGEST).unwrap_or(Duration::from_secs(1)),
        hung_after: section.duration("hung_after", Duration::from_secs(1)..=LONGEST).unwrap_or(Duration::from_secs(30)),
        restart_hung: section.boolean("restart_hung").unwrap_or(true),
    }
}

/// Reads `[restart]`.
pub(super) fn restart(reader: &Reader<'_>) -> Restart {
    let section = reader.section("restart");
    section.refuse_unknown_keys();
    let wait = |key: &str, seconds: u64| section.duration(key, SHORTEST..=LONGEST).unwrap_or(Duration::from_secs(seconds));
    Restart {
        ready_timeout: wait("ready_timeout", 30),
        drain_timeout: wait("drain_timeout", 300),
        settle: section.duration("settle", Duration::ZERO..=LONGEST).unwrap_or(Duration::from_secs(1)),
        stable_after: wait("stable_after", 60),
        backoff: section.duration("backoff", SHORTEST..=Duration::from_secs(60)).unwrap_or(Duration::from_secs(1)),
        give_up_after: section.number("give_up_after", 1..=1000).unwrap_or(5),
        warmup: section.array_of_tables("warmup", keys::WARMUP).iter().map(warmup).collect(),
    }
}

fn warmup(section: &Section<'_>) -> Warmup {
    section.refuse_unknown_keys();
    let pool = section.required("pool", "\"www\"").and_then(|value| non_empty(&value));
    let script = section.required("script", "\"/var/www/html/index.php\"").and_then(|value| value.path());
    Warmup {
        pool: pool.unwrap_or_default(),
        script: script.unwrap_or_default(),
        uri: section.get("uri").and_then(|value| uri(&value)).unwrap_or_else(|| "/".to_owned()),
        expect: section.number("expect", 100..=599).unwrap_or(200),
        timeout: section.duration("timeout", SHORTEST..=LONGEST).unwrap_or(Duration::from_secs(10)),
    }
}

fn non_empty(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    if text.is_empty() || text.chars().any(char::is_control) {
        value.fail(format!("{} is empty or has a control character in it", value.name()), "write the name as the pool files have it");
        return None;
    }
    Some(text.to_owned())
}

fn uri(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    if !text.starts_with('/') || text.chars().any(|c| c.is_control() || c == ' ') {
        value.fail(
            format!("{} is '{}', no path of a URI", value.name(), text.escape_debug()),
            "write a path with its query, such as \"/health?warm=1\"",
        );
        return None;
    }
    Some(text.to_owned())
}

/// Reads `[nginx]`.
pub(super) fn nginx(reader: &Reader<'_>, instance: &InstanceName) -> Nginx {
    let section = reader.section("nginx");
    section.refuse_unknown_keys();
    let mut balance = section.choice("balance", &BALANCES);
    if balance == Some(Balance::Affine) {
        balance = section.without_effect("balance", balance);
    }
    let include = || PathBuf::from(format!("/etc/nginx/conf.d/polyfpm-{instance}.conf"));
    Nginx {
        enabled: section.boolean("enabled").unwrap_or(true),
        binary: section.path("binary").unwrap_or_else(|| PathBuf::from("/usr/sbin/nginx")),
        config: section.path("config").unwrap_or_else(|| PathBuf::from("/etc/nginx/nginx.conf")),
        include: section.path("include").unwrap_or_else(include),
        upstream: section.get("upstream").and_then(|value| upstream(&value)).unwrap_or_else(|| "polyfpm_{instance}_{pool}".to_owned()),
        balance: balance.unwrap_or(Balance::LeastConn),
        keepalive: section.get("keepalive").and_then(|value| keepalive(&value)).unwrap_or(Keepalive::Fixed(0)),
        reload: section.boolean("reload").unwrap_or(true),
    }
}

const BALANCES: [(&str, Balance); 4] =
    [("round_robin", Balance::RoundRobin), ("least_conn", Balance::LeastConn), ("random", Balance::Random), ("affine", Balance::Affine)];

fn upstream(value: &Value<'_>) -> Option<String> {
    let pattern = value.text()?;
    let rest = pattern.replace("{instance}", "").replace("{pool}", "");
    let name = value.name();
    if !rest.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)) {
        value.fail(
            format!("{name} is '{}', which has more than names and placeholders in it", pattern.escape_debug()),
            "use letters, digits, '_', '.', '-', {instance} and {pool}",
        );
        return None;
    }
    if !pattern.contains("{pool}") {
        value.fail(format!("{name} is '{pattern}', the same for every pool"), "put {pool} in it, as in \"polyfpm_{instance}_{pool}\"");
        return None;
    }
    if !pattern.contains("{instance}") {
        // S10: NGINX refuses a second upstream of the same name.
        value.warn(
            format!("{name} is '{pattern}', without {{instance}}: a pool of the same name in a second instance breaks NGINX"),
            "put {instance} in it",
        );
    }
    Some(pattern.to_owned())
}

fn keepalive(value: &Value<'_>) -> Option<Keepalive> {
    if value.as_text() == Some("auto") {
        return Some(Keepalive::Auto);
    }
    value.number_or(0..=10_000, "\"auto\" or ").map(Keepalive::Fixed)
}

/// Reads `[control]`.
pub(super) fn control(reader: &Reader<'_>, run_directory: &Path) -> Control {
    let section = reader.section("control");
    section.refuse_unknown_keys();
    let socket = section.path("socket").unwrap_or_else(|| run_directory.join("control.sock"));
    let length = socket.as_os_str().as_bytes().len();
    let written = section.get("socket").or_else(|| reader.section("run").get("directory"));
    if let Some(value) = written.filter(|_| length > UNIX_PATH_LIMIT_BYTES) {
        value.fail(
            format!("the control socket's path has {length} bytes; a unix socket's holds {UNIX_PATH_LIMIT_BYTES}"),
            format!("choose a shorter {}", value.name()),
        );
    }
    Control { socket, group: section.get("group").and_then(|value| group(&value)) }
}

fn group(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    // What useradd(8) and directory services let through; whether it exists is looked up when it is needed.
    let fits =
        !text.is_empty() && !text.starts_with('-') && !text.chars().any(|c| c.is_control() || c.is_whitespace() || c == ':' || c == '/');
    if !fits {
        value.fail(
            format!("{} is '{}', no name of a group of users", value.name(), text.escape_debug()),
            "write a name from /etc/group, such as \"adm\"",
        );
    }
    fits.then(|| text.to_owned())
}

/// Reads `[metrics]`.
pub(super) fn metrics_listen(reader: &Reader<'_>) -> Option<SocketAddr> {
    let section = reader.section("metrics");
    section.refuse_unknown_keys();
    section.without_effect("listen", address(&section))
}

fn address(section: &Section<'_>) -> Option<SocketAddr> {
    let value = section.get("listen")?;
    let text = value.text()?;
    let address = text.parse().ok();
    if address.is_none() {
        value.fail(
            format!("{} is '{}', no numeric address with a port", value.name(), text.escape_debug()),
            "write \"127.0.0.1:9253\" or \"[::1]:9253\"",
        );
    }
    address
}

/// Reads `[log]`.
pub(super) fn log(reader: &Reader<'_>) -> Log {
    let section = reader.section("log");
    section.refuse_unknown_keys();
    Log {
        level: section.choice("level", &LEVELS).unwrap_or(LogLevel::Info),
        format: section.choice("format", &FORMATS).unwrap_or(LogFormat::Auto),
    }
}

const LEVELS: [(&str, LogLevel); 5] = [
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];

const FORMATS: [(&str, LogFormat); 4] =
    [("auto", LogFormat::Auto), ("text", LogFormat::Text), ("json", LogFormat::Json), ("journal", LogFormat::Journal)];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Loaded, understand};
    use crate::model::problem::Severity;

    #[test]
    fn more_open_files_than_the_hard_limit_are_an_error_only_where_they_were_asked_for() {
        let within = |text: &str| {
            understand(Path::new("/etc/polyfpm/php8.2.toml"), &format!("[php]\nbinary = \"/f\"\nconfig = \"/c\"\n{text}"), |_, wanted| {
                wanted.min(20_000)
            })
        };
        let Loaded { settings, problems } = within("").unwrap();
        assert_eq!(settings.limits.nofile, Some(20_000));
        assert_eq!(problems[0].severity, Severity::Warning);
        assert_eq!(problems[0].message, "masters get 20000 open files, the hard limit, instead of the default of 65536");
        let refused = within("[limits]\nnofile = 30000\n").unwrap_err();
        assert_eq!(refused[0].message, "limits.nofile is 30000, above the hard limit of 20000 open files");
        assert_eq!(refused[0].excerpt.as_deref(), Some("nofile = 30000"));
        let Loaded { settings, problems } = within("[limits]\nnofile = 19000\n").unwrap();
        assert_eq!((settings.limits.nofile, problems), (Some(19_000), Vec::new()));
        let sizes = within("[limits]\nnofile = 64\ncore = \"unlimited\"\nnproc = 30000\nmemlock = \"64M\"\n").unwrap_err();
        let said: Vec<&str> = sizes.iter().map(|problem| problem.message.as_str()).collect();
        let wanted = [
            "limits.core is \"unlimited\", above the hard limit of 20000 bytes",
            "limits.nproc is 30000, above the hard limit of 20000 processes",
            "limits.memlock is 67108864 bytes, above the hard limit of 20000 bytes",
        ];
        assert_eq!(said, wanted);
    }
}
