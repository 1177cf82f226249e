//! What php-fpm checks once all files are read: `[global]`, each pool by itself, and the pools among each other.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::model::endpoint::UNIX_PATH_LIMIT_BYTES;
use crate::model::host::Version;
use crate::model::ids::PoolName;
use crate::model::pool::{ListenNames, Origin, Pool, ProcessManager, Quarantined, RawLine, WorkerNumbers};
use crate::model::problem::{Problem, Severity};

use super::keys::seconds;
use super::statement::integer;
use super::{Dialect, ReadContext, Reading, RunsAs, access, with_pool};

/// A pool while its lines are collected.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) name: String,
    pub(super) header: Vec<u8>,
    pub(super) origin: Origin,
    pub(super) lines: Vec<RawLine>,
    pub(super) faults: Vec<Problem>,
}

impl Draft {
    pub(super) fn new(name: String, header: Vec<u8>, origin: Origin) -> Self {
        Self { name, header, origin, lines: Vec::new(), faults: Vec::new() }
    }

    fn line(&self, key: &str) -> Option<&RawLine> {
        self.lines.iter().rev().find(|line| line.element.is_none() && line.key == key)
    }

    fn text(&self, key: &str) -> Option<String> {
        self.line(key).map(|line| with_pool(&line.value, &self.name))
    }

    fn filled(&self, key: &str) -> Option<String> {
        self.text(key).filter(|text| !text.is_empty())
    }

    fn number(&self, key: &str) -> Option<i32> {
        self.line(key).map(|line| integer(line.value.as_bytes()))
    }

    fn time(&self, key: &str) -> i32 {
        self.line(key).and_then(|line| seconds(line.value.as_bytes()).ok()).unwrap_or_default()
    }

    fn fault(&mut self, key: &str, message: String) {
        let problem = match self.line(key) {
            Some(line) => at_line(line, message),
            None => Problem::error(message).at(self.origin.file.as_path(), self.origin.line).excerpt(String::from_utf8_lossy(&self.header)),
        };
        self.faults.push(problem);
    }

    fn fault_with(&mut self, key: &str, message: String, remedy: &str) {
        self.fault(key, message);
        if let Some(last) = self.faults.last_mut() {
            last.remedy = Some(remedy.to_owned());
        }
    }
}

fn at_line(line: &RawLine, message: String) -> Problem {
    Problem::error(message).at(line.origin.file.as_path(), line.origin.line).excerpt(String::from_utf8_lossy(&line.text))
}

/// Checks `[global]` and fills in what polyfpm decides by.
pub(super) fn global(reading: &mut Reading, context: &ReadContext) {
    let last = |key: &str| reading.files.global.lines.iter().rev().find(|line| line.key == key);
    let number = |key: &str| last(key).map(|line| integer(line.value.as_bytes()));
    let mut problems = Vec::new();
    let mut complain = |key: &str, message: String| {
        if let Some(line) = last(key) {
            problems.push(at_line(line, message));
        }
    };
    if number("log_limit").is_some_and(|limit| limit < 512) {
        complain("log_limit", "log_limit must be greater than 512".into());
    }
    if number("process.max").is_some_and(|max| max < 0) {
        complain("process.max", "process.max can't be negative".into());
    }
    if number("process.priority").is_some_and(bad_priority) {
        complain("process.priority", "process.priority must be included into [-19,20]".into());
    }
    if let Some(name) = last("events.mechanism").map(|line| line.value.clone())
        && !["epoll", "poll", "select"].iter().any(|known| known.eq_ignore_ascii_case(&name))
        && !(name == "/dev/poll" && context.build.version < Version(8, 4, 0))
    {
        complain("events.mechanism", format!("event mechanism '{name}' is not available on this system"));
    }
    if let Some(line) = last("events.mechanism").filter(|line| ["poll", "select"].iter().any(|name| line.value.eq_ignore_ascii_case(name)))
    {
        let message =
            format!("events.mechanism '{}' is not used where a shard has status sockets: php-fpm needs epoll for them", line.value);
        problems.push(Problem { severity: Severity::Warning, ..at_line(line, message) });
    }
    let text = |key: &str| last(key).map(|line| line.value.clone());
    let (error_log, pid) = (text("error_log"), text("pid"));
    let process_max = number("process.max").and_then(|max| u32::try_from(max).ok()).filter(|max| *max > 0);
    reading.files.global.error_log = error_log;
    reading.files.global.pid = pid;
    reading.files.global.process_max = process_max;
    reading.problems.extend(problems);
}

/// 64 is php-fpm's own mark for "not set".
fn bad_priority(priority: i32) -> bool {
    priority != 64 && !(-19..=20).contains(&priority)
}

/// Checks every pool and sorts them into those that may run and those kept out.
pub(super) fn pools(drafts: Vec<Draft>, reading: &mut Reading, context: &ReadContext, dialect: Dialect) {
    let edge = reading.files.global.lines.iter().rev().find(|line| line.key == "events.mechanism");
    let edge_triggered = edge.is_none_or(|line| line.value.eq_ignore_ascii_case("epoll"));
    let mut taken: Vec<(String, String)> = Vec::new();
    for mut draft in drafts {
        let pool = Checker { draft: &mut draft, context, dialect, edge_triggered }.pool(&mut taken);
        // A header of the same pool that could not be read means that lines of it are missing.
        let lost = reading.quarantined.iter().any(|quarantined| quarantined.pool.as_str().eq_ignore_ascii_case(&draft.name));
        let name = PoolName::new(draft.name.clone());
        let mut faults = draft.faults.into_iter().partition::<Vec<_>, _>(|problem| problem.severity == Severity::Error);
        reading.problems.append(&mut faults.1);
        let mut errors = faults.0.into_iter();
        match (errors.next(), pool) {
            (None, Some(pool)) if !lost => reading.files.pools.push(pool),
            (Some(first), _) if !lost => {
                reading.quarantined.push(Quarantined { pool: name, problem: first });
                reading.further.extend(errors);
            }
            (first, _) => reading.further.extend(first.into_iter().chain(errors)),
        }
    }
}

struct Checker<'a> {
    draft: &'a mut Draft,
    context: &'a ReadContext,
    dialect: Dialect,
    edge_triggered: bool,
}

impl Checker<'_> {
    fn pool(mut self, taken: &mut Vec<(String, String)>) -> Option<Pool> {
        let prefix = self.prefix();
        let listen = self.listen(prefix.as_deref());
        if self.draft.line("user").is_none() && self.context.runs_as == RunsAs::Root {
            self.draft.fault_with("user", "'user' directive has not been specified when running as a root".into(), "add user = NAME");
        }
        if self.draft.number("process.priority").is_some_and(bad_priority) {
            self.draft.fault("process.priority", "process.priority must be included into [-19,20]".into());
        }
        let pm = self.manager();
        let workers = self.workers(pm);
        self.paths();
        self.logs();
        self.duplicates(listen.as_deref(), prefix.as_deref(), taken);
        let draft = self.draft;
        let terminate = u64::try_from(draft.time("request_terminate_timeout")).unwrap_or_default();
        Some(Pool {
            name: PoolName::new(draft.name.clone()),
            header: draft.header.clone(),
            origin: draft.origin.clone(),
            lines: draft.lines.clone(),
            listen: listen?,
            listen_origin: draft.line("listen").map(|line| line.origin.clone()),
            listen_names: names(draft),
            listen_backlog: draft.number("listen.backlog"),
            prefix,
            user: draft.text("user"),
            pm: pm?,
            workers: workers?,
            ping_path: draft.filled("ping.path"),
            ping_response: draft.filled("ping.response"),
            status_path: draft.filled("pm.status_path"),
            request_terminate_timeout: Some(Duration::from_secs(terminate)).filter(|span| !span.is_zero()),
        })
    }

    /// The pool's prefix, absolute. An empty one makes relative paths start at the root.
    fn prefix(&self) -> Option<PathBuf> {
        let text = self.draft.text("prefix")?;
        if text.is_empty() { Some(PathBuf::from("/")) } else { Some(self.context.prefix.join(text)) }
    }

    fn absolute(&self, address: String, prefix: Option<&Path>) -> String {
        if is_tcp(&address) || address.starts_with('/') {
            return address;
        }
        prefix.unwrap_or(&self.context.prefix).join(address).to_string_lossy().into_owned()
    }

    fn listen(&mut self, prefix: Option<&Path>) -> Option<String> {
        let Some(address) = self.draft.filled("listen") else {
            self.draft.fault_with("listen", "no listen address has been defined".into(), "add listen = ADDRESS");
            return None;
        };
        let listen = self.absolute(address, prefix);
        self.path_length("listen", &listen);
        if let Some(status) = self.draft.filled("pm.status_listen") {
            let status = self.absolute(status, prefix);
            self.path_length("pm.status_listen", &status);
            let message = format!("pm.status_listen '{status}' is not served: each shard has a private status socket instead");
            self.warning("pm.status_listen", message, "ask polyfpm for the status of its pools");
        }
        Some(listen)
    }

    /// Up to 8.3 php-fpm cuts the path and says nothing, from 8.4 on it refuses it; NGINX refuses it always.
    fn path_length(&mut self, key: &str, listen: &str) {
        let length = listen.len();
        if is_tcp(listen) || length <= UNIX_PATH_LIMIT_BYTES {
            return;
        }
        let message = format!("the {key} path is {length} bytes long, a unix socket holds {UNIX_PATH_LIMIT_BYTES}");
        if self.dialect.version < Version(8, 4, 0) {
            self.warning(key, message, "use a shorter path");
        } else {
            self.draft.fault_with(key, message, "use a shorter path");
        }
    }

    fn warning(&mut self, key: &str, message: String, remedy: &str) {
        self.draft.fault_with(key, message, remedy);
        if let Some(last) = self.draft.faults.last_mut() {
            last.severity = Severity::Warning;
        }
    }

    fn duplicates(&mut self, listen: Option<&str>, prefix: Option<&Path>, taken: &mut Vec<(String, String)>) {
        let name = self.draft.name.clone();
        let status = self.draft.filled("pm.status_listen").map(|address| self.absolute(address, prefix));
        for (key, address) in [("listen", listen.map(str::to_owned)), ("pm.status_listen", status)] {
            let Some(address) = address else { continue };
            if let Some((_, owner)) = taken.iter().find(|(known, _)| *known == address) {
                let message = format!("unable to set {key} address '{address}' as it's already used in another pool '{owner}'");
                self.draft.fault_with(key, message, "give each pool an address of its own");
            } else {
                taken.push((address, name.clone()));
            }
        }
    }

    fn manager(&mut self) -> Option<ProcessManager> {
        let text = self.draft.text("pm").map(|text| text.to_ascii_lowercase());
        let pm = match text.as_deref() {
            Some("static") => ProcessManager::Static,
            Some("dynamic") => ProcessManager::Dynamic,
            Some("ondemand") => ProcessManager::Ondemand,
            _ => {
                let message = "the process manager is missing (static, dynamic or ondemand)".into();
                self.draft.fault_with("pm", message, "add pm = static, dynamic or ondemand");
                return None;
            }
        };
        if pm == ProcessManager::Ondemand {
            if !self.edge_triggered {
                self.draft.fault("pm", "ondemand process manager can only be used when events.mechanism is epoll".into());
            }
            let idle = self.draft.line("pm.process_idle_timeout").map(|_| self.draft.time("pm.process_idle_timeout"));
            if let Some(idle) = idle.filter(|idle| *idle < 1) {
                self.draft.fault("pm.process_idle_timeout", format!("pm.process_idle_timeout({idle}s) must be greater than 0s"));
            }
        }
        Some(pm)
    }

    fn workers(&mut self, pm: Option<ProcessManager>) -> Option<WorkerNumbers> {
        let max = self.draft.number("pm.max_children").unwrap_or_default();
        if max < 1 {
            self.draft.fault_with("pm.max_children", "pm.max_children must be a positive value".into(), "add pm.max_children = NUMBER");
        } else if pm == Some(ProcessManager::Dynamic) {
            self.spares(max);
        }
        let given = |key: &str| self.draft.number(key).and_then(|number| u32::try_from(number).ok());
        Some(WorkerNumbers {
            max_children: u32::try_from(max).ok().filter(|max| *max > 0)?,
            start_servers: given("pm.start_servers").filter(|number| *number > 0),
            min_spare_servers: given("pm.min_spare_servers"),
            max_spare_servers: given("pm.max_spare_servers"),
        })
    }

    fn spares(&mut self, max: i32) {
        let number = |key: &str| self.draft.number(key).unwrap_or_default();
        let (start, low, high) = (number("pm.start_servers"), number("pm.min_spare_servers"), number("pm.max_spare_servers"));
        let rate = self.draft.number("pm.max_spawn_rate");
        if low <= 0 {
            self.draft.fault("pm.min_spare_servers", format!("pm.min_spare_servers({low}) must be a positive value"));
        } else if high <= 0 {
            self.draft.fault("pm.max_spare_servers", format!("pm.max_spare_servers({high}) must be a positive value"));
        } else if low > max || high > max {
            let key = if low > max { "pm.min_spare_servers" } else { "pm.max_spare_servers" };
            let message =
                format!("pm.min_spare_servers({low}) and pm.max_spare_servers({high}) cannot be greater than pm.max_children({max})");
            self.draft.fault(key, message);
        } else if high < low {
            let message = format!("pm.max_spare_servers({high}) must not be less than pm.min_spare_servers({low})");
            self.draft.fault("pm.max_spare_servers", message);
        } else if start > 0 && !(low..=high).contains(&start) {
            let message = format!(
                "pm.start_servers({start}) must not be less than pm.min_spare_servers({low}) and not greater than pm.max_spare_servers({high})"
            );
            self.draft.fault("pm.start_servers", message);
        }
        if rate.is_some_and(|rate| rate < 1) {
            self.draft.fault("pm.max_spawn_rate", "pm.max_spawn_rate must be a positive value".into());
        }
    }

    fn paths(&mut self) {
        let private = self.draft.filled("pm.status_listen").is_some();
        for (key, what, short) in [("pm.status_path", "status", private), ("ping.path", "ping", false)] {
            let Some(path) = self.draft.filled(key) else { continue };
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
            if !path.starts_with('/') {
                self.draft.fault(key, format!("the {what} path '{path}' must start with a '/'"));
            } else if path.len() < 2 && !short {
                self.draft.fault(key, format!("the {what} path '{path}' is not long enough"));
            } else if !path.bytes().all(allowed) {
                let message = format!("the {what} path '{path}' must contain only the following characters '[alphanum]/_-.~'");
                self.draft.fault(key, message);
            }
        }
        if self.draft.filled("chroot").is_some_and(|path| !path.starts_with('/') && path.find("$prefix").is_some_and(|at| at > 0)) {
            self.draft.fault("chroot", "'$prefix' must be used at the beginning of the value".into());
        }
        if self.draft.filled("ping.path").is_some() && self.draft.text("ping.response").is_some_and(|text| text.is_empty()) {
            self.draft.fault("ping.response", "the ping response page '' is not long enough".into());
        }
    }

    fn logs(&mut self) {
        let has_slowlog = self.draft.filled("slowlog").is_some();
        let (slow, terminate) = (self.draft.time("request_slowlog_timeout"), self.draft.time("request_terminate_timeout"));
        let depth = self.draft.number("request_slowlog_trace_depth").unwrap_or_default();
        for (key, set) in [("request_slowlog_timeout", slow != 0), ("request_slowlog_trace_depth", depth != 0)] {
            if set && !has_slowlog {
                self.draft.fault_with(key, format!("'slowlog' must be specified for use with '{key}'"), "add slowlog = FILE");
            }
        }
        if slow != 0 && terminate != 0 && slow > terminate {
            let message = format!("'request_slowlog_timeout' ({slow}) can't be greater than 'request_terminate_timeout' ({terminate})");
            self.draft.fault("request_slowlog_timeout", message);
        }
        if depth < 0 && has_slowlog {
            let message = format!("'request_slowlog_trace_depth' ({depth}) must be a positive value");
            self.draft.fault("request_slowlog_trace_depth", message);
        }
        if self.draft.filled("access.log").is_some()
            && let Some(complaint) = self.draft.text("access.format").and_then(|format| access::complaint(&format))
        {
            self.draft.fault("access.format", format!("wrong format for access.format: {complaint}"));
        }
    }
}

/// Only digits, or a colon somewhere: TCP. Anything else is a path. Source: php-src `fpm_sockets.c`.
fn is_tcp(address: &str) -> bool {
    address.contains(':') || address.bytes().all(|byte| byte.is_ascii_digit())
}

fn names(draft: &Draft) -> ListenNames {
    let list =
        |key: &str| -> Vec<String> { draft.filled(key).map(|text| text.split(',').map(str::to_owned).collect()).unwrap_or_default() };
    ListenNames {
        owner: draft.filled("listen.owner"),
        group: draft.filled("listen.group"),
        mode: draft.filled("listen.mode").map(|text| octal(&text)),
        acl_users: list("listen.acl_users"),
        acl_groups: list("listen.acl_groups"),
    }
}

/// Reads an octal number as C's `strtoul` does: what follows the digits is ignored.
fn octal(text: &str) -> u32 {
    let digits = text.trim_start().trim_start_matches('+').bytes().take_while(|byte| (b'0'..=b'7').contains(byte));
    digits.fold(0_u32, |number, digit| number.wrapping_mul(8).wrapping_add(u32::from(digit - b'0')))
}
