//! The environment of masters, and of every run of the binary.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::model::settings::Php;
use crate::sys::spawn::base_environment;

/// Makes the masters' environment: search path and language, then what the settings take over from `ours`, then what they set.
pub fn environment(php: &Php, ours: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    let mut variables = base_environment();
    let mut set = |name: OsString, value: OsString| {
        variables.retain(|(known, _)| *known != name);
        variables.push((name, value));
    };
    for (name, value) in ours {
        // What one service manager or supervisor tells its child is not for the grandchildren (P30, P1).
        if !is_private(&name) && php.inherit_environment.iter().any(|pattern| matches(pattern.as_bytes(), name.as_bytes())) {
            set(name, value);
        }
    }
    for (name, value) in &php.environment {
        set(name.into(), value.into());
    }
    variables
}

/// Variables that are never handed down, whatever the patterns say.
fn is_private(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let exact: [&[u8]; 10] = [
        b"NOTIFY_SOCKET",
        b"WATCHDOG_USEC",
        b"WATCHDOG_PID",
        b"LISTEN_FDS",
        b"LISTEN_PID",
        b"LISTEN_FDNAMES",
        b"MAINPID",
        b"INVOCATION_ID",
        b"FDSTORE",
        b"POLYFPM_HANDOFF",
    ];
    exact.contains(&name) || name.starts_with(b"FPM_SOCKETS")
}

/// Matches a name against a pattern in which `*` stands for any text.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let mut pieces = pattern.split(|byte| *byte == b'*');
    let Some(mut rest) = pieces.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let mut pieces: Vec<&[u8]> = pieces.collect();
    let Some(last) = pieces.pop() else { return rest.is_empty() };
    for piece in pieces {
        let found = (0..=rest.len()).find_map(|at| rest.get(at..)?.strip_prefix(piece));
        let Some(after) = found else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name, fits) in [
            ("DB_*", "DB_HOST", true),
            ("DB_*", "MY_DB_HOST", false),
            ("*", "X", true),
            ("*_HOST", "DB_HOST", true),
            ("A*B*C", "AxxByyC", true),
            ("A*B*C", "AxxC", false),
            ("A*A", "A", false),
            ("DB", "DB", true),
            ("DB", "DBX", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), fits, "{pattern} {name}");
        }
    }
}
