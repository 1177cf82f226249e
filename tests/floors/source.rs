//! Source files split into what the compiler sees and what people read.
//!
//! A scan over raw text would stumble over a word in a string or a comment; this is the least of a Rust lexer that tells the two apart.

use std::path::{Path, PathBuf};

/// One source file.
pub(crate) struct Source {
    /// Its path from the repository's root, with `/`.
    pub(crate) path: String,
    /// The text as it is.
    pub(crate) text: String,
    /// The code alone: comments, strings and characters are blanks, lines stay where they are.
    pub(crate) code: String,
    /// The comments alone, in the same way.
    pub(crate) comments: String,
}

impl Source {
    /// Reads one file.
    pub(crate) fn read(root: &Path, file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("read {}: {e}", file.display()));
        let (code, comments) = split(&text);
        let path = file.strip_prefix(root).expect("the file is under the root").to_string_lossy().into_owned();
        Self { path, text, code, comments }
    }

    /// Gives the code without what only tests see: items under `#[cfg(test)]`, and whole files that are such items.
    pub(crate) fn product_code(&self) -> String {
        if self.path.ends_with("/tests.rs") || self.path.contains("/tests/") { String::new() } else { without_test_items(&self.code) }
    }

    /// Gives the modules from the crate's root down to this file: `["edge", "nginx", "render"]`.
    pub(crate) fn module(&self) -> Vec<String> {
        let inner = self.path.trim_start_matches("src/").trim_end_matches(".rs");
        let mut parts: Vec<String> = inner.split('/').map(str::to_owned).collect();
        if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
            parts.pop();
        }
        parts
    }
}

/// Gives every file under `root` with one of these endings, without build output and version control.
pub(crate) fn files(root: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries {
            let path = entry.expect("a readable directory entry").path();
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            if path.is_dir() {
                if !matches!(name.as_str(), "target" | ".git" | ".demo" | "node_modules") {
                    left.push(path);
                }
            } else if endings.is_empty() || endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn split(text: &str) -> (String, String) {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut comments = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let (end, kind) = token(&chars, at);
        for &c in &chars[at..end] {
            let blank = if c == '\n' { '\n' } else { ' ' };
            code.push(if matches!(kind, Kind::Code) { c } else { blank });
            comments.push(if matches!(kind, Kind::Comment) { c } else { blank });
        }
        at = end;
    }
    (code, comments)
}

enum Kind {
    Code,
    Comment,
    Literal,
}

fn token(chars: &[char], at: usize) -> (usize, Kind) {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => (seek(chars, at, |c| c == '\n'), Kind::Comment),
        '/' if next == Some('*') => (block_comment(chars, at), Kind::Comment),
        '"' => (quoted(chars, at), Kind::Literal),
        'r' if !in_word(chars, at) => raw(chars, at).map_or((at + 1, Kind::Code), |end| (end, Kind::Literal)),
        '\'' if next == Some('\\') => (seek(chars, at + 3, |c| c == '\'') + 1, Kind::Literal),
        '\'' if chars.get(at + 2) == Some(&'\'') => (at + 3, Kind::Literal),
        _ => (at + 1, Kind::Code),
    }
}

fn in_word(chars: &[char], at: usize) -> bool {
    // `br"…"` is a raw string too.
    at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_') && chars[at - 1] != 'b'
}

fn seek(chars: &[char], from: usize, stop: impl Fn(char) -> bool) -> usize {
    (from..chars.len()).find(|&i| stop(chars[i])).unwrap_or(chars.len().saturating_sub(1)).min(chars.len())
}

fn block_comment(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0_u32, at);
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') if depth == 1 => return i + 2,
            ('*', '/') => depth -= 1,
            _ => {
                i += 1;
                continue;
            }
        }
        i += 2;
    }
    chars.len()
}

fn quoted(chars: &[char], at: usize) -> usize {
    let mut i = at + 1;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(chars.len())
}

fn raw(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[at + 1..].iter().take_while(|&&c| c == '#').count();
    (chars.get(at + 1 + hashes) == Some(&'"')).then_some(())?;
    let body = at + 2 + hashes;
    let end = (body..chars.len()).find(|&i| chars[i] == '"' && chars[i + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes);
    Some(end.map_or(chars.len(), |i| i + 1 + hashes))
}

fn without_test_items(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(start) = rest.find("#[cfg(test)]") {
        kept.push_str(&rest[..start]);
        let item = &rest[start..];
        rest = &item[item_length(item)..];
    }
    kept.push_str(rest);
    kept
}

/// Gives the length of the item that follows the attribute at the start of `item`: up to its `;` or its closing brace.
fn item_length(item: &str) -> usize {
    let mut depth = 0_u32;
    for (at, c) in item.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return at + 1,
            '}' => depth = depth.saturating_sub(1),
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    item.len()
}

#[test]
fn code_and_comments_are_told_apart() {
    let (code, comments) =
        split("let a = \"unsafe // no\"; // crate::edge\nlet r = r#\"tokio\" x\"#; let c = '\"'; /* a /* b */ c */ let l: &'static str;\n");
    assert!(!code.contains("unsafe") && !code.contains("tokio") && !code.contains("edge") && code.contains("&'static str"));
    assert!(comments.contains("crate::edge") && comments.contains("b */ c") && !comments.contains("no\""));
    assert_eq!(code.matches('\n').count(), 2);
}

#[test]
fn items_of_tests_are_no_product_code() {
    let code = without_test_items("fn a() {}\n#[cfg(test)]\nmod tests { fn b() { {} } }\nfn c() {}\n#[cfg(test)]\nmod more;\nfn d() {}");
    assert!(code.contains("fn a") && code.contains("fn c") && code.contains("fn d") && !code.contains("fn b") && !code.contains("more"));
}
