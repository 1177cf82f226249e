//! The settings file: as written, checked, resolved.
//!
//! [`load`] reads a file such as `/etc/polyfpm/php8.2.toml` and gives [`Settings`] with every default filled in, or every
//! fault at once. [`locate()`] finds the file an operator means. Whether the paths in the file exist is not asked here: the
//! adapters of php-fpm and NGINX tell that with more to say.
//!
//! Each table has a reader of its own; [`KEYS`] is the one list of keys, and tests hold reader, list, example file and
//! `docs/settings.md` together. A key that is accepted and has no effect yet gives a note, never silence.

#[cfg(fuzzing)]
pub mod fuzzing;
mod groups;
pub mod keys;
mod locate;
mod php;
mod reader;
mod source;
mod tables;
#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use toml::de::DeTable;

pub use keys::{Default, KEYS, Key};
pub use locate::{ETC_DIRECTORY, LocateError, locate};

use crate::model::ids::InstanceName;
use crate::model::problem::{Problem, Severity};
use crate::model::settings::Settings;
use crate::sys::limits::attainable;
use crate::sys::spawn::Resource;
use reader::Reader;
use source::Source;

/// The biggest settings file read, in bytes; real ones have a few kilobytes.
const FILE_LIMIT_BYTES: u64 = 1 << 20;

/// Settings that can be used, and what is worth saying about them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// What the file means.
    pub settings: Settings,
    /// Warnings and notes.
    pub problems: Vec<Problem>,
}

/// Reads a settings file.
///
/// # Errors
/// Every problem found, in the order of the file, when at least one of them is an error. No problem shows a value of
/// `php.environment`.
pub fn load(file: &Path) -> Result<Loaded, Vec<Problem>> {
    // Whoever only asks a running supervisor may have lower limits than it has.
    load_within(file, |_, wanted| wanted)
}

/// Reads a settings file for a process that is to start masters, or to say whether it could: limits that this process
/// cannot give are problems, too.
///
/// # Errors
/// As [`load`].
pub fn load_for_masters(file: &Path) -> Result<Loaded, Vec<Problem>> {
    load_within(file, attainable)
}

fn load_within(file: &Path, attainable: Attainable) -> Result<Loaded, Vec<Problem>> {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let text = read(&file)?;
    understand(&file, &text, attainable)
}

/// Gives where the supervisor of a settings file takes commands, whatever else is wrong with the file: a running supervisor
/// can be asked while the file is being edited. `None` where the file cannot be read.
pub fn control_socket(file: &Path) -> Option<PathBuf> {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let text = read(&file).ok()?;
    let (root, syntax) = DeTable::parse_recoverable(&text);
    let root = root.get_ref();
    let reader = Reader::new(Source::new(&file, &text, root), root, &syntax);
    let directory = tables::run_directory(&reader, &instance_of(&file, &reader));
    Some(tables::control(&reader, &directory).socket)
}

/// Gives how much of a resource a master can be allowed of what is wanted.
type Attainable = fn(Resource, u64) -> u64;

/// Reads a settings file to tell everything about it: whatever is wrong in it is taken as if it were not written.
///
/// No settings come of a file that cannot be read or has lines that are no TOML: most of what they said would be guessed.
pub fn survey(file: &Path) -> (Option<Settings>, Vec<Problem>) {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    match read(&file) {
        Ok(text) => understand_anyway(&file, &text, attainable),
        Err(problems) => (None, problems),
    }
}

fn understand(file: &Path, text: &str, attainable: Attainable) -> Result<Loaded, Vec<Problem>> {
    match understand_anyway(file, text, attainable) {
        (Some(settings), problems) if problems.iter().all(|problem| problem.severity != Severity::Error) => {
            Ok(Loaded { settings, problems })
        }
        (_, problems) => Err(problems),
    }
}

fn understand_anyway(file: &Path, text: &str, attainable: Attainable) -> (Option<Settings>, Vec<Problem>) {
    let (root, syntax) = DeTable::parse_recoverable(text);
    let root = root.get_ref();
    let reader = Reader::new(Source::new(file, text, root), root, &syntax);
    let instance = instance_of(file, &reader);
    let settings = resolve(&reader, file.to_owned(), instance, attainable);
    let settings = (!reader.is_broken()).then_some(settings);
    (settings, reader.into_problems())
}

fn resolve(reader: &Reader<'_>, file: PathBuf, instance: InstanceName, attainable: Attainable) -> Settings {
    reader.refuse_unknown_tables();
    let runtime_directory = tables::run_directory(reader, &instance);
    let (groups, routing) = groups::read(reader);
    Settings {
        php: php::read(&reader.section("php")),
        groups,
        routing,
        listen: tables::listen(reader, &runtime_directory),
        limits: tables::limits(reader, attainable),
        health: tables::health(reader),
        restart: tables::restart(reader),
        nginx: tables::nginx(reader, &instance),
        control: tables::control(reader, &runtime_directory),
        metrics_listen: tables::metrics_listen(reader),
        log: tables::log(reader),
        written: reader.written(),
        runtime_directory,
        instance,
        file,
    }
}

/// Gives the instance a settings file is for: its name without `.toml`.
fn instance_of(file: &Path, reader: &Reader<'_>) -> InstanceName {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(".toml").unwrap_or(&name);
    if !groups::is_name(stem) {
        let problem = Problem::error(format!("the file's name '{}' gives no name of an instance", name.escape_debug()));
        reader.report_file(problem.remedy(format!("rename the file to INSTANCE.toml; in INSTANCE {}", groups::NAME_RULE)));
    }
    InstanceName::new(stem)
}

fn read(file: &Path) -> Result<String, Vec<Problem>> {
    let refused = |message: String, remedy: &str| vec![Problem::error(message).at(file, 0).remedy(remedy)];
    let unreadable = |error: &io::Error| refused(format!("the settings file cannot be read: {error}"), "name a readable file with -c FILE");
    // Asked before it is opened: opening a named pipe would wait for a writer.
    if !std::fs::metadata(file).map_err(|error| unreadable(&error))?.is_file() {
        return Err(refused("the settings file is no regular file".to_owned(), "name a regular file with -c FILE"));
    }
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file).map_err(|error| unreadable(&error))?;
    opened.take(FILE_LIMIT_BYTES + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
    if bytes.len() as u64 > FILE_LIMIT_BYTES {
        return Err(refused(
            "the settings file is bigger than 1M".to_owned(),
            "name a settings file with -c FILE; pools belong in the pool files",
        ));
    }
    String::from_utf8(bytes).map_err(|error| vec![not_text(file, &error)])
}

fn not_text(file: &Path, error: &std::string::FromUtf8Error) -> Problem {
    let good = error.as_bytes().iter().take(error.utf8_error().valid_up_to());
    let line = u32::try_from(good.filter(|byte| **byte == b'\n').count() + 1).unwrap_or(u32::MAX);
    Problem::error("the line has bytes that are not UTF-8").at(file, line).remedy("save the file as UTF-8")
}
