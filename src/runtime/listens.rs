//! What each pool's `listen` means on this host: where, for whom.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};

use crate::model::endpoint::Endpoint;
use crate::model::host::ResolvedListen;
use crate::model::ids::PoolName;
use crate::model::listen::Access;
use crate::model::pool::{ListenNames, Pool, PoolFiles, Quarantined};
use crate::model::problem::Problem;
use crate::sys::directory::{self, Batch, DirectoryError};
use crate::sys::proc::{Mounts, Proc};
use crate::sys::users::{self, UserError};

/// Resolves every pool's listen; pools for which that fails are kept out, each with its reason.
pub(super) fn resolve_all(files: &PoolFiles, prefix: &Path) -> (BTreeMap<PoolName, ResolvedListen>, Vec<Quarantined>) {
    let (mut listens, mut bad) = (BTreeMap::new(), Vec::new());
    let mut host = HostView { mounts: Proc::default().mounts().ok(), names: HashMap::new() };
    let _batch = Batch::begin();
    for pool in &files.pools {
        match resolve(pool, prefix, &mut host) {
            Ok(resolved) => {
                listens.insert(pool.name.clone(), resolved);
            }
            Err(problem) => {
                let origin = pool.listen_origin.as_ref().unwrap_or(&pool.origin);
                let problem = problem.at(origin.file.as_path(), origin.line);
                bad.push(Quarantined { pool: pool.name.clone(), problem });
            }
        }
    }
    (listens, bad)
}

/// What a thousand pools ask the host for, asked once.
struct HostView {
    mounts: Option<Mounts>,
    /// Who may connect, by the names of owner, group and the rest: most pools have the same.
    names: HashMap<ListenNames, Access>,
}

impl HostView {
    fn access(&mut self, names: &ListenNames) -> Result<Access, Vec<UserError>> {
        if let Some(known) = self.names.get(names) {
            return Ok(known.clone());
        }
        let access = users::access(names)?;
        self.names.insert(names.clone(), access.clone());
        Ok(access)
    }
}

fn resolve(pool: &Pool, prefix: &Path, host: &mut HostView) -> Result<ResolvedListen, Problem> {
    let endpoint = endpoint(pool, prefix)?;
    let access = host.access(&pool.listen_names).map_err(|errors| {
        let texts: Vec<String> = errors.iter().map(|error| super::chain(error)).collect();
        Problem::error(texts.join("; ")).remedy("name users and groups that exist on this host")
    })?;
    let mounted_as = endpoint.path().and_then(|path| Some(host.mounts.as_ref()?.of_file(path)?.to_owned()));
    Ok(ResolvedListen { endpoint, access, mounted_as, only_one: false })
}

/// Reads a listen as php-fpm does: digits alone or a colon anywhere mean TCP, all else is a path.
/// Source: php-src fpm_sockets.c `fpm_sockets_domain_from_address`.
fn endpoint(pool: &Pool, prefix: &Path) -> Result<Endpoint, Problem> {
    let text = pool.listen.as_str();
    if text.contains(':') || (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())) {
        return tcp(text).map(Endpoint::Tcp);
    }
    let base = pool.prefix.as_deref().unwrap_or(prefix);
    let path = if text.starts_with('/') { PathBuf::from(text) } else { base.join(text) };
    directory::resolve(&path).map(Endpoint::Unix).map_err(|error| unusable(&path, text, &error))
}

/// Tells why a socket cannot be at `path`, with the command that mends it.
fn unusable(path: &Path, text: &str, error: &DirectoryError) -> Problem {
    let parent = path.parent().unwrap_or(Path::new("/"));
    if !error.is_missing() {
        let remedy = "name a path whose directories belong to root, with no links that others could change";
        return Problem::error(format!("listen = {text}: {}", super::chain(error))).remedy(remedy);
    }
    let shown = parent.display();
    // What is made by hand below /run is gone after the next boot.
    let lasting = if parent.starts_with("/run") || parent.starts_with("/var/run") {
        format!("; and, since /run is empty after a boot, the line 'd {shown} 0755 root root -' in /etc/tmpfiles.d/polyfpm.conf")
    } else {
        String::new()
    };
    Problem::error(format!("listen = {text}: the directory {shown} does not exist"))
        .remedy(format!("make it: install -d -o root -g root -m 755 {shown}{lasting}"))
}

fn tcp(text: &str) -> Result<SocketAddr, Problem> {
    let wrong = || Problem::error(format!("listen = {text} names no address")).remedy("write ADDRESS:PORT or [ADDRESS]:PORT with numbers");
    let Some((host, port)) = text.rsplit_once(':') else {
        let port: u16 = text.parse().map_err(|_| wrong())?;
        return Ok(SocketAddr::new(any_address(), port));
    };
    let port: u16 = port.parse().map_err(|_| wrong())?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() || host == "*" {
        return Ok(SocketAddr::new(any_address(), port));
    }
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let mut found = (host, port).to_socket_addrs().map_err(|_| wrong())?;
    found.next().ok_or_else(wrong)
}

/// Gives the address php-fpm takes for a bare port: IPv6's any, which takes IPv4 too, where the host has IPv6.
fn any_address() -> IpAddr {
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() { Ipv6Addr::UNSPECIFIED.into() } else { std::net::Ipv4Addr::UNSPECIFIED.into() }
}
