//! What each pool's `listen` means on this host: where, for whom.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};

use crate::model::endpoint::Endpoint;
use crate::model::host::ResolvedListen;
use crate::model::ids::PoolName;
use crate::model::pool::{Pool, PoolFiles, Quarantined};
use crate::model::problem::Problem;
use crate::sys::directory;
use crate::sys::proc::Proc;
use crate::sys::users;

/// Resolves every pool's listen; pools for which that fails are kept out, each with its reason.
pub(super) fn resolve_all(files: &PoolFiles, prefix: &Path) -> (BTreeMap<PoolName, ResolvedListen>, Vec<Quarantined>) {
    let (mut listens, mut bad) = (BTreeMap::new(), Vec::new());
    for pool in &files.pools {
        match resolve(pool, prefix) {
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

fn resolve(pool: &Pool, prefix: &Path) -> Result<ResolvedListen, Problem> {
    let endpoint = endpoint(pool, prefix)?;
    let access = users::access(&pool.listen_names).map_err(|errors| {
        let texts: Vec<String> = errors.iter().map(|error| super::chain(error)).collect();
        Problem::error(texts.join("; ")).remedy("name users and groups that exist on this host")
    })?;
    let mounted_as = endpoint.path().and_then(|path| Proc::default().socket_mounted_elsewhere(path).ok().flatten());
    Ok(ResolvedListen { endpoint, access, mounted_as })
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
    directory::resolve(&path)
        .map(Endpoint::Unix)
        .map_err(|error| Problem::error(format!("listen = {text}: {}", super::chain(&error))).remedy("make the directory, owned by root"))
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
