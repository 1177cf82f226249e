//! A typed reader that goes on after a fault.
//!
//! The derived readers of the TOML library stop at the first wrong value. Here each key is read on its own: a wrong one
//! becomes a [`Problem`] with its place and the reader gives `None`, the caller takes the default, and the file as a whole
//! is refused at the end, with every fault told.

use std::cell::RefCell;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::keys;
use super::source::Source;
use crate::model::problem::{Problem, Severity};
use crate::model::settings::Written;
use crate::text::quantity;

/// The file under the reader, and what was found wrong with it so far.
#[derive(Debug)]
pub(super) struct Reader<'d> {
    source: Source<'d>,
    root: &'d DeTable<'d>,
    problems: RefCell<Vec<Problem>>,
    /// Lines with wrong syntax: what was made of them is a guess, so nothing more is said of them.
    broken_lines: Vec<u32>,
}

impl<'d> Reader<'d> {
    /// Starts on what could be read of the text, with the library's complaints about its syntax.
    pub(super) fn new(source: Source<'d>, root: &'d DeTable<'d>, syntax: &[toml::de::Error]) -> Self {
        let mut reader = Self { source, root, problems: RefCell::default(), broken_lines: Vec::new() };
        for error in syntax {
            let span = error.span().unwrap_or(0..0);
            let line = reader.source.line(span.start);
            if reader.broken_lines.contains(&line) {
                continue;
            }
            let problem = Problem::error(format!("not TOML: {}", error.message())).remedy(syntax_remedy(error.message()));
            let hidden = reader.source.may_show_secret(span.start);
            let pointed = if hidden { reader.source.point_blind(problem, &span) } else { reader.source.point(problem, &span) };
            reader.problems.get_mut().push(pointed);
            reader.broken_lines.push(line);
        }
        reader
    }

    /// Gives everything found, in the order of the file.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| (problem.place.as_ref().map_or(0, |place| place.line), problem.columns));
        // A table that is none is complained of by everyone who asks for it.
        problems.dedup();
        problems
    }

    /// Gives a table at the top of the file, empty when it is not written.
    pub(super) fn section(&'d self, name: &'static str) -> Section<'d> {
        let entry = self.root.get(name).and_then(|entry| Value::new(self, name.to_owned(), entry).table());
        Section { reader: self, name: name.to_owned(), keys: name, entry }
    }

    /// Complains of every unknown table or key at the top of the file.
    pub(super) fn refuse_unknown_tables(&self) {
        let known = keys::top_tables();
        for (key, entry) in self.root {
            let name: &str = key.get_ref();
            // After a broken header, its first line may be taken for a header itself.
            let after_broken = self.broken_lines.contains(&self.source.line(key.span().start).saturating_sub(1));
            if known.contains(&name) || after_broken {
                continue;
            }
            let is_table = matches!(entry.get_ref(), DeValue::Table(_) | DeValue::Array(_));
            let message = if is_table { format!("unknown table [{name}]") } else { format!("unknown key '{name}' before the first table") };
            let home = keys::home_of(name, "");
            let remedy = match (home, keys::nearest(name, &known)) {
                (Some(home), _) if !is_table => format!("move it to [{home}]"),
                (_, Some(near)) => format!("write [{near}]"),
                _ => format!("remove it; the tables are {}", known.join(", ")),
            };
            self.report(Problem::error(message).remedy(remedy), key.span());
        }
    }

    /// Gives where each key is written.
    pub(super) fn written(&self) -> Written {
        self.source.written(self.root)
    }

    /// Tells whether some line is no TOML, so that what was made of the file is a guess.
    pub(super) fn is_broken(&self) -> bool {
        !self.broken_lines.is_empty()
    }

    /// Adds a problem of the file as a whole.
    pub(super) fn report_file(&self, problem: Problem) {
        self.problems.borrow_mut().push(self.source.point_at_file(problem));
    }

    fn report(&self, problem: Problem, span: Range<usize>) {
        // A value the parser made up to go on has an empty span.
        let made_up = !self.broken_lines.is_empty() && (span.is_empty() || self.broken_lines.contains(&self.source.line(span.start)));
        if !made_up {
            self.problems.borrow_mut().push(self.source.point(problem, &span));
        }
    }

    /// Complains of something that is not written. With wrong syntax somewhere it may only be unreadable, so nothing is said.
    fn report_missing(&self, problem: Problem, span: Option<Range<usize>>) {
        if !self.broken_lines.is_empty() {
            return;
        }
        let pointed = match span {
            Some(span) => self.source.point(problem, &span),
            None => self.source.point_at_file(problem),
        };
        self.problems.borrow_mut().push(pointed);
    }
}

fn syntax_remedy(message: &str) -> &'static str {
    // Only the wording of a remedy hangs on the text; nothing is decided by it.
    if message.contains("duplicate") {
        "keep one of the two"
    } else if message.contains("must be quoted") {
        "put the value between double quotes"
    } else {
        "mend the line; values are \"text\", 12, true, [\"a\", \"b\"] or { key = \"value\" }"
    }
}

/// One table of the file.
#[derive(Debug)]
pub(super) struct Section<'d> {
    reader: &'d Reader<'d>,
    /// Its name as messages spell it: `group.store`.
    name: String,
    /// Its name as the list of keys spells it: `group.NAME`.
    keys: &'static str,
    entry: Option<(&'d DeTable<'d>, Range<usize>)>,
}

impl<'d> Section<'d> {
    /// Gives a key's value, when it is written.
    pub(super) fn get(&self, key: &str) -> Option<Value<'d>> {
        let (table, _) = self.entry.as_ref()?;
        table.get(key).map(|entry| Value::new(self.reader, format!("{}.{key}", self.name), entry))
    }

    /// Gives a key's value and complains when it is not written.
    pub(super) fn required(&self, key: &str, example: &str) -> Option<Value<'d>> {
        let value = self.get(key);
        if value.is_none() {
            let header = if self.keys == keys::WARMUP { format!("[[{}]]", self.name) } else { format!("[{}]", self.name) };
            let problem =
                Problem::error(format!("{}.{key} is not written", self.name)).remedy(format!("add {key} = {example} under {header}"));
            self.reader.report_missing(problem, self.entry.as_ref().map(|(_, span)| span.clone()));
        }
        value
    }

    /// Complains of every key that the table does not know.
    pub(super) fn refuse_unknown_keys(&self) {
        let Some((table, _)) = &self.entry else { return };
        let known = keys::names_of(self.keys);
        for key in table.keys() {
            let name: &str = key.get_ref();
            if known.contains(&name) {
                continue;
            }
            let remedy = match (keys::nearest(name, &known), keys::home_of(name, self.keys)) {
                (_, Some(home)) => format!("move it to [{home}]"),
                (Some(near), None) => format!("write '{near}'"),
                (None, None) => format!("remove it; [{}] knows {}", self.name, known.join(", ")),
            };
            self.reader.report(Problem::error(format!("unknown key '{name}' in [{}]", self.name)).remedy(remedy), key.span());
        }
    }

    /// Passes on what a key was read as, with a note when it was written well and has no effect yet.
    pub(super) fn without_effect<T>(&self, key: &str, read: Option<T>) -> Option<T> {
        if let (Some(value), Some(_)) = (self.get(key), &read) {
            value.report(Severity::Note, format!("accepted, has no effect yet: {}", value.name), None);
        }
        read
    }

    /// Gives the tables within this one, in the order of the file, each with its name and as a section of its own.
    pub(super) fn tables(&self, keys: &'static str) -> Vec<(Value<'d>, String, Section<'d>)> {
        let Some((table, _)) = &self.entry else { return Vec::new() };
        let mut found: Vec<_> = table.iter().collect();
        found.sort_by_key(|(key, _)| key.span().start);
        let sections = found.into_iter().filter_map(|(key, entry)| {
            let name = format!("{}.{}", self.name, key.get_ref());
            let entry = Value::new(self.reader, name.clone(), entry).table()?;
            let header = Value { reader: self.reader, name: name.clone(), value: None, span: key.span() };
            Some((header, key.get_ref().to_string(), Section { reader: self.reader, name, keys, entry: Some(entry) }))
        });
        sections.collect()
    }

    /// Gives the elements of an array of tables, each as a section of its own.
    pub(super) fn array_of_tables(&self, key: &str, keys: &'static str) -> Vec<Section<'d>> {
        let Some(value) = self.get(key) else { return Vec::new() };
        let elements = value.list(&format!("write [[{}]] with keys below it, once for each", value.name)).unwrap_or_default();
        let sections = elements.into_iter().filter_map(|element| {
            let name = element.name.clone();
            let entry = element.table()?;
            Some(Section { reader: self.reader, name, keys, entry: Some(entry) })
        });
        sections.collect()
    }

    /// Gives a truth value.
    pub(super) fn boolean(&self, key: &str) -> Option<bool> {
        self.get(key)?.boolean()
    }

    /// Gives an absolute path.
    pub(super) fn path(&self, key: &str) -> Option<PathBuf> {
        self.get(key)?.path()
    }

    /// Gives a duration within `range`.
    pub(super) fn duration(&self, key: &str, range: RangeInclusive<Duration>) -> Option<Duration> {
        self.get(key)?.duration(range)
    }

    /// Gives a whole number within `range`.
    pub(super) fn number<T>(&self, key: &str, range: RangeInclusive<T>) -> Option<T>
    where
        T: TryFrom<i64> + PartialOrd + Copy + std::fmt::Display,
    {
        self.get(key)?.number(range)
    }

    /// Gives one of a few words' meanings.
    pub(super) fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Option<T> {
        self.get(key)?.choice(choices)
    }
}

/// One value of the file, with the name messages give it.
#[derive(Debug, Clone)]
pub(super) struct Value<'d> {
    reader: &'d Reader<'d>,
    name: String,
    /// Absent for the name of a table.
    value: Option<&'d DeValue<'d>>,
    span: Range<usize>,
}

impl<'d> Value<'d> {
    fn new(reader: &'d Reader<'d>, name: String, entry: &'d toml::Spanned<DeValue<'d>>) -> Self {
        Self { reader, name, value: Some(entry.get_ref()), span: entry.span() }
    }

    /// Gives the value's full name, `php.binary`.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Reports an error at the value.
    pub(super) fn fail(&self, message: impl Into<String>, remedy: impl Into<String>) {
        self.report(Severity::Error, message.into(), Some(remedy.into()));
    }

    /// Reports a warning at the value.
    pub(super) fn warn(&self, message: impl Into<String>, remedy: impl Into<String>) {
        self.report(Severity::Warning, message.into(), Some(remedy.into()));
    }

    fn report(&self, severity: Severity, message: String, remedy: Option<String>) {
        let mut problem = Problem::new(severity, message);
        problem.remedy = remedy;
        self.reader.report(problem, self.span.clone());
    }

    /// Reports that the value is of another kind than wanted; never shows the value.
    pub(super) fn wrong_kind(&self, wanted: &str, remedy: impl Into<String>) {
        let found = self.value.map_or("table", kind);
        self.fail(format!("{} is a {found}, not a {wanted}", self.name), remedy);
    }

    /// Gives the text without complaint, when it is one.
    pub(super) fn as_text(&self) -> Option<&'d str> {
        self.value.and_then(DeValue::as_str)
    }

    /// Gives the whole number without complaint, when it is one that fits.
    pub(super) fn as_integer(&self) -> Option<i64> {
        let integer = self.value.and_then(DeValue::as_integer)?;
        i64::from_str_radix(integer.as_str(), integer.radix()).ok()
    }

    /// Tells whether the value is an array.
    pub(super) fn is_array(&self) -> bool {
        self.value.is_some_and(DeValue::is_array)
    }

    /// Gives the text.
    pub(super) fn text(&self) -> Option<&'d str> {
        let text = self.as_text();
        if text.is_none() {
            self.wrong_kind("text", "put the value between double quotes");
        }
        text
    }

    /// Gives the elements.
    pub(super) fn array(&self) -> Option<Vec<Value<'d>>> {
        self.list("write [\"…\", \"…\"]")
    }

    fn list(&self, remedy: &str) -> Option<Vec<Value<'d>>> {
        let Some(array) = self.value.and_then(DeValue::as_array) else {
            self.wrong_kind("list", remedy);
            return None;
        };
        Some(array.iter().map(|element| Value::new(self.reader, self.name.clone(), element)).collect())
    }

    /// Gives the entries of a table, in the order of the file.
    pub(super) fn entries(&self) -> Option<Vec<(&'d str, Value<'d>)>> {
        let (table, _) = self.clone().table()?;
        let mut found: Vec<_> = table.iter().collect();
        found.sort_by_key(|(key, _)| key.span().start);
        let name = |key: &str| format!("{}.{key}", self.name);
        Some(found.into_iter().map(|(key, entry)| (&**key.get_ref(), Value::new(self.reader, name(key.get_ref()), entry))).collect())
    }

    fn table(self) -> Option<(&'d DeTable<'d>, Range<usize>)> {
        let table = self.value.and_then(DeValue::as_table);
        if table.is_none() {
            self.wrong_kind("table", format!("write [{}] with keys below it", self.name));
        }
        table.map(|table| (table, self.span))
    }

    fn boolean(&self) -> Option<bool> {
        let truth = self.value.and_then(DeValue::as_bool);
        if truth.is_none() {
            self.wrong_kind("truth value", "write true or false, without quotes");
        }
        truth
    }

    /// Gives an absolute path.
    pub(super) fn path(&self) -> Option<PathBuf> {
        let text = self.text()?;
        if !text.starts_with('/') {
            self.fail(format!("{} is '{text}', not an absolute path", self.name), "write the path from the root, beginning with \"/\"");
            return None;
        }
        if text.chars().any(char::is_control) {
            self.fail(format!("{} has a control character in it", self.name), "remove the character");
            return None;
        }
        Some(PathBuf::from(text))
    }

    fn duration(&self, range: RangeInclusive<Duration>) -> Option<Duration> {
        let Some(text) = self.as_text() else {
            let number = self.as_integer().map_or_else(|| "10".to_owned(), |number| number.to_string());
            self.wrong_kind("duration", format!("write \"{number}s\" for seconds, with the quotes"));
            return None;
        };
        let read = quantity::duration(text).map_err(|error| self.fail(format!("{}: {error}", self.name), error.remedy())).ok()?;
        if range.contains(&read) {
            return Some(read);
        }
        let (least, most) = (quantity::show_duration(*range.start()), quantity::show_duration(*range.end()));
        self.fail(format!("{} is '{text}', out of range", self.name), format!("write a duration from {least} to {most}"));
        None
    }

    /// Gives a size in bytes.
    pub(super) fn size_bytes(&self) -> Option<u64> {
        if let Some(bytes) = self.as_integer().and_then(|bytes| u64::try_from(bytes).ok()) {
            return Some(bytes);
        }
        let Some(text) = self.as_text() else {
            self.wrong_kind("size", "write \"64M\" or \"2G\", with the quotes");
            return None;
        };
        quantity::size_bytes(text).map_err(|error| self.fail(format!("{}: {error}", self.name), error.remedy())).ok()
    }

    /// Gives a whole number within `range`.
    pub(super) fn number<T>(&self, range: RangeInclusive<T>) -> Option<T>
    where
        T: TryFrom<i64> + PartialOrd + Copy + std::fmt::Display,
    {
        self.number_or(range, "")
    }

    /// Gives a whole number within `range`; `otherwise` tells what else the key takes, as in `"auto" or `.
    pub(super) fn number_or<T>(&self, range: RangeInclusive<T>, otherwise: &str) -> Option<T>
    where
        T: TryFrom<i64> + PartialOrd + Copy + std::fmt::Display,
    {
        let remedy = || format!("write {otherwise}a whole number from {} to {}, without quotes", range.start(), range.end());
        let Some(DeValue::Integer(written)) = self.value else {
            match self.as_text() {
                Some(text) if !otherwise.is_empty() => self.fail(format!("{} is '{text}'", self.name), remedy()),
                _ => self.wrong_kind("whole number", remedy()),
            }
            return None;
        };
        let number = self.as_integer().and_then(|number| T::try_from(number).ok()).filter(|number| range.contains(number));
        if number.is_none() {
            self.fail(format!("{} is {written}, out of range", self.name), remedy());
        }
        number
    }

    fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Option<T> {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        let remedy = format!("write one of {}", words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", "));
        let Some(text) = self.as_text() else {
            self.wrong_kind("text", remedy);
            return None;
        };
        let chosen = choices.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
        if chosen.is_none() {
            let near = keys::nearest(text, &words).map(|near| format!("write \"{near}\""));
            self.fail(format!("{} is '{text}', which it does not know", self.name), near.unwrap_or(remedy));
        }
        chosen
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "whole number",
        DeValue::Float(_) => "fraction",
        DeValue::Boolean(_) => "truth value",
        DeValue::Datetime(_) => "date or time",
        DeValue::Array(_) => "list",
        DeValue::Table(_) => "table",
    }
}
