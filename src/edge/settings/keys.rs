//! The one list of keys: what the reader accepts, what `docs/settings.md` and the example are checked against.

/// What holds when a key is not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Default {
    /// The file is refused.
    Required,
    /// Nothing: as the text says.
    Unset,
    /// As if this TOML text were written, `{instance}` standing for the instance.
    Is(&'static str),
    /// The value the same key, or the one named, has in `[shards]`.
    OfShards(&'static str),
}

/// One key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Its table: `php`, `group.NAME`, `restart.warmup`.
    pub table: &'static str,
    /// Its name in the table.
    pub name: &'static str,
    /// What holds without it.
    pub default: Default,
}

const fn key(table: &'static str, name: &'static str, default: Default) -> Key {
    Key { table, name, default }
}

/// The table of a group of its own, as [`KEYS`] spells it.
pub(super) const GROUP: &str = "group.NAME";

/// The table of one warm-up, as [`KEYS`] spells it.
pub(super) const WARMUP: &str = "restart.warmup";

/// Every key, in the order of the example.
pub const KEYS: &[Key] = &[
    key("php", "binary", Default::Required),
    key("php", "config", Default::Required),
    key("php", "ini", Default::Unset),
    key("php", "prefix", Default::Unset),
    key("php", "define", Default::Is("{}")),
    key("php", "environment", Default::Is("{}")),
    key("php", "inherit_environment", Default::Is("[]")),
    key("shards", "count", Default::Is("\"auto\"")),
    key("shards", "cpus", Default::Is("\"nginx\"")),
    key("shards", "min_workers", Default::Is("8")),
    key("shards", "routing", Default::Is("\"auto\"")),
    key(GROUP, "pools", Default::Required),
    key(GROUP, "shards", Default::OfShards("count")),
    key(GROUP, "cpus", Default::OfShards("cpus")),
    key(GROUP, "min_workers", Default::OfShards("min_workers")),
    key("run", "directory", Default::Is("\"/run/polyfpm/{instance}\"")),
    key("listen", "backlog", Default::Is("\"auto\"")),
    key("listen", "directory", Default::Is("\"/run/polyfpm/{instance}/sockets\"")),
    key("limits", "nofile", Default::Is("65536")),
    key("limits", "core", Default::Is("\"0\"")),
    key("limits", "nproc", Default::Unset),
    key("limits", "memlock", Default::Unset),
    key("limits", "nice", Default::Unset),
    key("limits", "oom_score_adjust", Default::Unset),
    key("limits", "memory_max", Default::Unset),
    key("limits", "cpu_weight", Default::Unset),
    key("health", "interval", Default::Is("\"2s\"")),
    key("health", "timeout", Default::Is("\"1s\"")),
    key("health", "hung_after", Default::Is("\"30s\"")),
    key("health", "restart_hung", Default::Is("true")),
    key("restart", "ready_timeout", Default::Is("\"30s\"")),
    key("restart", "drain_timeout", Default::Is("\"5m\"")),
    key("restart", "settle", Default::Is("\"1s\"")),
    key("restart", "stable_after", Default::Is("\"60s\"")),
    key("restart", "backoff", Default::Is("\"1s\"")),
    key("restart", "give_up_after", Default::Is("5")),
    key(WARMUP, "pool", Default::Required),
    key(WARMUP, "script", Default::Required),
    key(WARMUP, "uri", Default::Is("\"/\"")),
    key(WARMUP, "expect", Default::Is("200")),
    key(WARMUP, "timeout", Default::Is("\"10s\"")),
    key("nginx", "enabled", Default::Is("true")),
    key("nginx", "binary", Default::Is("\"/usr/sbin/nginx\"")),
    key("nginx", "config", Default::Is("\"/etc/nginx/nginx.conf\"")),
    key("nginx", "include", Default::Is("\"/etc/nginx/conf.d/polyfpm-{instance}.conf\"")),
    key("nginx", "upstream", Default::Is("\"polyfpm_{instance}_{pool}\"")),
    key("nginx", "balance", Default::Is("\"least_conn\"")),
    key("nginx", "keepalive", Default::Is("0")),
    key("nginx", "reload", Default::Is("true")),
    key("control", "socket", Default::Is("\"/run/polyfpm/{instance}/control.sock\"")),
    key("control", "group", Default::Unset),
    key("metrics", "listen", Default::Unset),
    key("log", "level", Default::Is("\"info\"")),
    key("log", "format", Default::Is("\"auto\"")),
];

/// The least likeness (Jaro and Winkler) of two names of which one is taken for a slip of the other.
const LIKENESS: f64 = 0.8;

/// Gives the tables a file may have at its top.
pub(super) fn top_tables() -> Vec<&'static str> {
    let mut tables: Vec<&str> = KEYS.iter().filter_map(|key| key.table.split('.').next()).collect();
    tables.dedup();
    tables.sort_unstable();
    tables.dedup();
    tables
}

/// Gives the names that `table` knows.
pub(super) fn names_of(table: &str) -> Vec<&'static str> {
    let own = KEYS.iter().filter(|key| key.table == table).map(|key| key.name);
    // The warm-ups are a table of tables within [restart].
    own.chain((table == "restart").then_some("warmup")).collect()
}

/// Gives the one table other than `table` that knows `name`, when there is exactly one; groups count only after the rest.
pub(super) fn home_of(name: &str, table: &str) -> Option<&'static str> {
    let homes = || KEYS.iter().filter(|key| key.name == name && key.table != table).map(|key| key.table);
    let mut shared = homes().filter(|home| *home != GROUP);
    match (shared.next(), shared.next()) {
        (None, _) => homes().next(),
        (only, None) => only,
        (Some(_), Some(_)) => None,
    }
}

/// Gives the candidate that `written` is probably a slip of.
pub(super) fn nearest<'c>(written: &str, candidates: &[&'c str]) -> Option<&'c str> {
    let lower = written.to_ascii_lowercase().replace('-', "_");
    let likened = candidates.iter().map(|candidate| (strsim::jaro_winkler(&lower, candidate), *candidate));
    likened.filter(|(likeness, _)| *likeness >= LIKENESS).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, candidate)| candidate)
}
