//! Binding TCP sockets that can share their address.

use std::net::SocketAddr;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use super::holder::Holder;
use super::unix::BindError;
use super::{Listener, Place, inode_of, listen};

/// Whether a TCP listener is to be alone on its address so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joining {
    /// Nobody may listen there yet, not even somebody who would share the address.
    First,
    /// Other listeners of ours are there.
    Further,
}

/// Tells whether somebody listens on the address or one that takes its connections, too.
pub(super) fn is_taken(address: SocketAddr) -> bool {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let Ok(socket) = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP)) else { return false };
    let shared = sockopt::set_socket_reuseaddr(&socket, true);
    let both = if address.is_ipv6() { sockopt::set_ipv6_v6only(&socket, false) } else { Ok(()) };
    shared.is_ok() && both.is_ok() && rustix::net::bind(&socket, &address) == Err(Errno::ADDRINUSE)
}

/// Binds a TCP socket and listens, with `SO_REUSEADDR` and `SO_REUSEPORT`, so that further ones can join it (P27).
///
/// `[::]` takes IPv4 connections too, as it does for php-fpm. The socket is a member of its reuseport group at once, and
/// gets connections unless a program steers them elsewhere.
///
/// # Errors
/// When the address is taken, not of this host, or a step fails.
pub fn bind_tcp(address: SocketAddr, backlog_connections: u32, joining: Joining) -> Result<Listener, BindError> {
    let step = |step, source: Errno| BindError::step(step, address.to_string(), source);
    let bind = |sharing: bool| {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))
            .map_err(|source| step("make a socket for", source))?;
        sockopt::set_socket_reuseaddr(&socket, true).map_err(|source| step("share", source))?;
        if sharing {
            sockopt::set_socket_reuseport(&socket, true).map_err(|source| step("share", source))?;
        }
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, false).map_err(|source| step("open to IPv4", source))?;
        }
        match rustix::net::bind(&socket, &address) {
            Ok(()) => Ok(socket),
            Err(Errno::ADDRINUSE) => Err(BindError::AddressInUse { address, holder: Holder::of_tcp(address) }),
            Err(source) => Err(step("bind", source)),
        }
    };
    if joining == Joining::First {
        // Without SO_REUSEPORT the kernel refuses an address on which anybody listens, even one willing to share it.
        drop(bind(false)?);
    }
    let socket = bind(true)?;
    listen(&socket, backlog_connections).map_err(|source| BindError::step("listen on", address.to_string(), source))?;
    let inode = inode_of(&socket).map_err(|source| BindError::step("look at", address.to_string(), source))?;
    let name = rustix::net::getsockname(&socket).map_err(|source| step("look at", source))?;
    let address = SocketAddr::try_from(name).map_err(|source| step("look at", source))?;
    Ok(Listener { fd: Arc::new(socket), inode, bound: address.to_string(), place: Place::Tcp { address } })
}
