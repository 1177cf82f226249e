//! What is known of a pool's clients: the places in NGINX's configuration that pass requests to php-fpm.

use std::time::Duration;

use super::endpoint::Endpoint;
use super::problem::Place;

/// Where a `fastcgi_pass` points.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PassTarget {
    /// A socket or address.
    Endpoint(Endpoint),
    /// An upstream, by the name as written.
    Upstream(String),
    /// Something only known at run time: a text with a variable.
    Variable(String),
}

/// One `fastcgi_pass`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pass {
    /// Where it is written.
    pub place: Place,
    /// Where it points.
    pub target: PassTarget,
    /// Whether `fastcgi_keep_conn on` holds there.
    pub keep_conn: bool,
}

/// One `upstream` block.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UpstreamBlock {
    /// Where it is written.
    pub place: Place,
    /// Its name as written; NGINX compares names without case.
    pub name: String,
    /// Its servers that are sockets or numeric addresses.
    pub servers: Vec<Endpoint>,
    /// `keepalive N`, where set.
    pub keepalive: Option<u32>,
    /// `keepalive_time`, where set (P25 needs it short).
    pub keepalive_time: Option<Duration>,
    /// `keepalive_timeout`, where set.
    pub keepalive_timeout: Option<Duration>,
}

/// What NGINX's configuration says of php-fpm.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Clients {
    /// Whether the configuration could be read whole; otherwise every pool may have unknown clients.
    pub known: bool,
    /// Every `fastcgi_pass`.
    pub passes: Vec<Pass>,
    /// Every `upstream`.
    pub upstreams: Vec<UpstreamBlock>,
}
