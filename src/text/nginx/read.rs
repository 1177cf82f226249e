//! Walks a configuration as NGINX does: includes expanded in place, settings inherited from the block around.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::address::{Address, address, time};
use super::dump::Config;
use super::glob;
use super::syntax::{DEPTH_LIMIT, Directive, Word};
use crate::model::clients::{Clients, Pass, PassTarget, UpstreamBlock};
use crate::model::problem::{Place, Problem};

/// The most directives visited in one walk. 10,000 vhosts of 100 lines are a million; includes that multiply each other would not end.
const VISIT_LIMIT: usize = 5_000_000;

/// What the main level says of the processes, and what the `http` level includes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    /// `user`: the workers' user, as written.
    pub user: Option<String>,
    /// `user`: the workers' group, as written.
    pub group: Option<String>,
    /// `pid`, as written; a relative path starts from NGINX's prefix.
    pub pid: Option<PathBuf>,
    /// `worker_processes`, as written.
    pub worker_processes: Option<String>,
    /// The words of `worker_cpu_affinity`.
    pub worker_cpu_affinity: Vec<String>,
    /// The patterns of each `include` at the level of `http`, made absolute.
    pub http_includes: Vec<PathBuf>,
}

impl Layout {
    /// Tells whether some `include` at the level of `http` reads `path`.
    pub fn includes(&self, path: &Path) -> bool {
        self.http_includes.iter().any(|pattern| glob::matches(pattern.as_os_str().as_bytes(), path.as_os_str().as_bytes()))
    }
}

/// What a configuration says that polyfpm needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reading {
    /// The clients of php-fpm.
    pub clients: Clients,
    /// The processes and includes.
    pub layout: Layout,
    /// Why the configuration could not be read whole, where `clients.known` is false.
    pub problems: Vec<Problem>,
}

impl Config {
    /// Reads the clients of php-fpm and the layout.
    pub fn reading(&self) -> Reading {
        let mut walker = Walker {
            config: self,
            paths: self.files.iter().map(|file| file.path.as_os_str().as_bytes()).collect(),
            expanded: BTreeMap::new(),
            reached: BTreeSet::new(),
            open: Vec::new(),
            visits_left: VISIT_LIMIT,
            reading: Reading::default(),
            named_servers: Vec::new(),
        };
        walker.main();
        walker.finish()
    }
}

/// Where a block stands, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Context {
    Main,
    Http,
    /// A server, a location or anything else below `http`.
    Below,
    /// A block whose lines are no directives of `http`: `map`, `types`, `stream`. Only its includes are followed.
    Foreign,
}

impl Context {
    fn of_block(self, name: &str) -> Self {
        match (self, name) {
            (Self::Main, "http") => Self::Http,
            (Self::Http | Self::Below, "map" | "types" | "geo" | "split_clients" | "upstream" | "match") => Self::Foreign,
            (Self::Http | Self::Below, _) => Self::Below,
            (Self::Main | Self::Foreign, _) => Self::Foreign,
        }
    }
}

/// A directive with the number of its file.
type Located<'a> = (usize, &'a Directive);

struct Walker<'a> {
    config: &'a Config,
    paths: Vec<&'a [u8]>,
    /// Which files each include means, by its absolute pattern.
    expanded: BTreeMap<Vec<u8>, Vec<usize>>,
    reached: BTreeSet<usize>,
    /// The files that are being expanded, one within the other.
    open: Vec<usize>,
    visits_left: usize,
    reading: Reading,
    /// Servers of upstreams that are host names: the upstream's name, the server's place and text.
    named_servers: Vec<(String, Place, String)>,
}

impl<'a> Walker<'a> {
    fn main(&mut self) {
        if self.config.files.is_empty() {
            self.problem(Problem::error("the dump names no configuration file"));
            return;
        }
        self.reading.clients.known = true;
        let level = self.file(0, Context::Main, 0);
        for &(_, directive) in &level {
            self.layout(directive);
        }
        self.blocks(&level, Context::Main, false, 0);
        for (number, file) in self.config.files.iter().enumerate() {
            if !self.reached.contains(&number) {
                let problem = Problem::error("no include of the dump leads to this file");
                self.reading.problems.push(problem.at(&file.path, 0));
                self.reading.clients.known = false;
            }
        }
    }

    fn problem(&mut self, problem: Problem) {
        self.reading.clients.known = false;
        if !self.reading.problems.contains(&problem) {
            self.reading.problems.push(problem);
        }
    }

    fn place(&self, (file, directive): Located<'_>) -> Place {
        Place { file: self.config.files.get(file).map(|file| file.path.clone()).unwrap_or_default(), line: directive.line }
    }

    fn layout(&mut self, directive: &Directive) {
        let text = |index: usize| directive.arg(index).map(Cow::into_owned);
        let layout = &mut self.reading.layout;
        match directive.name.as_str() {
            "user" => (layout.user, layout.group) = (text(0), text(1)),
            "pid" => layout.pid = directive.args.first().map(path_of),
            "worker_processes" => layout.worker_processes = text(0),
            "worker_cpu_affinity" => layout.worker_cpu_affinity = directive.args.iter().map(|word| word.text().into_owned()).collect(),
            _ => {}
        }
    }

    /// Gives a file's directives with its includes expanded.
    fn file(&mut self, number: usize, context: Context, depth: usize) -> Vec<Located<'a>> {
        self.reached.insert(number);
        let Some(file) = self.config.files.get(number) else { return Vec::new() };
        if self.open.contains(&number) {
            // NGINX would not end either; two such files that include both would take for ever.
            self.problem(Problem::error("the file includes itself").at(&file.path, 0));
            return Vec::new();
        }
        match &file.directives {
            Ok(directives) => {
                self.open.push(number);
                let level = self.level(number, directives, context, depth);
                self.open.pop();
                level
            }
            Err(error) => {
                self.problem(Problem::error(error.what).at(&file.path, error.line));
                Vec::new()
            }
        }
    }

    /// Gives the directives of one level with its includes expanded.
    fn level(&mut self, file: usize, directives: &'a [Directive], context: Context, depth: usize) -> Vec<Located<'a>> {
        let mut out = Vec::new();
        for directive in directives {
            let located = (file, directive);
            if self.visits_left == 0 || depth > DEPTH_LIMIT {
                self.problem(Problem::error("includes multiply or nest without end").at(self.place(located).file, directive.line));
                return out;
            }
            self.visits_left -= 1;
            match directive.args.first() {
                Some(pattern) if directive.name == "include" && directive.block.is_none() => {
                    for number in self.included(located, pattern, context) {
                        out.extend(self.file(number, context, depth + 1));
                    }
                }
                _ => out.push(located),
            }
        }
        out
    }

    /// Gives the numbers of the files that an `include` means.
    fn included(&mut self, located: Located<'_>, pattern: &Word, context: Context) -> Vec<usize> {
        let absolute = self.config.directory().join(OsStr::from_bytes(&pattern.bytes));
        if context == Context::Http && !self.reading.layout.http_includes.contains(&absolute) {
            self.reading.layout.http_includes.push(absolute.clone());
        }
        let key = absolute.into_os_string().into_encoded_bytes();
        let found = match self.expanded.get(&key) {
            Some(found) => found.clone(),
            None => {
                let found: Vec<usize> =
                    self.paths.iter().enumerate().filter(|(_, path)| glob::matches(&key, path)).map(|(number, _)| number).collect();
                self.expanded.insert(key.clone(), found.clone());
                found
            }
        };
        // A `geo` may include a compiled base, which is not dumped.
        if found.is_empty() && !glob::is_pattern(&key) && context != Context::Foreign {
            let place = self.place(located);
            let problem = Problem::error(format!("the included file {} is not in the dump", String::from_utf8_lossy(&key)));
            self.problem(problem.at(place.file, place.line));
        }
        found
    }

    /// Reads the passes and upstreams of one level and goes down into its blocks.
    fn blocks(&mut self, level: &[Located<'a>], context: Context, inherited_keep_conn: bool, depth: usize) {
        let inside_http = matches!(context, Context::Http | Context::Below);
        // Position does not matter: NGINX merges the levels after it has read them all.
        let keep_conn = level
            .iter()
            .filter(|(_, directive)| inside_http && directive.name == "fastcgi_keep_conn")
            .find_map(|(_, directive)| directive.arg(0))
            .map_or(inherited_keep_conn, |value| value.eq_ignore_ascii_case("on"));
        for &(file, directive) in level {
            if inside_http && directive.name == "fastcgi_pass" {
                self.pass((file, directive), keep_conn);
            }
            let Some(block) = &directive.block else { continue };
            let inner = context.of_block(&directive.name);
            self.open.push(file);
            let level = self.level(file, block, inner, depth + 1);
            if context == Context::Http && directive.name == "upstream" {
                self.upstream((file, directive), &level);
            }
            self.blocks(&level, inner, keep_conn, depth + 1);
            self.open.pop();
        }
    }

    fn pass(&mut self, located: Located<'a>, keep_conn: bool) {
        let Some(word) = located.1.args.first() else { return };
        let place = self.place(located);
        let targets = if word.bytes.contains(&b'$') {
            vec![PassTarget::Variable(word.text().into_owned())]
        } else {
            match address(&word.bytes, 0) {
                Address::Known(endpoints) => endpoints.into_iter().map(PassTarget::Endpoint).collect(),
                Address::Name => vec![PassTarget::Upstream(word.text().into_owned())],
                Address::HostName => vec![PassTarget::Variable(word.text().into_owned())],
            }
        };
        for target in targets {
            self.reading.clients.passes.push(Pass { place: place.clone(), target, keep_conn });
        }
    }

    fn upstream(&mut self, located: Located<'a>, level: &[Located<'a>]) {
        let Some(name) = located.1.arg(0).map(Cow::into_owned) else { return };
        let place = self.place(located);
        let mut block = UpstreamBlock { place, name, servers: Vec::new(), keepalive: None, keepalive_time: None, keepalive_timeout: None };
        for &(file, directive) in level {
            let value = directive.arg(0);
            match directive.name.as_str() {
                "server" => self.server(&mut block, (file, directive)),
                "keepalive" => block.keepalive = value.and_then(|value| value.parse().ok()),
                "keepalive_time" => block.keepalive_time = value.and_then(|value| time(&value)),
                "keepalive_timeout" => block.keepalive_timeout = value.and_then(|value| time(&value)),
                _ => {}
            }
        }
        self.reading.clients.upstreams.push(block);
    }

    fn server(&mut self, block: &mut UpstreamBlock, located: Located<'_>) {
        let Some(word) = located.1.args.first() else { return };
        match address(&word.bytes, DEFAULT_SERVER_PORT) {
            Address::Known(endpoints) => block.servers.extend(endpoints),
            Address::HostName | Address::Name => {
                self.named_servers.push((block.name.clone(), self.place(located), word.text().into_owned()));
            }
        }
    }

    fn finish(mut self) -> Reading {
        let clients = &mut self.reading.clients;
        let mut passes: Vec<Pass> = Vec::with_capacity(clients.passes.len());
        let mut seen = HashSet::new();
        // A snippet included by many vhosts says the same many times.
        for pass in clients.passes.drain(..) {
            if seen.insert(pass.clone()) {
                passes.push(pass);
            }
        }
        let mut behind_names = Vec::new();
        for pass in &passes {
            let PassTarget::Upstream(wanted) = &pass.target else { continue };
            for (_, place, text) in self.named_servers.iter().filter(|(name, ..)| name.eq_ignore_ascii_case(wanted)) {
                let target = PassTarget::Variable(text.clone());
                behind_names.push(Pass { place: place.clone(), target, keep_conn: pass.keep_conn });
            }
        }
        passes.extend(behind_names.into_iter().filter(|pass| seen.insert(pass.clone())));
        clients.passes = passes;
        self.reading
    }
}

/// The port of a `server` that names none. Source: nginx `ngx_http_upstream.c` `ngx_http_upstream_server`.
const DEFAULT_SERVER_PORT: u16 = 80;

fn path_of(word: &Word) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(&word.bytes))
}

#[cfg(test)]
mod tests;
