//! What `nginx -T` prints: every file of the configuration, once, each after a line that names it.
//!
//! Source: nginx `nginx.c` `main` (the dump), `ngx_conf_file.c` `ngx_conf_add_dump`; checked with 1.22.1.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::syntax::{Directive, SyntaxError, parse};

const HEADER: &[u8] = b"# configuration file ";

/// One file of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    /// Its path as NGINX opened it.
    pub path: PathBuf,
    /// Its directives, or why it could not be read.
    pub directives: Result<Vec<Directive>, SyntaxError>,
}

/// A whole configuration; the main file is the first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    pub(super) files: Vec<ConfigFile>,
}

impl Config {
    /// Reads the output of `nginx -T`. Anything before the first file's line is left out.
    pub fn from_dump(dump: &[u8]) -> Self {
        let files = split(dump).into_iter().map(|(path, text)| ConfigFile { path, directives: parse(text) }).collect();
        Self { files }
    }

    /// Gives the files, the main file first.
    pub fn files(&self) -> &[ConfigFile] {
        &self.files
    }

    /// Gives the directory that relative includes start from.
    pub(super) fn directory(&self) -> &Path {
        self.files.first().and_then(|file| file.path.parent()).unwrap_or(Path::new("/"))
    }
}

/// Splits a dump into its files. A path that was named before is text of a file: NGINX prints each file once.
fn split(dump: &[u8]) -> Vec<(PathBuf, &[u8])> {
    let mut headers: Vec<(usize, usize, PathBuf)> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut start = 0;
    for line in dump.split_inclusive(|byte| *byte == b'\n') {
        let end = start + line.len();
        if let Some(path) = header(line)
            && seen.insert(path.clone())
        {
            headers.push((start, end, path));
        }
        start = end;
    }
    let ends: Vec<usize> = headers.iter().skip(1).map(|(start, ..)| *start).chain([dump.len()]).collect();
    headers
        .into_iter()
        .zip(ends)
        .map(|((_, begin, path), end)| {
            let text = dump.get(begin..end).unwrap_or_default();
            // NGINX adds one line feed after each file.
            (path, text.strip_suffix(b"\n").unwrap_or(text))
        })
        .collect()
}

fn header(line: &[u8]) -> Option<PathBuf> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let path = line.strip_prefix(HEADER)?.strip_suffix(b":")?;
    path.starts_with(b"/").then(|| PathBuf::from(OsStr::from_bytes(path)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_dump_is_split_at_the_lines_that_name_files() {
        let dump = b"noise\n# configuration file /e/nginx.conf:\na;\n# configuration file /e/nginx.conf:\nb;\n\n\
            # configuration file x:\n# configuration file /e/c d.conf:\nc;\n# configuration file /e/empty:\n\n";
        let files = split(dump);
        let shown: Vec<_> = files.iter().map(|(path, text)| (path.to_str().unwrap(), std::str::from_utf8(text).unwrap())).collect();
        assert_eq!(
            shown,
            [
                ("/e/nginx.conf", "a;\n# configuration file /e/nginx.conf:\nb;\n\n# configuration file x:"),
                ("/e/c d.conf", "c;"),
                ("/e/empty", ""),
            ]
        );
    }

    proptest! {
        #[test]
        fn random_dumps_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut dump = b"# configuration file /a:\n".to_vec();
            dump.extend(bytes);
            let _reading = Config::from_dump(&dump).reading();
        }
    }
}
