//! The lines that problems point at, as they are written, without secrets.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::model::problem::Problem;

/// What is bigger is no configuration file that a person wrote.
const FILE_LIMIT_BYTES: u64 = 16 * 1024 * 1024;

/// The longest excerpt, in characters: two lines of a wide terminal.
const LENGTH_LIMIT: usize = 240;

/// Adds the line to every problem that has a place and no excerpt. The settings file tells its own, since it knows its secrets.
pub(super) fn complete(problems: &mut [Problem], settings: &Path) {
    let mut files: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    for problem in problems.iter_mut() {
        let Some(place) = problem.place.as_ref().filter(|place| place.line > 0 && place.file != settings) else { continue };
        if problem.excerpt.is_none() {
            let lines = files.entry(place.file.clone()).or_insert_with(|| lines(&place.file));
            let line = usize::try_from(place.line).ok().and_then(|line| lines.get(line - 1));
            problem.excerpt = line.filter(|line| !line.trim().is_empty()).map(|line| line.chars().take(LENGTH_LIMIT).collect());
        }
        hide_secret(problem);
    }
}

/// Takes the secret out of a problem's excerpt: whoever may read the status may not therefore read pool files.
pub(in crate::runtime) fn hide_secret(problem: &mut Problem) {
    if let Some(hidden) = problem.excerpt.as_deref().and_then(without_secret) {
        problem.columns = problem.columns.filter(|(_, end)| *end <= hidden.len());
        problem.excerpt = Some(hidden);
    }
}

fn lines(path: &Path) -> Vec<String> {
    // Opening a FIFO would wait for a writer for ever.
    if !fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        return Vec::new();
    }
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_LIMIT_BYTES).read_to_end(&mut bytes));
    if read.is_err() { Vec::new() } else { String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect() }
}

/// Gives a pool file's line without the value of an environment variable or of a setting that is called a secret.
fn without_secret(line: &str) -> Option<String> {
    let (key, _) = line.split_once('=')?;
    let name = key.trim().to_ascii_lowercase();
    let secret = name.starts_with("env[")
        || (name.starts_with("php_") && ["pass", "secret", "token", "key", "save_path"].iter().any(|word| name.contains(word)));
    secret.then(|| format!("{key}= ***"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_added_and_secrets_are_not_shown() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("www.conf");
        fs::write(&file, "[www]\nlisten = /x\nenv[DB_PASSWORD] = hunter2\nphp_admin_value[mysqli.default_pw_password] = \"p\"\n").unwrap();
        let at = |line| Problem::error("x").at(&file, line);
        let mut problems = vec![at(2), at(3).columns(19, 26), at(4), at(9), at(0), at(3).excerpt("env[A] = hunter2")];
        complete(&mut problems, Path::new("/settings.toml"));
        let shown: Vec<Option<&str>> = problems.iter().map(|problem| problem.excerpt.as_deref()).collect();
        assert_eq!(
            shown,
            [
                Some("listen = /x"),
                Some("env[DB_PASSWORD] = ***"),
                Some("php_admin_value[mysqli.default_pw_password] = ***"),
                None,
                None,
                Some("env[A] = ***")
            ]
        );
    }
}
