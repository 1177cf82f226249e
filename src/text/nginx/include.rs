//! The generated include: one `upstream` per pool.
//!
//! Everything in it is either needed or left out: the text changes, and so NGINX is reloaded, only when something changes for NGINX.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use super::build::Build;
use super::syntax::parse;
use crate::model::endpoint::{Endpoint, UNIX_PATH_LIMIT_BYTES};
use crate::model::ids::{InstanceName, PoolName};
use crate::model::plan::UpstreamServer;
use crate::model::settings::Balance;

/// What the include is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncludeInput {
    /// The instance it belongs to.
    pub instance: InstanceName,
    /// The NGINX that will read it.
    pub build: Build,
    /// The host's page size: NGINX refuses a zone smaller than 8 pages.
    pub page_bytes: usize,
    /// How shards are chosen.
    pub balance: Balance,
    /// The upstreams, in the order they are written.
    pub upstreams: Vec<IncludeUpstream>,
}

/// One upstream to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncludeUpstream {
    /// Its name (see [`upstream_names`](super::upstream_names)).
    pub name: String,
    /// The pool it leads to.
    pub pool: PoolName,
    /// Its servers.
    pub servers: Vec<UpstreamServer>,
    /// Idle connections per NGINX worker (see [`keepalive_for`](super::keepalive_for)); left out where NGINX is too old for it.
    pub keepalive: u32,
}

/// The include, and what could not be written into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The file's text.
    pub text: String,
    /// The upstreams that are missing from it.
    pub refused: Vec<RefusedUpstream>,
}

/// An upstream that could not be written. The others are not held up by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedUpstream {
    /// Its pool.
    pub pool: PoolName,
    /// Why.
    pub error: UnwritableError,
}

/// Says why something cannot be written into NGINX's configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnwritableError {
    /// The name has characters that would need quotes, or is empty.
    #[error("upstream name '{0}' has characters other than letters, digits, '_', '-' and '.'")]
    Name(String),
    /// Another upstream of the include has the name.
    #[error("upstream name '{0}' is used twice: NGINX compares names without case")]
    Twice(String),
    /// No server: NGINX refuses an empty upstream.
    #[error("upstream '{0}' has no server")]
    Empty(String),
    /// A path with control characters, or that is no UTF-8.
    #[error("socket path {0:?} has characters that are not written into a configuration")]
    Characters(String),
    /// A path that is not absolute.
    #[error("socket path '{0}' is not absolute")]
    Relative(String),
    /// A path longer than a socket address holds.
    #[error("socket path '{0}' is longer than {UNIX_PATH_LIMIT_BYTES} bytes")]
    Long(String),
    /// An address with a scope, which NGINX cannot read.
    #[error("address '{0}' has a scope")]
    Scope(String),
}

/// An upstream as it stands in an include.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptUpstream {
    /// Its name.
    pub name: String,
    /// The whole block as written.
    pub block: String,
}

/// Writes the include.
pub fn render_include(input: &IncludeInput) -> Rendered {
    let mut taken = BTreeSet::new();
    let mut refused = Vec::new();
    let mut blocks = String::new();
    let mut used = Used::default();
    for upstream in &input.upstreams {
        match block(input, upstream, &mut used) {
            Ok(_) if !taken.insert(upstream.name.to_ascii_lowercase()) => {
                refused.push(RefusedUpstream { pool: upstream.pool.clone(), error: UnwritableError::Twice(upstream.name.clone()) });
            }
            Ok(block) => blocks.push_str(&block),
            Err(error) => refused.push(RefusedUpstream { pool: upstream.pool.clone(), error }),
        }
    }
    Rendered { text: format!("{}{blocks}", header(&input.instance, used)), refused }
}

/// Adds upstreams that something still refers to, though no pool is behind them any more (S11).
pub fn with_kept(text: &str, kept: &[KeptUpstream]) -> String {
    let mut out = text.to_owned();
    if !kept.is_empty() {
        out.push_str("\n# Kept although no pool has this name any more: NGINX would not start while something refers to it.\n");
    }
    for upstream in kept {
        out.push_str(&upstream.block);
        out.push('\n');
    }
    out
}

/// Gives the upstreams of an include; none of a text that is no configuration.
pub fn upstreams_of(include: &str) -> Vec<KeptUpstream> {
    let directives = parse(include.as_bytes()).unwrap_or_default();
    let upstreams = directives.iter().filter(|directive| directive.name == "upstream");
    upstreams
        .filter_map(|directive| {
            let block = include.get(directive.span.clone())?.to_owned();
            Some(KeptUpstream { name: directive.arg(0)?.into_owned(), block })
        })
        .collect()
}

/// Makes an upstream with one server, for a name that must go on existing.
///
/// # Errors
/// Fails for a name or endpoint that cannot be written.
pub fn kept_upstream(name: &str, endpoint: &Endpoint) -> Result<KeptUpstream, UnwritableError> {
    let name = plain_name(name)?;
    let block = format!("upstream {name} {{\n    server {} max_fails=0;\n}}", server_word(endpoint)?);
    Ok(KeptUpstream { name: name.to_owned(), block })
}

/// Which kinds of lines are in the include, so that the header explains those and no others.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    weight: bool,
    zone: bool,
    method: Option<&'static str>,
    keepalive: Option<KeepaliveLines>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeepaliveLines {
    Off,
    On,
}

fn header(instance: &InstanceName, used: Used) -> String {
    let mut lines = vec![
        format!("Generated by polyfpm for the instance {}: do not edit, polyfpm writes it again.", comment(instance.as_str())),
        "One upstream for each pool. Requests reach a pool's shards by: fastcgi_pass NAME;".to_owned(),
        String::new(),
        "server        where shards of the pool listen".to_owned(),
    ];
    let mut explain = |text: &str| lines.push(text.to_owned());
    if used.weight {
        explain("weight        the shards' numbers of workers, in proportion");
    }
    explain("max_fails=0   a full queue is not a dead shard; polyfpm watches the shards and replaces what is down");
    if used.zone {
        explain("zone          all NGINX workers count together");
    }
    match used.method {
        Some("least_conn") => explain("least_conn    the shard with the fewest requests under way"),
        Some(_) => explain("random        two shards at random, of these the one with fewer requests under way"),
        None => {}
    }
    match used.keepalive {
        Some(KeepaliveLines::On) => {
            explain("keepalive     idle connections of each NGINX worker; each occupies a php-fpm worker, at most half of a shard's");
            explain("              the short times make NGINX close connections itself, so that no restart of a shard loses a request");
        }
        Some(KeepaliveLines::Off) => explain("keepalive 0   this NGINX keeps connections otherwise, and each occupies a php-fpm worker"),
        None => {}
    }
    lines.iter().map(|line| format!("# {line}").trim_end().to_owned() + "\n").collect()
}

fn block(input: &IncludeInput, upstream: &IncludeUpstream, used: &mut Used) -> Result<String, UnwritableError> {
    let name = plain_name(&upstream.name)?;
    if upstream.servers.is_empty() {
        return Err(UnwritableError::Empty(name.to_owned()));
    }
    let mut lines = Vec::new();
    let mut uses = *used;
    // A single server is not chosen, so nothing need be counted.
    if upstream.servers.len() > 1 {
        if input.build.zone() {
            lines.push(format!("zone {name} {}k", zone_kib(upstream.servers.len(), input.page_bytes)));
            uses.zone = true;
        }
        if let Some((method, words)) = method(input) {
            lines.push(words.to_owned());
            uses.method = Some(method);
        }
    }
    let weights = weights(&upstream.servers);
    for (server, weight) in upstream.servers.iter().zip(&weights) {
        let weight_word = if *weight == 1 { String::new() } else { format!(" weight={weight}") };
        lines.push(format!("server {}{weight_word} max_fails=0", server_word(&server.endpoint)?));
        uses.weight |= *weight != 1;
    }
    // After the method: before 1.29.7 NGINX warns about the other order.
    if upstream.keepalive > 0 && input.build.keepalive_time() {
        lines.push(format!("keepalive {}", upstream.keepalive));
        lines.push("keepalive_time 2s".to_owned());
        lines.push("keepalive_timeout 1s".to_owned());
        uses.keepalive = Some(KeepaliveLines::On);
    } else if input.build.keeps_by_default() {
        lines.push("keepalive 0".to_owned());
        uses.keepalive.get_or_insert(KeepaliveLines::Off);
    }
    *used = uses;
    let mut out = format!("\n# pool {}\nupstream {name} {{\n", comment(upstream.pool.as_str()));
    for line in lines {
        // Writing to a String cannot fail.
        let _written = writeln!(out, "    {line};");
    }
    out.push_str("}\n");
    Ok(out)
}

/// Gives the balance method's word and line; `None` is round-robin, which NGINX does unless told otherwise.
fn method(input: &IncludeInput) -> Option<(&'static str, &'static str)> {
    match input.balance {
        Balance::Random if input.build.random() => Some(("random", "random two least_conn")),
        Balance::LeastConn | Balance::Random if input.build.least_conn() => Some(("least_conn", "least_conn")),
        Balance::RoundRobin | Balance::Affine | Balance::LeastConn | Balance::Random => None,
    }
}

/// Gives each server's weight: its workers, divided by what all have in common, so that equal shards need none.
fn weights(servers: &[UpstreamServer]) -> Vec<u32> {
    let workers: Vec<u32> = servers.iter().map(|server| server.workers.max(1)).collect();
    let common = workers.iter().copied().reduce(greatest_common_divisor).unwrap_or(1);
    workers.into_iter().map(|workers| workers / common).collect()
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// 64 KiB hold about 90 servers (about 640 bytes each in the slab's classes); the rest grows with 2 KiB for each server beyond 16.
/// Sixteen pages: NGINX takes no fewer than eight, and some hosts have pages of 64 KiB.
fn zone_kib(servers: usize, page_bytes: usize) -> usize {
    let pages = page_bytes.saturating_mul(16) / 1024;
    pages.max(64).saturating_add(servers.saturating_sub(16).saturating_mul(2))
}

fn plain_name(name: &str) -> Result<&str, UnwritableError> {
    let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
    if plain { Ok(name) } else { Err(UnwritableError::Name(name.to_owned())) }
}

/// Gives the address as one word, quoted where it must be.
fn server_word(endpoint: &Endpoint) -> Result<String, UnwritableError> {
    let path = match endpoint {
        Endpoint::Tcp(std::net::SocketAddr::V6(address)) if address.scope_id() != 0 => {
            return Err(UnwritableError::Scope(address.to_string()));
        }
        Endpoint::Tcp(address) => return Ok(address.to_string()),
        Endpoint::Unix(path) => socket_path(path)?,
    };
    // A colon is part of the path: checked with nginx 1.22.1, and only `proxy_pass` ends a path there.
    if path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-@:+,=%~".contains(&byte)) {
        return Ok(format!("unix:{path}"));
    }
    Ok(format!("\"unix:{}\"", path.replace('\\', "\\\\").replace('"', "\\\"")))
}

fn socket_path(path: &Path) -> Result<&str, UnwritableError> {
    let shown = || path.display().to_string();
    let text = path.to_str().ok_or_else(|| UnwritableError::Characters(shown()))?;
    if text.chars().any(char::is_control) {
        return Err(UnwritableError::Characters(shown()));
    }
    if !path.is_absolute() {
        return Err(UnwritableError::Relative(shown()));
    }
    if text.len() > UNIX_PATH_LIMIT_BYTES {
        return Err(UnwritableError::Long(shown()));
    }
    Ok(text)
}

/// Makes a text safe to stand in a comment, which ends with its line.
fn comment(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
}

#[cfg(test)]
mod tests;
