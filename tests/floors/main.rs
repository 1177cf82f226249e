//! The rules of the source that the compiler does not know: who may use whom, what things may be called, what must be said.
//!
//! Each rule lists every place that breaks it, so that one run shows all there is to mend.

#![expect(clippy::expect_used, clippy::panic, reason = "a scan that cannot read the repository has nothing to say")]
#![expect(clippy::indexing_slicing, clippy::string_slice, reason = "places come from a search in the same text; a mistake fails the test")]

mod docs;
mod paths;
mod source;

use std::path::{Path, PathBuf};

use source::{Source, files};

/// Which other top-level modules each may use. `docs/design.md` gives the reasons.
const FLOORS: [(&str, &[&str]); 7] = [
    ("model", &[]),
    ("core", &["model"]),
    ("text", &["model"]),
    ("sys", &["model"]),
    ("edge", &["model", "core", "text", "sys"]),
    ("runtime", &["model", "core", "text", "sys", "edge"]),
    ("cli", &["model", "core", "text", "sys", "edge", "runtime"]),
];

/// What decisions, codecs and words must not touch: the world and its clock.
const IMPURE: [&str; 20] = [
    "tokio",
    "tokio_util",
    "nix",
    "libc",
    "rustix",
    "signal_hook",
    "sd_notify",
    "tracing",
    "std::fs",
    "std::env",
    "std::process",
    "std::thread",
    "std::os::unix::net",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "ToSocketAddrs",
    "Instant",
    "SystemTime",
    "OwnedFd",
];

/// Words that say nothing of what a thing is.
const EMPTY_WORDS: [&str; 10] = ["manager", "handler", "util", "utils", "helper", "helpers", "common", "data", "info", "misc"];

/// Names that hold such a word because it is somebody else's term.
const FOREIGN_NAMES: [&str; 1] = ["ProcessManager"];

/// 500 lines: more is more than one subject.
const FILE_LIMIT_LINES: usize = 500;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(directory: &str) -> Vec<Source> {
    let root = root();
    let found: Vec<Source> = files(&root.join(directory), &[".rs"]).iter().map(|file| Source::read(&root, file)).collect();
    assert!(!found.is_empty(), "no source under {directory}");
    found
}

fn report(rule: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{rule}\n  {}", broken.join("\n  "));
}

#[test]
fn a_module_uses_lower_floors_only() {
    let mut broken = Vec::new();
    for source in sources("src") {
        let module = source.module();
        let Some(floor) = module.first() else { continue };
        let Some((_, allowed)) = FLOORS.iter().find(|(name, _)| name == floor) else {
            broken.push(format!("{}: {floor} stands on no floor", source.path));
            continue;
        };
        for path in paths::mentioned(&source.product_code(), &module) {
            let Some(target) = path.first().filter(|first| FLOORS.iter().any(|(name, _)| name == first)) else { continue };
            if target != floor && !allowed.contains(&target.as_str()) {
                broken.push(format!("{} uses {}: {floor} may use {}", source.path, path.join("::"), allowed.join(", ")));
            }
            let (own, other) = (module.get(1), path.get(1));
            if floor == "edge" && target == "edge" && own.is_some() && other.is_some() && own != other {
                broken.push(format!("{} uses {}: one adapter never uses another", source.path, path.join("::")));
            }
        }
    }
    report("floors (docs/design.md, structure):", &broken);
}

#[test]
fn decisions_codecs_and_words_touch_nothing_outside() {
    let mut broken = Vec::new();
    for source in sources("src") {
        if !matches!(source.module().first().map(String::as_str), Some("model" | "core" | "text")) {
            continue;
        }
        for (number, line) in source.product_code().lines().enumerate() {
            for word in IMPURE.iter().filter(|word| has_path(line, word)) {
                broken.push(format!("{} line {}: {word}", source.path, number + 1));
            }
        }
    }
    report("model, core and text are pure; time comes as a Moment:", &broken);
}

/// Tells whether `path` stands in `line` as whole segments.
fn has_path(line: &str, path: &str) -> bool {
    let edge = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(path).any(|(at, found)| edge(line[..at].chars().next_back()) && edge(line[at + found.len()..].chars().next()))
}

#[test]
fn names_say_what_a_thing_is() {
    let mut broken = Vec::new();
    for source in sources("src") {
        for part in source.path.trim_end_matches(".rs").split(['/', '_']) {
            if EMPTY_WORDS.contains(&part) {
                broken.push(format!("{}: the file's name says '{part}'", source.path));
            }
        }
        for name in declared_names(&source.code) {
            if !FOREIGN_NAMES.contains(&name) && words_of(name).iter().any(|word| EMPTY_WORDS.contains(&word.as_str())) {
                broken.push(format!("{}: {name}", source.path));
            }
        }
    }
    report("names that hold an empty word (docs/words.md):", &broken);
}

/// Gives the names of modules and types that `code` declares.
fn declared_names(code: &str) -> Vec<&str> {
    let tokens: Vec<&str> = code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|token| !token.is_empty()).collect();
    let pairs = tokens.windows(2).filter(|pair| matches!(pair[0], "struct" | "enum" | "trait" | "type" | "mod" | "union"));
    pairs.map(|pair| pair[1]).collect()
}

fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in name.chars() {
        if c == '_' || c.is_uppercase() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c != '_') {
            word.extend(c.to_lowercase());
        }
    }
    words
}

#[test]
fn files_keep_to_one_subject() {
    let long = |source: &Source| (source.text.lines().count(), source.path.clone());
    let found: Vec<String> = sources("src")
        .iter()
        .map(long)
        .filter(|(lines, _)| *lines > FILE_LIMIT_LINES)
        .map(|(lines, path)| format!("{path}: {lines} lines, {FILE_LIMIT_LINES} are the limit"))
        .collect();
    report("long files:", &found);
}

#[test]
fn unsafe_code_is_in_sys_and_gives_its_reason() {
    let mut broken = Vec::new();
    for source in sources("src").iter().chain(&sources("tests")) {
        let lines: Vec<&str> = source.code.lines().collect();
        let comments: Vec<&str> = source.comments.lines().collect();
        for (number, line) in lines.iter().enumerate().filter(|(_, line)| has_path(line, "unsafe")) {
            if !source.path.starts_with("src/sys/") {
                broken.push(format!("{} line {}: outside src/sys", source.path, number + 1));
            }
            let reason = comments[number.saturating_sub(8)..=number].iter().any(|c| c.contains("SAFETY:") || c.contains("# Safety"));
            if !reason {
                broken.push(format!("{} line {}: no SAFETY comment: {}", source.path, number + 1, line.trim()));
            }
        }
    }
    report("unsafe code:", &broken);
}

#[test]
fn nothing_is_cited_by_its_line_number() {
    let mut broken = Vec::new();
    let citation = |text: &str| text.match_indices(".rs:").any(|(at, _)| text[at + 4..].starts_with(|c: char| c.is_ascii_digit()));
    for file in files(&root(), &[".md"]) {
        let text = std::fs::read_to_string(&file).expect("a readable page");
        for (number, _) in text.lines().enumerate().filter(|(_, line)| citation(line)) {
            broken.push(format!("{} line {}", relative(&file), number + 1));
        }
    }
    for source in sources("src").iter().chain(&sources("tests")) {
        for (number, _) in source.comments.lines().enumerate().filter(|(_, line)| citation(line)) {
            broken.push(format!("{} line {}", source.path, number + 1));
        }
    }
    report("cite the symbol: line numbers rot:", &broken);
}

#[test]
fn nothing_refers_to_the_place_it_was_written_in() {
    let foreign = [concat!("/wo", "rk/"), concat!("../sha", "red"), concat!("/tmp/", "setup")];
    let mut broken = Vec::new();
    for file in files(&root(), &[".rs", ".md", ".toml", ".sh", ".yml", ".yaml", ".conf", ".service", ".php", "Makefile", "run", "control"])
    {
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        for (number, line) in text.lines().enumerate() {
            broken.extend(foreign.iter().filter(|f| line.contains(*f)).map(|f| format!("{} line {}: {f}", relative(&file), number + 1)));
        }
    }
    report("paths of a machine the reader does not have:", &broken);
}

#[test]
fn pages_are_short_and_their_links_lead_somewhere() {
    let mut broken = Vec::new();
    for (page, limit) in [("README.md", 150), ("CONTRIBUTING.md", 120)] {
        let lines = std::fs::read_to_string(root().join(page)).map_or(0, |text| text.lines().count());
        if lines > limit {
            broken.push(format!("{page}: {lines} lines, {limit} are the limit"));
        }
    }
    for file in files(&root(), &[".md"]) {
        let text = std::fs::read_to_string(&file).expect("a readable page");
        for target in links(&text) {
            let to = file.parent().expect("a page has a directory").join(target);
            if !to.exists() {
                broken.push(format!("{}: {target} is not there", relative(&file)));
            }
        }
    }
    report("pages:", &broken);
}

#[test]
fn every_cited_fact_is_described_and_guarded() {
    let page = std::fs::read_to_string(root().join("docs/php-fpm.md")).expect("docs/php-fpm.md");
    let rows: Vec<Vec<&str>> =
        page.lines().filter(|line| line.starts_with("| P")).map(|row| row.split('|').map(str::trim).collect()).collect();
    let known: Vec<&str> = rows.iter().filter_map(|row| row.get(1).copied()).collect();
    let (sources, tests) = (sources("src"), sources("tests"));
    let mut broken = Vec::new();
    for source in sources.iter().chain(&tests) {
        let cited = facts(&source.comments);
        broken.extend(
            cited.iter().filter(|fact| !known.contains(&fact.as_str())).map(|fact| format!("{}: {fact} is nowhere described", source.path)),
        );
    }
    let declared: Vec<&str> =
        tests.iter().flat_map(|source| source.code.split("fn ").skip(1)).filter_map(|rest| rest.split('(').next()).collect();
    for row in rows {
        let (fact, guard) = (row.get(1).copied().unwrap_or(""), row.get(3).copied().unwrap_or(""));
        let named: Vec<&str> = guard.split('`').skip(1).step_by(2).collect();
        if named.is_empty() && !guard.starts_with("Not guarded") {
            broken.push(format!("{fact}: neither a test nor the reason why there is none"));
        }
        broken.extend(named.iter().filter(|test| !declared.contains(test)).map(|test| format!("{fact}: there is no test {test}")));
    }
    report("facts (docs/php-fpm.md):", &broken);
}

/// Gives the numbers of facts that a text cites: P20.
fn facts(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let facts = words.filter(|word| {
        word.strip_prefix('P').is_some_and(|digits| (1..=2).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()))
    });
    facts.map(str::to_owned).collect()
}

/// Gives the relative targets of Markdown links, without their fragments.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let local = targets.filter(|t| !t.contains("://") && !t.starts_with('#') && !t.starts_with("mailto:") && !t.contains(' '));
    local.filter_map(|t| t.split('#').next()).filter(|t| !t.is_empty()).collect()
}

fn relative(file: &Path) -> String {
    file.strip_prefix(root()).unwrap_or(file).display().to_string()
}
