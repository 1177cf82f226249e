//! Reads the main file and everything it includes, line by line, as php-fpm does.
//!
//! php-fpm stops at the first fault. Here every fault is kept with its place, and a fault that lies inside one pool
//! keeps only that pool out: the lines of a section whose header cannot be read belong to nobody, so they are passed
//! over rather than given to the pool before.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::model::ids::PoolName;
use crate::model::pool::{Origin, Quarantined, RawLine};
use crate::model::problem::{Problem, Severity};

use super::check::{self, Draft};
use super::keys::{self, Section};
use super::statement::{Fault, Said, Statement, statements};
use super::{Dialect, IncludeError, IncludeRequest, Lookups, ReadContext, Reading, SourceFile};

/// Files that may be open inside one another, the main file included. Source: php-src `fpm_conf.c`, checked with 8.2.36.
const DEPTH_LIMIT: usize = 5;

/// The most of a line that a problem shows.
const EXCERPT_LIMIT_BYTES: usize = 300;

/// Reads `main` and everything it includes; `source` finds and opens the files.
pub fn read(
    main: &Path,
    context: &ReadContext,
    source: &mut dyn FnMut(IncludeRequest) -> Result<Vec<SourceFile>, IncludeError>,
) -> Reading {
    let lookups = Lookups { context, words: Default::default(), variables: Default::default() };
    let mut reader = Reader {
        lookups,
        source,
        dialect: Dialect::of(&context.build),
        section: Current::Global,
        drafts: Vec::new(),
        stopped: false,
        reading: Reading::default(),
    };
    match (reader.source)(IncludeRequest::Main(main.to_owned())) {
        Ok(files) => files.into_iter().for_each(|file| reader.main(file)),
        Err(error) => reader.reading.problems.push(Problem::error(error.to_string()).at(main, 0)),
    }
    reader.finish()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Current {
    Global,
    Pool(usize),
    /// Below a header that could not be read.
    Lost,
}

struct Reader<'a> {
    lookups: Lookups<'a>,
    source: &'a mut dyn FnMut(IncludeRequest) -> Result<Vec<SourceFile>, IncludeError>,
    dialect: Dialect,
    section: Current,
    drafts: Vec<Draft>,
    /// Set when files are nested too deep: what else they would include is not looked at.
    stopped: bool,
    reading: Reading,
}

/// A line and where it stands.
#[derive(Clone, Copy)]
struct Line<'a> {
    origin: &'a Origin,
    bytes: &'a [u8],
}

impl Line<'_> {
    fn problem(self, message: String) -> Problem {
        let shown = self.bytes.get(..EXCERPT_LIMIT_BYTES).unwrap_or(self.bytes);
        Problem::error(message).at(self.origin.file.as_path(), self.origin.line).excerpt(String::from_utf8_lossy(shown))
    }

    fn problem_at(self, message: String, columns: (usize, usize)) -> Problem {
        let length = self.bytes.len();
        let problem = self.problem(message);
        // Columns count in the excerpt, so they are told only where it shows the bytes as they are.
        if columns.0 < columns.1 && length <= EXCERPT_LIMIT_BYTES && self.bytes.is_ascii() {
            return problem.columns(columns.0.min(length), columns.1.min(length));
        }
        problem
    }
}

impl Reader<'_> {
    fn main(&mut self, file: SourceFile) {
        if let Err(reason) = &file.content {
            let problem = Problem::error(format!("failed to open configuration file: {reason}")).at(&file.path, 0);
            self.reading.problems.push(problem);
            return;
        }
        self.load(file, 1);
    }

    fn load(&mut self, file: SourceFile, depth: usize) {
        let content = match file.content {
            Ok(content) => content,
            Err(reason) => return self.unreadable(&file.path, &reason),
        };
        if !self.reading.files.files.contains(&file.path) {
            self.reading.files.files.push(file.path.clone());
        }
        let path = Arc::new(file.path);
        let mut number: u32 = 0;
        for bytes in content.split(|byte| *byte == b'\n') {
            number = number.saturating_add(1);
            if bytes.is_empty() {
                continue;
            }
            let origin = Origin { file: Arc::clone(&path), line: number };
            let shown = bytes.strip_suffix(b"\r").unwrap_or(bytes);
            let line = Line { origin: &origin, bytes: shown };
            if let Some(pattern) = self.line(line, bytes) {
                self.include(line, &pattern, depth);
            }
        }
    }

    /// A matched file that cannot be opened ends php-fpm; here the pool that is named like it is kept out.
    fn unreadable(&mut self, path: &Path, reason: &str) {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let problem = Problem::error(format!("failed to open configuration file: {reason}"))
            .at(path, 0)
            .remedy("make the file readable, or remove it");
        self.reading.quarantined.push(Quarantined { pool: PoolName::new(stem), problem });
        self.section = Current::Lost;
    }

    fn include(&mut self, line: Line<'_>, pattern: &[u8], depth: usize) {
        let pattern = self.lookups.context.prefix.join(Path::new(OsStr::from_bytes(pattern)));
        if !self.reading.files.patterns.contains(&pattern) {
            self.reading.files.patterns.push(pattern.clone());
        }
        if self.stopped {
            return;
        }
        match (self.source)(IncludeRequest::Pattern(pattern.clone())) {
            Ok(files) if files.is_empty() => {
                let message = format!("nothing matches the include pattern '{}'", pattern.display());
                let problem = line.problem(message);
                self.reading.problems.push(Problem { severity: Severity::Warning, ..problem });
            }
            Ok(_) if depth >= DEPTH_LIMIT => {
                self.stopped = true;
                let problem = line.problem(format!("failed to include more than {DEPTH_LIMIT} files recursively"));
                self.reading.problems.push(problem.remedy("include fewer levels; a file may not include itself"));
            }
            Ok(files) => files.into_iter().for_each(|file| self.load(file, depth + 1)),
            Err(error) => {
                let problem = line.problem(format!("unable to globalize '{}': {error}", pattern.display()));
                self.reading.problems.push(problem.remedy("make the directory, or remove the include"));
            }
        }
    }

    /// Reads one line; gives the pattern it includes.
    fn line(&mut self, line: Line<'_>, physical: &[u8]) -> Option<Vec<u8>> {
        let said = match statements(physical, self.dialect, &mut self.lookups) {
            Ok(said) => said,
            Err(fault) => {
                self.syntax(line, fault);
                return None;
            }
        };
        let alone = said.len() == 1;
        let mut included = None;
        for one in said {
            let text = if alone { line.bytes } else { part(physical, &one) };
            self.apply(line, &one, text, &mut included);
        }
        included
    }

    fn syntax(&mut self, line: Line<'_>, fault: Fault) {
        let mut problem = line.problem_at(fault.message, fault.columns);
        problem.remedy = fault.remedy.map(str::to_owned);
        if line.bytes.trim_ascii_start().starts_with(b"#") {
            problem.remedy = Some("start comments with ';'".into());
        }
        if fault.in_section { self.lose(&guess(line.bytes), problem) } else { self.fault(problem) }
    }

    /// Goes on below a header that cannot be used: `name` is the pool that is probably meant.
    fn lose(&mut self, name: &str, problem: Problem) {
        self.section = Current::Lost;
        if name.eq_ignore_ascii_case("global") {
            self.reading.problems.push(problem);
        } else {
            self.reading.quarantined.push(Quarantined { pool: PoolName::new(name), problem });
        }
    }

    fn fault(&mut self, problem: Problem) {
        match self.section {
            Current::Pool(at) => {
                if let Some(draft) = self.drafts.get_mut(at) {
                    draft.faults.push(problem);
                }
            }
            Current::Global => self.reading.problems.push(problem),
            // What a lost section says is told by the fault of its header.
            Current::Lost => {}
        }
    }

    fn apply(&mut self, line: Line<'_>, said: &Said, text: &[u8], included: &mut Option<Vec<u8>>) {
        match &said.statement {
            Statement::Section(name) => self.enter(line, text, name),
            Statement::Entry(name, value) if name == b"include" => {
                if included.is_some() {
                    let problem = line.problem("two includes at the same time".into());
                    return self.reading.problems.push(problem.remedy("put each include on a line of its own"));
                }
                *included = Some(c_string(value).to_vec());
            }
            Statement::Entry(name, value) => self.entry(line, said, text, (name, c_string(value))),
            Statement::Element(name, element, value) => {
                self.element(line, said, text, (&lossy(name), &lossy(c_string(element)), c_string(value)));
            }
            Statement::Bare(name) => {
                let problem = line.problem(format!("value is NULL: '{}' has no '='", lossy(name)));
                let remedy =
                    if name.starts_with(b"#") { "start comments with ';'" } else { "write KEY = VALUE, or start the line with ';'" };
                self.fault(problem.remedy(remedy));
            }
        }
    }

    fn enter(&mut self, line: Line<'_>, text: &[u8], name: &[u8]) {
        let name = lossy(c_string(name));
        if name.eq_ignore_ascii_case("global") {
            self.section = Current::Global;
            return;
        }
        if name.contains("$pool") {
            let problem = line.problem("'$pool' cannot be part of a section's name: php-fpm would replace it for ever".into());
            return self.lose(&name, problem.remedy("name the pool"));
        }
        let known = self.drafts.iter().position(|draft| draft.name.eq_ignore_ascii_case(&name));
        let at = known.unwrap_or_else(|| {
            self.drafts.push(Draft::new(name, text.to_vec(), line.origin.clone()));
            self.drafts.len() - 1
        });
        self.section = Current::Pool(at);
    }

    fn entry(&mut self, line: Line<'_>, said: &Said, text: &[u8], (name, value): (&[u8], &[u8])) {
        let section = match self.section {
            Current::Global => Section::Global,
            Current::Pool(_) => Section::Pool,
            Current::Lost => return,
        };
        let name = lossy(name);
        let shown = lossy(value);
        match keys::find(section, &name, self.dialect) {
            Some(key) => {
                if let Err(complaint) = keys::check(key, value, self.dialect) {
                    let message = format!("unable to parse value '{shown}' for entry '{}': {complaint}", key.name);
                    return self.fault(line.problem_at(message, (said.value, said.end)));
                }
                if section == Section::Global && key.shape == keys::Shape::Text && shown.contains("$pool") {
                    let message = format!("unable to parse value for entry '{}': can't use '$pool' when the pool is not defined", key.name);
                    return self.fault(line.problem_at(message, (said.value, said.end)));
                }
            }
            None if self.dialect.beyond_tables() => {
                let problem = line.problem(format!("'{name}' is not known to polyfpm: it is left to php-fpm {}", self.dialect.version));
                self.reading.problems.push(Problem { severity: Severity::Warning, ..problem });
            }
            None => {
                let problem = line.problem_at(format!("unknown entry '{name}'"), (said.start, said.start + name.len()));
                return self.fault(Problem { remedy: keys::advice(section, &name), ..problem });
            }
        }
        self.keep(RawLine {
            origin: line.origin.clone(),
            text: text.to_vec(),
            key: name.to_ascii_lowercase(),
            element: None,
            value: shown,
        });
    }

    fn element(&mut self, line: Line<'_>, said: &Said, text: &[u8], (name, element, value): (&str, &str, &[u8])) {
        if self.section == Current::Lost {
            return;
        }
        let value = match array_value(name, element, value, (self.section, self.dialect)) {
            Ok(value) => value,
            Err((message, remedy)) => {
                let problem = line.problem_at(message, (said.start, said.end));
                return self.fault(Problem { remedy: remedy.or_else(|| array_advice(name)), ..problem });
            }
        };
        self.keep(RawLine {
            origin: line.origin.clone(),
            text: text.to_vec(),
            key: name.to_owned(),
            element: Some(element.to_owned()),
            value,
        });
    }

    fn keep(&mut self, line: RawLine) {
        match self.section {
            Current::Global => self.reading.files.global.lines.push(line),
            Current::Pool(at) => {
                if let Some(draft) = self.drafts.get_mut(at) {
                    draft.lines.push(line);
                }
            }
            Current::Lost => {}
        }
    }

    fn finish(self) -> Reading {
        let Self { lookups, drafts, mut reading, dialect, .. } = self;
        check::global(&mut reading, lookups.context);
        if drafts.is_empty() && reading.quarantined.is_empty() && reading.usable() {
            let file = reading.files.files.first().cloned().unwrap_or_else(PathBuf::new);
            let problem = Problem::error("no pool defined: at least one pool section must be specified in config file").at(file, 0);
            reading.problems.push(problem.remedy("write a [name] section with user, listen and pm"));
        }
        check::pools(drafts, &mut reading, lookups.context, dialect);
        reading.words = lookups.words;
        reading.variables = lookups.variables;
        reading
    }
}

type Complaint = (String, Option<String>);

/// Checks an array entry and gives its value as php-fpm keeps it.
fn array_value(name: &str, element: &str, value: &[u8], (section, dialect): (Current, Dialect)) -> Result<String, Complaint> {
    let plain = |message: &str| (message.to_owned(), None);
    let array = if keys::array_known(name, dialect.version) { name } else { "" };
    match array {
        "access.suppress_path" if !element.is_empty() => {
            return Err(plain("keys provided to field 'access.suppress_path' are ignored"));
        }
        "access.suppress_path" if !value.starts_with(b"/") => {
            return Err(plain("values provided to field 'access.suppress_path' must begin with '/'"));
        }
        "access.suppress_path" => {}
        _ if element.is_empty() => return Err((format!("you must provide a key for field '{name}'"), None)),
        _ => {}
    }
    if section == Current::Global {
        let remedy = "move the line below a pool's [section] line".to_owned();
        return Err(("arrays are not allowed in the global section".into(), Some(remedy)));
    }
    match array {
        "" if dialect.beyond_tables() => {}
        "" => return Err((format!("unknown directive '{name}'"), None)),
        "env" if value.is_empty() => return Err(plain("empty value")),
        "php_flag" | "php_admin_flag" => {
            return match keys::boolean(value, dialect) {
                Ok(on) => Ok(if on { "1" } else { "0" }.to_owned()),
                Err(complaint) => Err((format!("error while parsing '{name}[{element}]': {complaint}"), None)),
            };
        }
        _ => {}
    }
    Ok(lossy(value))
}

fn array_advice(name: &str) -> Option<String> {
    if keys::ARRAYS.contains(&name) { None } else { keys::advice(Section::Pool, name) }
}

/// The bytes of one of several statements on a line, which stand for themselves as a line of their own.
fn part<'a>(physical: &'a [u8], said: &Said) -> &'a [u8] {
    physical.get(said.start..said.end.min(physical.len())).unwrap_or_default().trim_ascii()
}

/// A C string ends at its first NUL.
fn c_string(value: &[u8]) -> &[u8] {
    value.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The name a broken section header was probably meant to have.
fn guess(line: &[u8]) -> String {
    let text = lossy(line);
    let inner = text.split_once('[').map_or(text.as_str(), |(_, rest)| rest);
    let inner = inner.split([']', ';']).next().unwrap_or_default();
    inner.trim_matches(|c: char| c.is_whitespace() || c == '"' || c == '\'').to_owned()
}
