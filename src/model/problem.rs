//! A fault in something the operator wrote, told so that it can be mended.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// How much a problem hinders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The thing cannot be used as written.
    Error,
    /// It can be used, but the promise (no request lost) or something else does not hold.
    Warning,
    /// Good to know; for example a key that has no effect yet.
    Note,
}

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; 0 means the file as a whole.
    pub line: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 { write!(f, "{}", self.file.display()) } else { write!(f, "{}:{}", self.file.display(), self.line) }
    }
}

/// One fault: where, what, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// How much it hinders.
    pub severity: Severity,
    /// Where it is, when it is in a file.
    pub place: Option<Place>,
    /// The line as written (lossy text, at most a few hundred bytes).
    pub excerpt: Option<String>,
    /// The byte columns (from 0, end exclusive) of `excerpt` that are at fault.
    pub columns: Option<(usize, usize)>,
    /// What is wrong, a lowercase fragment that names the value.
    pub message: String,
    /// What to do, an imperative.
    pub remedy: Option<String>,
}

impl Problem {
    /// Makes a problem with a message alone.
    pub fn new(severity: Severity, message: impl Into<String>) -> Self {
        Self { severity, place: None, excerpt: None, columns: None, message: message.into(), remedy: None }
    }

    /// Makes an error with a message alone.
    pub fn error(message: impl Into<String>) -> Self {
        Self::new(Severity::Error, message)
    }

    /// Makes a warning with a message alone.
    pub fn warning(message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, message)
    }

    /// Makes a note with a message alone.
    pub fn note(message: impl Into<String>) -> Self {
        Self::new(Severity::Note, message)
    }

    /// Adds where it is.
    #[must_use]
    pub fn at(mut self, file: impl Into<PathBuf>, line: u32) -> Self {
        self.place = Some(Place { file: file.into(), line });
        self
    }

    /// Adds the line as written.
    #[must_use]
    pub fn excerpt(mut self, excerpt: impl Into<String>) -> Self {
        self.excerpt = Some(excerpt.into());
        self
    }

    /// Adds the part of the excerpt that is at fault, in bytes from 0, end exclusive.
    #[must_use]
    pub fn columns(mut self, start: usize, end: usize) -> Self {
        self.columns = Some((start, end));
        self
    }

    /// Adds what to do.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

impl fmt::Display for Problem {
    /// One line: `FILE:LINE: message`, for logs. `cli` prints the long form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.message)
    }
}
