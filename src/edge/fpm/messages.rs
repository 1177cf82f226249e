//! Picks php-fpm's complaint out of what it prints.

/// Lines that only say that something was wrong before.
const ECHOES: [&str; 5] = [
    "failed to post process the configuration",
    "FPM initialization failed",
    "failed to load configuration file",
    "Unable to include",
    "configuration file",
];

/// Gives php-fpm's complaints in order, without date, level and echoes, each once.
pub(super) fn complaints(printed: &[u8]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in String::from_utf8_lossy(printed).lines() {
        let Some(message) = complaint(line) else { continue };
        if !found.iter().any(|known| known == message) {
            found.push(message.to_owned());
        }
    }
    found
}

fn complaint(line: &str) -> Option<&str> {
    if let Some(message) = line.strip_prefix("PHP:") {
        return Some(message.trim());
    }
    let (_, rest) = line.split_once("] ")?;
    let (level, message) = rest.split_once(": ")?;
    let message = without_source(message);
    let bad = matches!(level, "ERROR" | "ALERT" | "WARNING");
    (bad && !ECHOES.iter().any(|echo| message.starts_with(echo))).then_some(message.trim())
}

/// Takes off what php-fpm adds at `log_level = debug`: `pid 7, fpm_conf_dump(), line 1785: `.
fn without_source(message: &str) -> &str {
    let rest = message.strip_prefix("pid ").and_then(|rest| rest.split_once("(), line ")).and_then(|(_, rest)| rest.split_once(": "));
    rest.map_or(message, |(_, message)| message)
}

/// Gives the file's line of a complaint that begins with `[FILE:LINE]`.
pub(super) fn line_number(message: &str) -> Option<u32> {
    let (place, _) = message.strip_prefix('[')?.split_once(']')?;
    place.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_told_once_and_without_echoes() {
        let printed = b"PHP:  syntax error, unexpected '!' in Unknown on line 1\n\
            [30-Nov-2026 21:15:18] NOTICE: [pool a] pm.start_servers is not set. It's been set to 3.\n\
            [30-Nov-2026 21:15:18] ERROR: [/x.conf:12] unknown entry 'a'\n\
            [30-Nov-2026 21:15:18] ERROR: [/x.conf:12] unknown entry 'a'\n\
            [30-Nov-2026 21:39:04.274538] ALERT: pid 33, fpm_conf(), line 17: [pool www] user: has not been defined\n\
            [30-Nov-2026 21:15:18] ERROR: failed to load configuration file '/x.conf'\n\
            [30-Nov-2026 21:15:18] ERROR: FPM initialization failed\n";
        let found = complaints(printed);
        let expected = [
            "syntax error, unexpected '!' in Unknown on line 1",
            "[/x.conf:12] unknown entry 'a'",
            "[pool www] user: has not been defined",
        ];
        assert_eq!(found, expected);
        assert_eq!(line_number(&found[1]), Some(12));
        assert_eq!(line_number(&found[2]), None);
    }
}
