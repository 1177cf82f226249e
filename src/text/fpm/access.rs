//! Checks `access.format` as php-fpm does when the pool has an `access.log`.

/// Gives php-fpm's complaint about a format.
///
/// Source: php-src `sapi/fpm/fpm/fpm_log.c`, checked with 8.2.36 by the corpus.
pub(super) fn complaint(format: &str) -> Option<String> {
    let mut rest = format;
    while let Some((_, after)) = rest.split_once('%') {
        let (modifier, token, tail) = match modifier(after) {
            Ok(parts) => parts,
            Err(complaint) => return Some(complaint),
        };
        if let Some(complaint) = token_complaint(token?, modifier) {
            return Some(complaint);
        }
        rest = tail;
    }
    None
}

/// Splits what follows a `%` into the text between braces, the letter, and the rest.
fn modifier(text: &str) -> Result<(Option<&str>, Option<char>, &str), String> {
    let mut modifier = None;
    let mut rest = text;
    while let Some(inner) = rest.strip_prefix('{') {
        let Some((inside, after)) = inner.split_once('}') else {
            return Err("missing closing embrace in the access.format".into());
        };
        if after.is_empty() {
            return Err("missing closing embrace in the access.format".into());
        }
        modifier = Some(inside);
        rest = after;
    }
    let mut letters = rest.chars();
    let letter = letters.next();
    Ok((modifier, letter, letters.as_str()))
}

fn token_complaint(token: char, modifier: Option<&str>) -> Option<String> {
    let modifier = modifier.filter(|text| !text.is_empty() || !matches!(token, 'C' | 'd' | 'M' | 't' | 'T' | 'e' | 'o'));
    let allowed = |words: &[&str]| modifier.is_none_or(|text| words.iter().any(|word| word.eq_ignore_ascii_case(text)));
    match token {
        'C' if !allowed(&["total", "user", "system"]) => {
            Some(format!("only 'total', 'user' or 'system' are allowed as a modifier for %C ('{}')", modifier.unwrap_or_default()))
        }
        'd' if !allowed(&["seconds", "milli", "milliseconds", "micro", "microseconds"]) => Some(format!(
            "only 'seconds', 'milli', 'milliseconds', 'micro' or 'microseconds' are allowed as a modifier for %d ('{}')",
            modifier.unwrap_or_default()
        )),
        'M' if !allowed(&["bytes", "kilo", "kilobytes", "mega", "megabytes"]) => Some(format!(
            "only 'bytes', 'kilo', 'kilobytes', 'mega' or 'megabytes' are allowed as a modifier for %M ('{}')",
            modifier.unwrap_or_default()
        )),
        'e' if modifier.is_none() => Some("the name of the environment variable must be set between embraces for %e".into()),
        'o' if modifier.is_none() => Some("the name of the header must be set between embraces for %o".into()),
        'C' | 'd' | 'M' | 'e' | 'o' | 't' | 'T' => None,
        '%' | 'f' | 'l' | 'm' | 'n' | 'p' | 'P' | 'q' | 'Q' | 'r' | 'R' | 's' | 'u' => {
            modifier.map(|_| format!("embrace is not allowed for modifier %{token}"))
        }
        other => Some(format!("Invalid token in the access.format (%{other})")),
    }
}
