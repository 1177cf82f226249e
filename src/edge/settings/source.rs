//! The file's text, and how a problem points into it.
//!
//! Values of `php.environment` are secrets: whatever part of a line shows one is replaced before the line becomes an
//! excerpt, so that `check` can be pasted into a ticket.

use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use crate::model::problem::Problem;
use crate::model::settings::{Written, WrittenValue};

/// The longest excerpt, in bytes: two lines of a wide terminal.
const EXCERPT_LIMIT_BYTES: usize = 240;

/// What a long excerpt shows before the fault, in bytes.
const EXCERPT_LEAD_BYTES: usize = 80;

/// What stands for a secret.
const MASK: &str = "***";

/// The text of one settings file.
#[derive(Debug)]
pub(super) struct Source<'d> {
    file: &'d Path,
    text: &'d str,
    secrets: Vec<Range<usize>>,
}

impl<'d> Source<'d> {
    /// Wraps the text of `file`; `root` is what could be read of it.
    pub(super) fn new(file: &'d Path, text: &'d str, root: &DeTable<'_>) -> Self {
        let mut secrets = Vec::new();
        let environment = root.get("php").and_then(|php| php.get_ref().as_table()?.get("environment"));
        if let Some(environment) = environment {
            collect_leaves(environment.get_ref(), environment.span(), &mut secrets);
        }
        secrets.sort_by_key(|span| span.start);
        Self { file, text, secrets }
    }

    /// Gives the line, from 1, of a byte of the text.
    pub(super) fn line(&self, offset: usize) -> u32 {
        let before = self.text.as_bytes().iter().take(offset);
        u32::try_from(before.filter(|byte| **byte == b'\n').count() + 1).unwrap_or(u32::MAX)
    }

    /// Adds file, line, excerpt and columns to a problem at `span`.
    pub(super) fn point(&self, problem: Problem, span: &Range<usize>) -> Problem {
        let (excerpt, columns) = self.excerpt(span);
        problem.at(self.file, self.line(span.start)).excerpt(excerpt).columns(columns.start, columns.end)
    }

    /// Gives where each key below `root` is written, but nothing of `php.environment`.
    pub(super) fn written(&self, root: &DeTable<'_>) -> Written {
        let mut written = Written::default();
        self.collect("", root, &mut written);
        written
    }

    fn collect(&self, above: &str, table: &DeTable<'_>, written: &mut Written) {
        for (key, entry) in table {
            let name = if above.is_empty() { key.get_ref().to_string() } else { format!("{above}.{}", key.get_ref()) };
            if name == "php.environment" {
                continue;
            }
            match entry.get_ref() {
                DeValue::Table(table) => self.collect(&name, table, written),
                DeValue::Array(elements) if elements.iter().any(|element| element.get_ref().is_table()) => {
                    for (number, table) in elements.iter().enumerate().filter_map(|(n, element)| Some((n, element.get_ref().as_table()?))) {
                        self.collect(&format!("{name}.{number}"), table, written);
                    }
                }
                DeValue::String(_)
                | DeValue::Integer(_)
                | DeValue::Float(_)
                | DeValue::Boolean(_)
                | DeValue::Datetime(_)
                | DeValue::Array(_) => {
                    let (excerpt, columns) = self.excerpt(&entry.span());
                    let value = WrittenValue { line: self.line(entry.span().start), excerpt, columns: (columns.start, columns.end) };
                    written.0.insert(name, value);
                }
            }
        }
    }

    /// Adds file and line alone, for a fault so near a secret that the line must not be shown.
    pub(super) fn point_blind(&self, problem: Problem, span: &Range<usize>) -> Problem {
        problem.at(self.file, self.line(span.start))
    }

    /// Adds the file alone.
    pub(super) fn point_at_file(&self, problem: Problem) -> Problem {
        problem.at(self.file, 0)
    }

    /// Tells whether a syntax fault at `offset` may lie within the value of `php.environment`.
    ///
    /// The value's extent is not known when its syntax is wrong, so everything from the key to the next table header counts.
    pub(super) fn may_show_secret(&self, offset: usize) -> bool {
        let fault = self.line(offset);
        let mut within = false;
        for (number, line) in (1u32..).zip(self.text.lines()) {
            let line = line.trim_start();
            let names_it = !line.starts_with('#') && line.replace("inherit_environment", "").contains("environment");
            within = names_it || (within && !line.starts_with('['));
            if number == fault {
                return within;
            }
        }
        within
    }

    fn excerpt(&self, span: &Range<usize>) -> (String, Range<usize>) {
        let line = self.line_span(span.start);
        let mut shown = String::new();
        let (mut start, mut end) = (None, None);
        let mut at = line.start;
        while at < line.end {
            let secret = self.secrets.iter().find(|secret| secret.contains(&at));
            let next = secret.map_or_else(|| self.piece_end(at, &line, span), |secret| secret.end.min(line.end));
            if start.is_none() && next > span.start {
                start = Some(shown.len());
            }
            shown.push_str(if secret.is_some() { MASK } else { self.text.get(at..next).unwrap_or_default() });
            if end.is_none() && next >= span.end.min(line.end) {
                end = Some(shown.len());
            }
            at = next;
        }
        let start = start.unwrap_or(shown.len());
        let end = end.unwrap_or(shown.len()).max(start);
        clip(&shown, start..end)
    }

    /// Gives where a piece of plain text that begins at `at` ends: at a secret, at either end of the fault, or at the line's end.
    fn piece_end(&self, at: usize, line: &Range<usize>, span: &Range<usize>) -> usize {
        let secrets = self.secrets.iter().map(|secret| secret.start);
        let ends = secrets.chain([span.start, span.end, line.end]).filter(|end| *end > at && *end <= line.end);
        ends.filter(|end| self.text.is_char_boundary(*end)).min().unwrap_or(line.end)
    }

    fn line_span(&self, offset: usize) -> Range<usize> {
        let offset = offset.min(self.text.len());
        let bytes = self.text.as_bytes();
        let start = bytes.iter().take(offset).rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let end = bytes.iter().skip(offset).position(|byte| *byte == b'\n').map_or(bytes.len(), |at| offset + at);
        let end = if end > start && bytes.get(end - 1) == Some(&b'\r') { end - 1 } else { end };
        start..end
    }
}

fn collect_leaves(value: &DeValue<'_>, span: Range<usize>, leaves: &mut Vec<Range<usize>>) {
    match value {
        DeValue::Table(table) => table.values().for_each(|entry| collect_leaves(entry.get_ref(), entry.span(), leaves)),
        DeValue::String(_) | DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Array(_) => {
            leaves.push(span);
        }
    }
}

/// Shortens a line to what is around the fault.
fn clip(line: &str, columns: Range<usize>) -> (String, Range<usize>) {
    if line.len() <= EXCERPT_LIMIT_BYTES {
        return (line.to_owned(), columns);
    }
    let from = line.floor_char_boundary(columns.start.saturating_sub(EXCERPT_LEAD_BYTES));
    let to = line.floor_char_boundary((from + EXCERPT_LIMIT_BYTES).min(line.len()));
    let start = columns.start - from;
    let end = columns.end.min(to).saturating_sub(from).max(start);
    (line.get(from..to).unwrap_or_default().to_owned(), start..end)
}
