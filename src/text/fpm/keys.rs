//! Every key php-fpm knows, with the shape of its value, since when, and in which section.

use crate::model::host::Version;

use super::Dialect;
use super::statement::integer;

/// The section a key belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    /// `[global]`.
    Global,
    /// A pool.
    Pool,
}

/// The shape of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Text,
    Integer,
    Time,
    Boolean,
    LogLevel,
    Facility,
    Core,
    Manager,
}

/// A key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    /// Its name, in lower case.
    pub(super) name: &'static str,
    /// The shape of its value.
    pub(super) shape: Shape,
    /// The first version that knows it, as major and minor number.
    since: (u32, u32),
}

const fn key(name: &'static str, shape: Shape) -> Key {
    Key { name, shape, since: (5, 3) }
}

const fn since(name: &'static str, shape: Shape, version: (u32, u32)) -> Key {
    Key { name, shape, since: version }
}

const GLOBAL: &[Key] = &[
    key("pid", Shape::Text),
    key("error_log", Shape::Text),
    key("syslog.ident", Shape::Text),
    key("syslog.facility", Shape::Facility),
    since("log_buffering", Shape::Boolean, (7, 3)),
    key("log_level", Shape::LogLevel),
    since("log_limit", Shape::Integer, (7, 3)),
    key("emergency_restart_threshold", Shape::Integer),
    key("emergency_restart_interval", Shape::Time),
    key("process_control_timeout", Shape::Time),
    key("process.max", Shape::Integer),
    key("process.priority", Shape::Integer),
    key("daemonize", Shape::Boolean),
    key("rlimit_files", Shape::Integer),
    key("rlimit_core", Shape::Core),
    key("events.mechanism", Shape::Text),
    key("systemd_interval", Shape::Time),
];

const POOL: &[Key] = &[
    key("prefix", Shape::Text),
    key("user", Shape::Text),
    key("group", Shape::Text),
    key("listen", Shape::Text),
    key("listen.backlog", Shape::Integer),
    key("listen.acl_users", Shape::Text),
    key("listen.acl_groups", Shape::Text),
    key("listen.owner", Shape::Text),
    key("listen.group", Shape::Text),
    key("listen.mode", Shape::Text),
    key("listen.allowed_clients", Shape::Text),
    key("process.priority", Shape::Integer),
    since("process.dumpable", Shape::Boolean, (7, 0)),
    key("pm", Shape::Manager),
    key("pm.max_children", Shape::Integer),
    key("pm.start_servers", Shape::Integer),
    key("pm.min_spare_servers", Shape::Integer),
    key("pm.max_spare_servers", Shape::Integer),
    since("pm.max_spawn_rate", Shape::Integer, (8, 1)),
    key("pm.process_idle_timeout", Shape::Time),
    key("pm.max_requests", Shape::Integer),
    key("pm.status_path", Shape::Text),
    since("pm.status_listen", Shape::Text, (8, 0)),
    key("ping.path", Shape::Text),
    key("ping.response", Shape::Text),
    key("access.log", Shape::Text),
    key("access.format", Shape::Text),
    key("slowlog", Shape::Text),
    key("request_slowlog_timeout", Shape::Time),
    since("request_slowlog_trace_depth", Shape::Integer, (7, 2)),
    key("request_terminate_timeout", Shape::Time),
    since("request_terminate_timeout_track_finished", Shape::Boolean, (7, 3)),
    key("rlimit_files", Shape::Integer),
    key("rlimit_core", Shape::Core),
    key("chroot", Shape::Text),
    key("chdir", Shape::Text),
    key("catch_workers_output", Shape::Boolean),
    since("decorate_workers_output", Shape::Boolean, (7, 3)),
    key("clear_env", Shape::Boolean),
    key("security.limit_extensions", Shape::Text),
    key("apparmor_hat", Shape::Text),
];

/// The array keys of pools, compared case by case.
pub(super) const ARRAYS: &[&str] = &["env", "php_value", "php_admin_value", "php_flag", "php_admin_flag", "access.suppress_path"];

/// The newest version these tables know; keys of newer ones are left to php-fpm itself.
pub(super) const NEWEST: (u32, u32) = (8, 5);

fn table(section: Section) -> &'static [Key] {
    match section {
        Section::Global => GLOBAL,
        Section::Pool => POOL,
    }
}

/// Finds a scalar key; upper and lower case are the same.
pub(super) fn find(section: Section, name: &str, dialect: Dialect) -> Option<Key> {
    let known = |key: &&Key| key.name.eq_ignore_ascii_case(name) && dialect.knows(key.since);
    let found = table(section).iter().find(known).copied()?;
    (found.name != "systemd_interval" || dialect.systemd).then_some(found)
}

/// Says whether an array key exists in this version.
pub(super) fn array_known(name: &str, version: Version) -> bool {
    ARRAYS.contains(&name) && (name != "access.suppress_path" || version >= Version(8, 2, 0))
}

/// Gives what to do about an unknown key.
pub(super) fn advice(section: Section, name: &str) -> Option<String> {
    let lower = name.to_ascii_lowercase();
    let other = match section {
        Section::Global => Section::Pool,
        Section::Pool => Section::Global,
    };
    if let Some(key) = table(section).iter().find(|key| key.name == lower) {
        return Some(format!("remove '{}': this php-fpm does not have it", key.name));
    }
    if table(other).iter().any(|key| key.name == lower) {
        return Some(match section {
            Section::Global => format!("move '{lower}' below a pool's [section] line"),
            Section::Pool => format!("move '{lower}' to the [global] section"),
        });
    }
    let array = ARRAYS.iter().filter(|_| section == Section::Pool).copied();
    let near = table(section).iter().map(|key| key.name).chain(array).chain(["include"]);
    let best = near.map(|known| (strsim::jaro_winkler(known, &lower), known)).max_by(|a, b| a.0.total_cmp(&b.0))?;
    let brackets = if ARRAYS.contains(&best.1) { "[…]" } else { "" };
    (best.0 > 0.85).then(|| format!("write '{}{brackets}' if that is what is meant", best.1))
}

/// Checks a value as php-fpm does when it stores it, and gives php-fpm's complaint.
pub(super) fn check(key: Key, value: &[u8], dialect: Dialect) -> Result<(), &'static str> {
    match key.shape {
        Shape::Text => Ok(()),
        Shape::Integer => integer_shape(value),
        Shape::Time => seconds(value).map(drop),
        Shape::Boolean => boolean(value, dialect).map(drop),
        Shape::LogLevel => one_of(value, &["debug", "notice", "warning", "warn", "error", "alert"], "invalid value for 'log_level'"),
        Shape::Facility => one_of(value, FACILITIES, "invalid value"),
        Shape::Manager => one_of(value, &["static", "dynamic", "ondemand"], "invalid process manager (static, dynamic or ondemand)"),
        Shape::Core if value.eq_ignore_ascii_case(b"unlimited") => Ok(()),
        Shape::Core => {
            integer_shape(value)?;
            if integer(value) < 0 { Err("must be greater than zero or 'unlimited'") } else { Ok(()) }
        }
    }
}

const FACILITIES: &[&str] = &[
    "auth", "authpriv", "cron", "daemon", "ftp", "kern", "lpr", "mail", "news", "syslog", "user", "uucp", "local0", "local1", "local2",
    "local3", "local4", "local5", "local6", "local7",
];

fn one_of(value: &[u8], known: &[&str], complaint: &'static str) -> Result<(), &'static str> {
    if known.iter().any(|word| value.eq_ignore_ascii_case(word.as_bytes())) { Ok(()) } else { Err(complaint) }
}

fn integer_shape(value: &[u8]) -> Result<(), &'static str> {
    let digits = value.strip_prefix(b"-").unwrap_or(value);
    if digits.iter().all(u8::is_ascii_digit) { Ok(()) } else { Err("is not a valid number (greater or equal than zero)") }
}

/// Reads a time value in seconds; what php-fpm's arithmetic wraps is wrapped.
pub(super) fn seconds(value: &[u8]) -> Result<i32, &'static str> {
    let Some((suffix, number)) = value.split_last() else { return Err("invalid time value") };
    match suffix {
        b'm' => Ok(integer(number).wrapping_mul(60)),
        b'h' => Ok(integer(number).wrapping_mul(3600)),
        b'd' => Ok(integer(number).wrapping_mul(86_400)),
        b's' => Ok(integer(number)),
        b'0'..=b'9' => Ok(integer(value)),
        _ => Err("unknown suffix used in time value"),
    }
}

/// Reads a word of truth.
pub(super) fn boolean(value: &[u8], dialect: Dialect) -> Result<bool, &'static str> {
    match value {
        b"1" => Ok(true),
        b"" => Ok(false),
        // Words and 0 that reach the value through quotes or the environment; php-src issue 13563.
        b"yes" | b"true" | b"on" if dialect.quoted_booleans => Ok(true),
        b"0" | b"no" | b"none" | b"false" | b"off" if dialect.quoted_booleans => Ok(false),
        _ => Err("invalid boolean value"),
    }
}
