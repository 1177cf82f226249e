//! Finds the files of an `include` pattern as php-fpm does, which calls glob(3) with `GLOB_ERR`.
//!
//! A directory that a wildcard must look into and that cannot be read is an error; nothing that fits is none. Names that
//! begin with a dot fit only a pattern that begins with one; braces and `~` mean themselves; results are in byte order.
//!
//! Source: glob(3), php-src `fpm_conf.c`; checked with 8.2.36 by the corpus.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::text::fpm::IncludeError;

/// What a pattern names.
#[derive(Debug, Default)]
pub(super) struct Matches {
    /// The paths that fit and are no directories, in php-fpm's order.
    pub(super) paths: Vec<PathBuf>,
    /// Every directory that was looked into.
    pub(super) directories: Vec<PathBuf>,
}

/// Lists what fits `pattern`, an absolute path.
pub(super) fn glob(pattern: &Path) -> Result<Matches, IncludeError> {
    let mut found = Matches::default();
    let components: Vec<&[u8]> = pattern.as_os_str().as_bytes().split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
    // The directories before the first wildcard are not looked at by themselves: a missing one is found when it is to be listed.
    let fixed = components.iter().position(|component| is_wild(component)).unwrap_or(components.len().saturating_sub(1));
    let (fixed, rest) = components.split_at(fixed);
    let mut directory = PathBuf::from("/");
    directory.extend(fixed.iter().map(|component| OsString::from_vec(unescaped(component))));
    let mut reached = vec![directory];
    for component in rest {
        let mut next = Vec::new();
        for directory in reached {
            step(&directory, component, &mut next, &mut found.directories)?;
        }
        reached = next;
    }
    found.paths = reached.into_iter().filter(|path| !path.is_dir()).collect();
    found.paths.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    Ok(found)
}

/// Goes from one directory to everything below it that fits one component.
fn step(directory: &Path, component: &[u8], next: &mut Vec<PathBuf>, looked: &mut Vec<PathBuf>) -> Result<(), IncludeError> {
    if !is_wild(component) {
        let path = directory.join(OsString::from_vec(unescaped(component)));
        // A link to nothing is there as well: php-fpm will fail to open it and say so.
        if path.symlink_metadata().is_ok() {
            next.push(path);
        } else if !looked.contains(&directory.to_owned()) {
            looked.push(directory.to_owned());
        }
        return Ok(());
    }
    let error = |source: io::Error| IncludeError { path: directory.to_owned(), reason: source.to_string() };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(source) if source.kind() == io::ErrorKind::NotADirectory => return Ok(()),
        Err(source) => return Err(error(source)),
    };
    looked.push(directory.to_owned());
    for entry in entries {
        let name = entry.map_err(error)?.file_name();
        let hidden = name.as_bytes().starts_with(b".") && !component.starts_with(b".");
        if !hidden && fits(component, name.as_bytes()) {
            next.push(directory.join(name));
        }
    }
    Ok(())
}

fn is_wild(component: &[u8]) -> bool {
    component.iter().any(|byte| b"*?[".contains(byte))
}

fn unescaped(component: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(component.len());
    let mut bytes = component.iter();
    while let Some(byte) = bytes.next() {
        out.push(if *byte == b'\\' { *bytes.next().unwrap_or(byte) } else { *byte });
    }
    out
}

/// Says whether a name fits a pattern of fnmatch(3). Works from the last star back, so it takes at most length × length steps.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut rest, mut text) = (pattern, name);
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        if let Some((b'*', after)) = rest.split_first() {
            star = Some((after, text));
            rest = after;
            continue;
        }
        if let (Some(after), Some((_, left))) = (text.first().and_then(|byte| one(rest, *byte)), text.split_first()) {
            (rest, text) = (after, left);
            continue;
        }
        if rest.is_empty() && text.is_empty() {
            return true;
        }
        let Some((after, from)) = star else { return false };
        let Some((_, left)) = from.split_first() else { return false };
        star = Some((after, left));
        (rest, text) = (after, left);
    }
}

/// Matches one byte with the head of a pattern; gives the pattern's rest.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (head, rest) = pattern.split_first()?;
    match head {
        b'?' => Some(rest),
        b'\\' => {
            let (escaped, rest) = rest.split_first()?;
            (*escaped == byte).then_some(rest)
        }
        b'[' => match set(rest) {
            Some((members, negated, after)) => (members.contains(&byte) != negated).then_some(after),
            None => (byte == b'[').then_some(rest),
        },
        other => (*other == byte).then_some(rest),
    }
}

/// Reads a set behind its `[`: its bytes, whether it is negated, and what follows its `]`. Without a `]` it is none.
fn set(pattern: &[u8]) -> Option<(Vec<u8>, bool, &[u8])> {
    let negated = matches!(pattern.first(), Some(b'!' | b'^'));
    let mut rest = pattern.get(usize::from(negated)..)?;
    let mut members = Vec::new();
    let mut first = true;
    loop {
        let (head, after) = rest.split_first()?;
        if *head == b']' && !first {
            return Some((members, negated, after));
        }
        first = false;
        if let Some((class, after)) = class(rest) {
            members.extend((0..=u8::MAX).filter(|byte| class(*byte)));
            rest = after;
            continue;
        }
        let (low, after) = if *head == b'\\' { after.split_first()? } else { (head, after) };
        match after {
            [b'-', high, more @ ..] if *high != b']' => {
                members.extend(*low..=*high);
                rest = more;
            }
            _ => {
                members.push(*low);
                rest = after;
            }
        }
    }
}

type Class = fn(u8) -> bool;

/// Reads `[:name:]` inside a set.
fn class(pattern: &[u8]) -> Option<(Class, &[u8])> {
    const CLASSES: [(&[u8], Class); 6] = [
        (b"[:alpha:]", |byte| byte.is_ascii_alphabetic()),
        (b"[:digit:]", |byte| byte.is_ascii_digit()),
        (b"[:alnum:]", |byte| byte.is_ascii_alphanumeric()),
        (b"[:lower:]", |byte| byte.is_ascii_lowercase()),
        (b"[:upper:]", |byte| byte.is_ascii_uppercase()),
        (b"[:punct:]", |byte| byte.is_ascii_punctuation()),
    ];
    CLASSES.iter().find_map(|(name, class)| Some((*class, pattern.strip_prefix(*name)?)))
}

/// Gives the part of a pattern before its first wildcard, up to a whole component: what must be watched for it to appear.
pub(super) fn fixed_part(pattern: &Path) -> PathBuf {
    pattern.iter().take_while(|part| !is_wild(part.as_bytes())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_patterns_as_in_fnmatch() {
        for (pattern, name, expected) in [
            ("*.conf", "www.conf", true),
            ("*.conf", "www.conf.bak", false),
            ("*", "", true),
            ("a*b*c", "a-b-b-c", true),
            ("?.conf", "a.conf", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]y", "]y", true),
            ("[ab", "[ab", true),
            ("[[:digit:]x]*", "9y", true),
            ("[[:digit:]x]*", "y9", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("{a,b}", "a", false),
            ("*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
        ] {
            assert_eq!(fits(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn directories_and_hidden_names_are_left_out_and_order_is_by_bytes() {
        let root = tempfile::tempdir().unwrap();
        for name in ["b.conf", "a.conf", "B.conf", ".c.conf", "x.txt"] {
            std::fs::write(root.path().join(name), "").unwrap();
        }
        std::fs::create_dir(root.path().join("d.conf")).unwrap();
        let found = glob(&root.path().join("*.conf")).unwrap();
        let names: Vec<_> = found.paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["B.conf", "a.conf", "b.conf"]);
        assert_eq!(found.directories, [root.path()]);
        assert!(glob(&root.path().join("none*")).unwrap().paths.is_empty());
        assert!(glob(&root.path().join("missing")).unwrap().paths.is_empty());
        let error = glob(&root.path().join("missing/*.conf")).unwrap_err();
        assert_eq!(error.path, root.path().join("missing"));
        assert_eq!(fixed_part(&root.path().join("missing/*.conf")), root.path().join("missing"));
    }
}
