//! The addresses and times that NGINX's directives take.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::model::endpoint::Endpoint;

/// What an address text means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    /// Sockets and numeric addresses; `localhost` is two of them.
    Known(Vec<Endpoint>),
    /// A host name with a port: only a resolver knows where it leads.
    HostName,
    /// A bare word: an upstream's name where one is allowed.
    Name,
}

/// Reads the address of a `server` or `fastcgi_pass`. Port 0 in `default_port` means that a port must be written.
///
/// The path after `unix:` goes on to the end, colons included: only `proxy_pass` takes a URI after one.
/// Source: nginx `ngx_inet.c` `ngx_parse_unix_domain_url` without `uri_part`; a colon was checked with 1.22.1.
pub(super) fn address(word: &[u8], default_port: u16) -> Address {
    if let Some((scheme, path)) = word.split_at_checked(5)
        && scheme.eq_ignore_ascii_case(b"unix:")
    {
        return Address::Known(vec![Endpoint::Unix(PathBuf::from(OsStr::from_bytes(path)))]);
    }
    let Ok(text) = std::str::from_utf8(word) else { return Address::Name };
    if let Ok(address) = text.parse::<SocketAddr>() {
        return tcp([address.ip()], address.port());
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && !text.ends_with(']') => (host, port.parse::<u16>().ok()),
        _ => (text, (default_port != 0).then_some(default_port)),
    };
    let Some(port) = port else { return if text.contains(':') { Address::HostName } else { Address::Name } };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return tcp([ip], port);
    }
    if host.eq_ignore_ascii_case("localhost") {
        return tcp([Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()], port);
    }
    Address::HostName
}

fn tcp(ips: impl IntoIterator<Item = IpAddr>, port: u16) -> Address {
    Address::Known(ips.into_iter().map(|ip| Endpoint::Tcp(SocketAddr::new(ip, port))).collect())
}

/// Reads a time such as `2s`, `1m30s`, `500ms`; a bare number is seconds. `None` for what NGINX refuses.
pub(super) fn time(text: &str) -> Option<Duration> {
    let mut total: Option<Duration> = None;
    let mut rest = text.trim();
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at_checked(digits)?;
        let number: u64 = number.parse().ok()?;
        let letters = after.len() - after.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let (unit, after) = after.split_at_checked(letters)?;
        let unit_ms: u64 = match unit {
            "ms" => 1,
            "" | "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            "M" => 30 * 86_400_000,
            "y" => 365 * 86_400_000,
            _ => return None,
        };
        total = Some(total.unwrap_or_default().saturating_add(Duration::from_millis(number.saturating_mul(unit_ms))));
        rest = after.trim_start();
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(word: &str, default_port: u16) -> String {
        match address(word.as_bytes(), default_port) {
            Address::Known(endpoints) => endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            Address::HostName => "host name".to_owned(),
            Address::Name => "name".to_owned(),
        }
    }

    #[test]
    fn addresses_are_read_as_nginx_reads_them() {
        for (word, expected) in [
            ("unix:/run/php/www.sock", "/run/php/www.sock"),
            ("UNIX:/run/a", "/run/a"),
            ("unix:/run/a:b", "/run/a:b"),
            ("127.0.0.1:9000", "127.0.0.1:9000"),
            ("[::1]:9000", "[::1]:9000"),
            ("localhost:9000", "127.0.0.1:9000 [::1]:9000"),
            ("LOCALHOST:9000", "127.0.0.1:9000 [::1]:9000"),
            ("php:9000", "host name"),
            ("php:x", "host name"),
            ("php", "name"),
            ("", "name"),
        ] {
            assert_eq!(shown(word, 0), expected, "{word}");
        }
        assert_eq!(shown("127.0.0.1", 80), "127.0.0.1:80");
        assert_eq!(shown("[::1]", 80), "[::1]:80");
        assert_eq!(shown("php", 80), "host name");
    }

    #[test]
    fn times_are_read_as_nginx_reads_them() {
        for (text, ms) in [("2s", 2_000), ("2", 2_000), ("1m30s", 90_000), ("1m 30", 90_000), ("500ms", 500), ("1h", 3_600_000)] {
            assert_eq!(time(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "2x", "-1", "99999999999999999999s", "é"] {
            assert_eq!(time(text), None, "{text}");
        }
    }
}
