//! Reads the corpus.

use std::fs;
use std::path::{Path, PathBuf};

use polyfpm::model::host::Version;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expect {
    Accept,
    Refuse,
    Trial,
    Strict,
    Never,
}

#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) expect: Expect,
    pub(super) good: Option<Vec<String>>,
    pub(super) bad: Option<Vec<String>>,
    /// The first version it is for.
    pub(super) needs: Option<Version>,
    /// The first version it is not for any more.
    pub(super) before: Option<Version>,
    own_log: bool,
    files: Vec<(String, String)>,
}

pub(super) fn cases(file: &str) -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(file);
    let text = fs::read_to_string(&path).unwrap();
    text.split("=== ").skip(1).map(|text| case(text, file)).collect()
}

fn case(text: &str, file: &str) -> Case {
    let (name, rest) = text.split_once('\n').unwrap();
    let mut parts = rest.split("--- ");
    let mut case = Case {
        name: format!("{file}: {name}"),
        expect: Expect::Strict,
        good: None,
        bad: None,
        needs: None,
        before: None,
        own_log: false,
        files: Vec::new(),
    };
    let words = |text: &str| Some(text.split_whitespace().map(str::to_owned).collect());
    for line in parts.next().unwrap().lines().filter(|line| !line.is_empty()) {
        match line.split_once(": ").unwrap_or_else(|| panic!("{}: {line}", case.name)) {
            ("expect", "accept") => case.expect = Expect::Accept,
            ("expect", "refuse") => case.expect = Expect::Refuse,
            ("expect", "trial") => case.expect = Expect::Trial,
            ("expect", "strict") => case.expect = Expect::Strict,
            ("expect", "never") => case.expect = Expect::Never,
            ("good", names) => case.good = words(names),
            ("bad", names) => case.bad = words(names),
            ("log", "own") => case.own_log = true,
            ("needs", text) => case.needs = Some(version(text)),
            ("before", text) => case.before = Some(version(text)),
            (key, value) => panic!("{}: {key}: {value}", case.name),
        }
    }
    let files = parts.map(|part| part.split_once('\n').unwrap()).map(|(path, text)| (path.to_owned(), text.to_owned()));
    case.files = files.collect();
    assert_eq!(case.files[0].0, "php-fpm.conf", "{}", case.name);
    case
}

fn version(text: &str) -> Version {
    let (major, minor) = text.split_once('.').unwrap();
    Version(major.parse().unwrap(), minor.parse().unwrap(), 0)
}

impl Case {
    /// Writes the files into `directory` and gives the main one.
    pub(super) fn write(&self, directory: &Path) -> PathBuf {
        for (number, (path, text)) in self.files.iter().enumerate() {
            let path = directory.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let log = if number == 0 && !self.own_log { "error_log = @DIR@/error.log\n" } else { "" };
            fs::write(path, bytes(&format!("{log}{text}"), directory)).unwrap();
        }
        directory.join(&self.files[0].0)
    }
}

fn bytes(text: &str, directory: &Path) -> String {
    let mut out = String::new();
    for line in text.lines() {
        match line.strip_prefix("@POOL ").and_then(|rest| rest.strip_suffix('@')) {
            Some(name) => out.push_str(&format!("user = www-data\nlisten = @DIR@/{name}.sock\npm = static\npm.max_children = 4\n")),
            None => out.push_str(&format!("{line}\n")),
        }
    }
    if let Some(head) = out.trim_end().strip_suffix("<NOEOL>") {
        out = head.to_owned();
    }
    let replaced =
        [("@DIR@", directory.to_str().unwrap()), ("<CR>", "\r"), ("<TAB>", "\t"), ("<SP>", " "), ("<NUL>", "\0"), ("<BOM>", "\u{feff}")];
    replaced.iter().fold(out, |text, (from, to)| text.replace(from, to))
}
