//! What PHP complains of when it starts.
//!
//! An extension that cannot be loaded and a php.ini that cannot be read are warnings to PHP: php-fpm starts, tells READY, and
//! every page that needs what is missing fails.

use std::collections::BTreeSet;

/// Arguments with which PHP tells its complaints on standard error, wherever php.ini sends them.
pub(super) const COMPLAIN_ON_STDERR: [&str; 6] = ["-d", "display_startup_errors=0", "-d", "log_errors=1", "-d", "error_log="];

/// Takes PHP's complaints at its start out of what it said, without where PHP tells them.
pub(super) fn complaints(told: &[u8]) -> BTreeSet<String> {
    String::from_utf8_lossy(told).lines().filter_map(complaint).collect()
}

fn complaint(line: &str) -> Option<String> {
    if let Some(message) = line.strip_prefix("PHP:") {
        return Some(message.trim().to_owned());
    }
    let (_, message) = line.split_once("PHP message: PHP ")?;
    let (level, text) = message.split_once(':')?;
    let bad = matches!(level, "Warning" | "Core Warning" | "Core Error" | "Error" | "Fatal error");
    let text = text.trim();
    bad.then(|| text.strip_suffix(" in Unknown on line 0").unwrap_or(text).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_php_would_run_without_is_told() {
        let warning = "[30-Nov-2026 22:47:45] NOTICE: PHP message: PHP Warning:  PHP Startup: Unable to load dynamic library 'x' (tried: /x) in Unknown on line 0";
        assert_eq!(complaint(warning).as_deref(), Some("PHP Startup: Unable to load dynamic library 'x' (tried: /x)"));
        let syntax = "PHP:  syntax error, unexpected end of file in /etc/php.ini on line 3";
        assert_eq!(complaint(syntax).as_deref(), Some("syntax error, unexpected end of file in /etc/php.ini on line 3"));
        assert_eq!(complaint("[x] NOTICE: PHP message: PHP Deprecated:  Directive 'y' is deprecated in Unknown on line 0"), None);
        assert_eq!(complaint("[PHP Modules]"), None);
    }
}
