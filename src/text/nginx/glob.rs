//! The patterns of `include`, matched as glob(3) does with no flags.

/// Tells whether `include` would expand the pattern; otherwise it names one file, which must exist.
pub(super) fn is_pattern(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// Tells whether `path` matches `pattern`: wildcards stop at slashes and do not match a leading dot of a name.
pub(super) fn matches(pattern: &[u8], path: &[u8]) -> bool {
    let (mut patterns, mut names) = (parts(pattern), parts(path));
    loop {
        match (patterns.next(), names.next()) {
            (None, None) => return true,
            (Some(pattern), Some(name)) if part_matches(pattern, name) => {}
            _ => return false,
        }
    }
}

/// Gives the parts of a path; repeated slashes and `.` parts say nothing.
fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

fn part_matches(pattern: &[u8], name: &[u8]) -> bool {
    if name.first() == Some(&b'.') && matches!(pattern.first(), Some(b'*' | b'?' | b'[')) {
        return false;
    }
    // Where the last star was, and how much of the name it has taken so far.
    let mut star: Option<(&[u8], &[u8])> = None;
    let (mut wanted, mut rest) = (pattern, name);
    loop {
        if let Some((b'*', after)) = wanted.split_first() {
            star = Some((after, rest));
            wanted = after;
            continue;
        }
        if wanted.is_empty() && rest.is_empty() {
            return true;
        }
        if let Some((after, left)) = one(wanted, rest) {
            (wanted, rest) = (after, left);
            continue;
        }
        let Some((after, taken)) = star else { return false };
        let Some((_, left)) = taken.split_first() else { return false };
        star = Some((after, left));
        (wanted, rest) = (after, left);
    }
}

/// Matches one byte of the name; gives what is left of both.
fn one<'a, 'b>(pattern: &'a [u8], name: &'b [u8]) -> Option<(&'a [u8], &'b [u8])> {
    let (&byte, left) = name.split_first()?;
    let (&wanted, after) = pattern.split_first()?;
    match wanted {
        b'?' => Some((after, left)),
        b'[' => match class(after, byte) {
            Some((true, after)) => Some((after, left)),
            Some((false, _)) => None,
            // No closing bracket: an ordinary character.
            None => (byte == b'[').then_some((after, left)),
        },
        b'\\' => {
            let (&escaped, after) = after.split_first()?;
            (escaped == byte).then_some((after, left))
        }
        _ => (wanted == byte).then_some((after, left)),
    }
}

/// Reads a bracket expression whose `[` is gone; gives whether it holds `byte`, and what follows it.
fn class(pattern: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    let (negated, mut rest) = match pattern.split_first() {
        Some((b'!' | b'^', rest)) => (true, rest),
        _ => (false, pattern),
    };
    let mut found = false;
    let mut first = true;
    loop {
        let (&low, after) = rest.split_first()?;
        if low == b']' && !first {
            return Some((found != negated, after));
        }
        first = false;
        rest = after;
        if let [b'-', high, after @ ..] = rest
            && *high != b']'
        {
            found |= (low..=*high).contains(&byte);
            rest = after;
        } else {
            found |= low == byte;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_match_as_glob_does() {
        for (pattern, path, expected) in [
            ("/etc/nginx/conf.d/*.conf", "/etc/nginx/conf.d/a.conf", true),
            ("/etc/nginx/conf.d/*.conf", "/etc/nginx/conf.d/.a.conf", false),
            ("/etc/nginx/conf.d/*.conf", "/etc/nginx/conf.d/b/a.conf", false),
            ("/etc/nginx/*/*.conf", "/etc/nginx/x/a.conf", true),
            ("/etc/nginx//conf.d/./*", "/etc/nginx/conf.d/a", true),
            ("/a/b", "/a/b", true),
            ("/a/b", "/a/bc", false),
            ("/a/?", "/a/b", true),
            ("/a/?", "/a/", false),
            ("/a/[b-d]x", "/a/cx", true),
            ("/a/[!b-d]x", "/a/cx", false),
            ("/a/[]]x", "/a/]x", true),
            ("/a/[x", "/a/[x", true),
            ("/a/*a*b*c", "/a/xaybzbc", true),
            ("/a/*a*b*c", "/a/xaybzb", false),
            ("/a/\\*", "/a/*", true),
            ("/a/\\*", "/a/b", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), path.as_bytes()), expected, "{pattern} {path}");
        }
    }

    proptest! {
        #[test]
        fn any_pattern_ends(pattern in "[a*?\\[\\]!\\\\/.-]{0,30}", path in "[a/.]{0,60}") {
            let _matched = matches(pattern.as_bytes(), path.as_bytes());
        }
    }
}
