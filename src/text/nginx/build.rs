//! What an NGINX binary says of itself (`nginx -V`) and so can do.
//!
//! Source: the change list of nginx for the versions; `nginx -V` of 1.22.1.

use std::path::PathBuf;

use crate::model::clients::Clients;
use crate::model::host::Version;

/// An NGINX binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    /// The version of NGINX it is made from; `None` where a fork does not say.
    pub version: Option<Version>,
    /// `--prefix`: where relative paths start.
    pub prefix: PathBuf,
    /// `--conf-path`, as configured.
    pub config: Option<PathBuf>,
    /// `--pid-path`, as configured.
    pub pid: Option<PathBuf>,
    /// The modules it was built without, such as `http_upstream_zone`.
    pub without: Vec<String>,
}

/// Where NGINX goes when nothing is configured. Source: nginx `auto/options`.
const DEFAULT_PREFIX: &str = "/usr/local/nginx";

impl Build {
    /// Reads the output of `nginx -V` (which NGINX writes to its standard error).
    pub fn parse(text: &str) -> Self {
        let mut build = Self { version: version(text), prefix: DEFAULT_PREFIX.into(), config: None, pid: None, without: Vec::new() };
        let arguments = text.lines().find_map(|line| line.strip_prefix("configure arguments:")).unwrap_or_default();
        for argument in arguments.split_whitespace() {
            let Some((key, value)) = argument.split_once('=') else {
                build.without.extend(argument.strip_prefix("--without-").map(|name| name.trim_end_matches("_module").to_owned()));
                continue;
            };
            match key {
                "--prefix" => build.prefix = value.into(),
                "--conf-path" => build.config = Some(value.into()),
                "--pid-path" => build.pid = Some(value.into()),
                _ => {}
            }
        }
        build
    }

    /// Makes a build of stock NGINX in this version, with every module.
    pub fn of_version(version: Version) -> Self {
        Self { version: Some(version), prefix: DEFAULT_PREFIX.into(), config: None, pid: None, without: Vec::new() }
    }

    fn has(&self, since: Version, module: &str) -> bool {
        self.version.is_some_and(|version| version >= since) && !self.without.iter().any(|name| name == module)
    }

    /// Tells whether an upstream may have a `zone` (1.9.0).
    pub fn zone(&self) -> bool {
        self.has(Version(1, 9, 0), "http_upstream_zone")
    }

    /// Tells whether an upstream may say `least_conn` (1.3.1).
    pub fn least_conn(&self) -> bool {
        self.has(Version(1, 3, 1), "http_upstream_least_conn")
    }

    /// Tells whether an upstream may say `random two least_conn` (1.15.1).
    pub fn random(&self) -> bool {
        self.has(Version(1, 15, 1), "http_upstream_random")
    }

    /// Tells whether keep-alive can be had safely: `keepalive_time` came in 1.19.10, and without it P25 does not hold.
    pub fn keepalive_time(&self) -> bool {
        self.has(Version(1, 19, 10), "http_upstream_keepalive")
    }

    /// Tells whether an upstream keeps connections unless told otherwise (1.29.7).
    pub fn keeps_by_default(&self) -> bool {
        self.has(Version(1, 29, 7), "http_upstream_keepalive")
    }
}

/// How many connections an upstream keeps unless told otherwise. Source: nginx change list, 1.29.7.
const KEPT_BY_DEFAULT: u32 = 32;

impl Build {
    /// Fills in what this NGINX does where its configuration says nothing.
    pub fn fill_in(&self, clients: &mut Clients) {
        if self.keeps_by_default() {
            for upstream in &mut clients.upstreams {
                upstream.keepalive.get_or_insert(KEPT_BY_DEFAULT);
            }
        }
    }
}

/// Finds the version of NGINX proper. OpenResty counts in four numbers, the first three NGINX's; other forks count on their own.
fn version(text: &str) -> Option<Version> {
    ["nginx version: nginx/", "nginx version: openresty/", "nginx version: freenginx/", "freenginx version: freenginx/"]
        .iter()
        .find_map(|start| text.lines().find_map(|line| line.trim().strip_prefix(start)))
        .and_then(|rest| {
            let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
            let mut number = || numbers.next()?.ok();
            Some(Version(number()?, number()?, number()?))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::clients::UpstreamBlock;
    use crate::model::problem::Place;

    #[test]
    fn a_build_is_read_from_what_it_prints() {
        let build = Build::parse(
            "nginx version: nginx/1.22.1\nbuilt with OpenSSL 3.0\nTLS SNI support enabled\n\
             configure arguments: --with-cc-opt='-g -O2 -fPIC' --prefix=/usr/share/nginx --conf-path=/etc/nginx/nginx.conf \
             --pid-path=/run/nginx.pid --without-http_upstream_random_module --with-threads\n",
        );
        assert_eq!(build.version, Some(Version(1, 22, 1)));
        assert_eq!(build.prefix, PathBuf::from("/usr/share/nginx"));
        assert_eq!(build.config, Some(PathBuf::from("/etc/nginx/nginx.conf")));
        assert_eq!(build.pid, Some(PathBuf::from("/run/nginx.pid")));
        assert_eq!(build.without, ["http_upstream_random"]);
        assert!(build.zone() && build.least_conn() && build.keepalive_time() && !build.random() && !build.keeps_by_default());
    }

    #[test]
    fn an_upstream_that_says_nothing_keeps_connections_since_1_29_7() {
        let block = |keepalive| UpstreamBlock {
            place: Place { file: PathBuf::from("/x"), line: 1 },
            name: "php".to_owned(),
            servers: Vec::new(),
            keepalive,
            keepalive_time: None,
            keepalive_timeout: None,
        };
        for (version, kept) in [(Version(1, 29, 6), [None, Some(0)]), (Version(1, 29, 7), [Some(32), Some(0)])] {
            let mut clients = Clients { known: true, passes: Vec::new(), upstreams: vec![block(None), block(Some(0))] };
            Build::of_version(version).fill_in(&mut clients);
            assert_eq!(clients.upstreams.iter().map(|upstream| upstream.keepalive).collect::<Vec<_>>(), kept, "{version}");
        }
    }

    #[test]
    fn forks_are_told_apart() {
        for (text, version) in [
            ("nginx version: openresty/1.21.4.1", Some(Version(1, 21, 4))),
            ("Tengine version: Tengine/3.1.0\nnginx version: nginx/1.24.0", Some(Version(1, 24, 0))),
            ("freenginx version: freenginx/1.27.4", Some(Version(1, 27, 4))),
            ("Angie version: Angie/1.8.1", None),
            ("nginx version: nginx/1.29.7 (Ubuntu)", Some(Version(1, 29, 7))),
            ("", None),
            ("nginx version: nginx/1", None),
        ] {
            assert_eq!(Build::parse(text).version, version, "{text}");
        }
    }
}
