//! Users and groups by name or number.
//!
//! Names go through the system's name service, so that users of LDAP and the like are found. What a pool file's
//! `listen.owner` and its kin mean follows php-fpm to the letter: a numeric owner leaves the group alone, an owner's name
//! brings the user's own group along, and access lists take names only.
//!
//! Source: php-src `fpm_unix.c`, `fpm_unix_resolve_socket_permissions`; checked with 8.2 by this module's tests.

use std::io;

use nix::unistd::{Group, User};

use crate::model::listen::Access;
use crate::model::pool::ListenNames;

/// php-fpm's own mode for sockets of pools that set none.
const DEFAULT_MODE: u32 = 0o660;

/// Says which user or group cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// There is no such user.
    #[error("no user '{name}' on this host")]
    NoUser {
        /// The name as written.
        name: String,
    },
    /// There is no such group.
    #[error("no group '{name}' on this host")]
    NoGroup {
        /// The name as written.
        name: String,
    },
    /// The name service failed.
    #[error("look up '{name}'")]
    Lookup {
        /// The name as written.
        name: String,
        /// What it said.
        source: io::Error,
    },
}

/// A user by numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    /// The user.
    pub uid: u32,
    /// The user's own group; `None` for a user given by number, who need not exist.
    pub gid: Option<u32>,
}

/// Gives the user called `name`, or with that number.
///
/// # Errors
/// When there is none, or the name service fails.
pub fn user(name: &str) -> Result<Account, UserError> {
    match number(name) {
        Some(uid) => Ok(Account { uid, gid: None }),
        None => named_user(name),
    }
}

/// Gives the gid of the group called `name`, or with that number.
///
/// # Errors
/// When there is none, or the name service fails.
pub fn group(name: &str) -> Result<u32, UserError> {
    number(name).map_or_else(|| named_group(name), Ok)
}

/// Gives who may connect to a pool's socket, with every name resolved.
///
/// # Errors
/// All names that cannot be resolved.
pub fn access(names: &ListenNames) -> Result<Access, Vec<UserError>> {
    let mut errors = Vec::new();
    let mut access = Access { mode: names.mode.unwrap_or(DEFAULT_MODE), ..Access::default() };
    for name in &names.acl_users {
        named_user(name).map(|account| access.acl_uids.push(account.uid)).unwrap_or_else(|error| errors.push(error));
    }
    for name in &names.acl_groups {
        named_group(name).map(|gid| access.acl_gids.push(gid)).unwrap_or_else(|error| errors.push(error));
    }
    // With an access list php-fpm does not look at owner and group at all.
    if names.acl_users.is_empty() && names.acl_groups.is_empty() {
        if let Some(owner) = names.owner.as_deref().filter(|name| !name.is_empty()) {
            let found = user(owner).map(|account| (access.uid, access.gid) = (Some(account.uid), account.gid));
            found.unwrap_or_else(|error| errors.push(error));
        }
        if let Some(name) = names.group.as_deref().filter(|name| !name.is_empty()) {
            group(name).map(|gid| access.gid = Some(gid)).unwrap_or_else(|error| errors.push(error));
        }
    }
    if errors.is_empty() { Ok(access) } else { Err(errors) }
}

fn number(name: &str) -> Option<u32> {
    name.bytes().all(|byte| byte.is_ascii_digit()).then(|| name.parse().ok())?
}

fn named_user(name: &str) -> Result<Account, UserError> {
    match User::from_name(name) {
        Ok(Some(user)) => Ok(Account { uid: user.uid.as_raw(), gid: Some(user.gid.as_raw()) }),
        Ok(None) => Err(UserError::NoUser { name: name.to_owned() }),
        Err(source) => Err(UserError::Lookup { name: name.to_owned(), source: source.into() }),
    }
}

fn named_group(name: &str) -> Result<u32, UserError> {
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(UserError::NoGroup { name: name.to_owned() }),
        Err(source) => Err(UserError::Lookup { name: name.to_owned(), source: source.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::children::{Children, Subreaper};
    use crate::sys::spawn::Command;
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::time::Duration;

    const FPM: &str = "/usr/sbin/php-fpm8.2";

    fn names(lines: &[(&str, &str)]) -> ListenNames {
        let mut names = ListenNames::default();
        let list = |value: &str| value.split(',').map(str::to_owned).collect();
        for (key, value) in lines {
            match *key {
                "listen.owner" => names.owner = Some((*value).to_owned()),
                "listen.group" => names.group = Some((*value).to_owned()),
                "listen.mode" => names.mode = Some(u32::from_str_radix(value, 8).unwrap()),
                "listen.acl_users" => names.acl_users = list(value),
                "listen.acl_groups" => names.acl_groups = list(value),
                other => panic!("{other}"),
            }
        }
        names
    }

    async fn as_seen(socket: &Path) -> String {
        let file = fs::metadata(socket).unwrap();
        format!("{}:{}\n{}", file.uid(), file.gid(), crate::sys::acl::tests::getfacl(socket).await)
    }

    /// Gives how php-fpm makes the socket, or `None` where it refuses the names.
    async fn by_php_fpm(lines: &[(&str, &str)]) -> Option<String> {
        let sandbox = tempfile::Builder::new().prefix("pf").tempdir_in("/tmp").unwrap();
        let (socket, conf) = (sandbox.path().join("www.sock"), sandbox.path().join("fpm.conf"));
        let lines: String = lines.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        let log = sandbox.path().join("log");
        let text = format!(
            "[global]\nerror_log = {}\ndaemonize = no\n[www]\nuser = www-data\nlisten = {}\npm = ondemand\npm.max_children = 1\n{lines}",
            log.display(),
            socket.display()
        );
        fs::write(&conf, text).unwrap();
        let children = Children::start(Subreaper::Yes).unwrap();
        let mut fpm = children.spawn(&Command::new(FPM).args(["-n", "-y"]).arg(&conf)).unwrap();
        // It listens only when mode and owner are set.
        let up = async {
            while UnixStream::connect(&socket).is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let seen = tokio::select! {
            () = up => Some(as_seen(&socket).await),
            _ = fpm.exit() => None,
            () = tokio::time::sleep(Duration::from_secs(20)) => panic!("php-fpm neither listens nor ends"),
        };
        fpm.signal(nix::sys::signal::Signal::SIGTERM).ok();
        fpm.exit().await;
        seen
    }

    async fn by_us(lines: &[(&str, &str)]) -> Option<String> {
        let sandbox = tempfile::Builder::new().prefix("pf").tempdir_in("/tmp").unwrap();
        let access = access(&names(lines)).ok()?;
        let _listener = crate::sys::listener::bind_unix(&sandbox.path().join("www.sock"), ".g1", &access, 5).unwrap();
        Some(as_seen(&sandbox.path().join("www.sock.g1")).await)
    }

    #[tokio::test]
    async fn sockets_get_the_owner_mode_and_list_that_php_fpm_gives_them() {
        let cases: [&[(&str, &str)]; 13] = [
            &[],
            &[("listen.mode", "0666")],
            &[("listen.owner", "www-data")],
            &[("listen.owner", "33")],
            &[("listen.owner", "4242"), ("listen.group", "100")],
            &[("listen.group", "www-data"), ("listen.mode", "0620")],
            &[("listen.owner", "www-data"), ("listen.group", "users")],
            &[("listen.acl_users", "nobody,www-data"), ("listen.owner", "www-data"), ("listen.mode", "0640")],
            &[("listen.acl_groups", "users"), ("listen.mode", "0600"), ("listen.group", "no-such-group")],
            &[("listen.acl_users", "33")],
            &[("listen.acl_groups", "100")],
            &[("listen.owner", "no-such-user")],
            &[("listen.group", "no-such-group")],
        ];
        for lines in cases {
            assert_eq!(by_us(lines).await, by_php_fpm(lines).await, "{lines:?}");
        }
    }

    #[test]
    fn every_unknown_name_is_told() {
        let errors = access(&names(&[("listen.owner", "no-such-user"), ("listen.group", "no-such-group")])).unwrap_err();
        let told: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(told, ["no user 'no-such-user' on this host", "no group 'no-such-group' on this host"]);
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        assert_eq!(user("www-data").unwrap(), Account { uid: 33, gid: Some(33) });
        assert_eq!(user("33").unwrap(), Account { uid: 33, gid: None });
        assert_eq!((group("www-data").unwrap(), group("33").unwrap()), (33, 33));
        assert!(user("").is_err() && user("-1").is_err() && user("4294967296").is_err());
    }
}
