//! What NGINX says when it refuses a configuration.

use std::path::PathBuf;

use crate::model::problem::Place;

/// The first fatal message of `nginx -t`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestFailure {
    /// The message without its level and place.
    pub message: String,
    /// Where NGINX found it, when it says so.
    pub place: Option<Place>,
}

impl std::fmt::Display for TestFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Some(place) => write!(f, "{place}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl TestFailure {
    /// Reads the standard error of a failed `nginx -t`. Without a fatal message it gives the last line.
    pub fn parse(stderr: &[u8]) -> Self {
        let text = String::from_utf8_lossy(stderr);
        let fatal =
            ["[emerg] ", "[crit] ", "[alert] "].iter().find_map(|level| text.lines().find_map(|line| Some(line.split_once(level)?.1)));
        let line = fatal.or_else(|| text.lines().rev().find(|line| !line.trim().is_empty())).unwrap_or("no message");
        let line = without_pid(line.trim());
        match placed(line) {
            Some((message, place)) => Self { message: message.to_owned(), place: Some(place) },
            None => Self { message: line.to_owned(), place: None },
        }
    }
}

/// A log line has `PID#TID: ` before the message; the same message on the terminal has not.
fn without_pid(line: &str) -> &str {
    match line.split_once(": ") {
        Some((start, rest)) if start.contains('#') && start.bytes().all(|byte| byte.is_ascii_digit() || byte == b'#') => rest,
        _ => line,
    }
}

/// Splits `MESSAGE in FILE:LINE`.
fn placed(line: &str) -> Option<(&str, Place)> {
    let (message, place) = line.rsplit_once(" in /")?;
    let (file, number) = place.rsplit_once(':')?;
    let file = PathBuf::from(format!("/{file}"));
    Some((message, Place { file, line: number.parse().ok()? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fatal_message_is_found_with_its_place() {
        for (stderr, expected) in [
            (
                "nginx: [warn] x in /a:1\nnginx: [emerg] unknown directive \"foo\" in /etc/nginx/conf.d/x.conf:12\nnginx: configuration file /etc/nginx/nginx.conf test failed\n",
                "/etc/nginx/conf.d/x.conf:12: unknown directive \"foo\"",
            ),
            (
                "2026/01/01 00:00:00 [emerg] 12#12: bind() to 0.0.0.0:80 failed (98: Address already in use)",
                "bind() to 0.0.0.0:80 failed (98: Address already in use)",
            ),
            (
                "nginx: [emerg] open() \"/x\" failed (2: No such file or directory) in /a b.conf:3",
                "/a b.conf:3: open() \"/x\" failed (2: No such file or directory)",
            ),
            ("segfault\n\n", "segfault"),
            ("", "no message"),
        ] {
            assert_eq!(TestFailure::parse(stderr.as_bytes()).to_string(), expected);
        }
    }
}
