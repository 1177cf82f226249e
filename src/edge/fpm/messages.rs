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
    let bad = matches!(level, "ERROR" | "ALERT" | "WARNING");
    (bad && !ECHOES.iter().any(|echo| message.starts_with(echo))).then_some(message.trim())
}

/// Gives the file's line of a complaint that begins with `[FILE:LINE]`.
pub(super) fn line_number(message: &str) -> Option<u32> {
    let (place, _) = message.strip_prefix('[')?.split_once(']')?;
    place.rsplit_once(':')?.1.parse().ok()
}
