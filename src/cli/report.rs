//! The only printer of errors and problems.
//!
//! An error is told as `error: …`, its causes as `  because: …` from the chain of sources, and what to do as `  hint: …`.
//! A problem is told with the line it is in and the part at fault marked. Colours are put in always and taken out again
//! on the way to anything that is no terminal.

use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use anstyle::{AnsiColor, Style};
use serde::Serialize;

use super::exit::Exit;
use crate::model::problem::{Place, Problem, Severity};

const ERROR: Style = AnsiColor::BrightRed.on_default().bold();
const QUIET: Style = Style::new().dimmed();
const HINT: Style = AnsiColor::BrightCyan.on_default().bold();

/// In which form data is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// For scripts.
    Json,
}

impl Format {
    /// Gives the form for a command's `--json`.
    pub const fn json_if(json: bool) -> Self {
        if json { Self::Json } else { Self::Text }
    }
}

/// Prints data to standard output. A reader that went away is no error.
///
/// # Errors
/// When standard output cannot be written for another reason, such as a full disk.
pub fn print(text: &str) -> io::Result<()> {
    write(anstream::stdout().lock(), text)
}

/// Prints an error with its causes and what to do.
pub fn error(error: &dyn Error, hint: Option<&str>) {
    print_aside(&told(&error.to_string(), &causes(error), hint));
}

/// Prints an error that came as texts, from the supervisor.
pub fn failure(message: &str, causes: &[String], hint: Option<&str>) {
    print_aside(&told(message, causes, hint));
}

/// Prints problems and their number to standard error: for commands that cannot go on because of them.
pub fn problems(problems: &[Problem]) {
    print_aside(&annotated(problems));
}

/// Prints what clap has to say: help and version as data, wrong usage as an error.
pub fn usage(error: &clap::Error) -> Exit {
    if error.use_stderr() {
        print_aside(&error.render().ansi().to_string());
        return Exit::Usage;
    }
    match print(&error.render().ansi().to_string()) {
        Ok(()) => Exit::Done,
        Err(_) => Exit::NotAchieved,
    }
}

/// Gives the causes of an error, outermost first.
pub fn causes(error: &dyn Error) -> Vec<String> {
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    causes
}

/// Gives an error as text with colours.
fn told(message: &str, causes: &[String], hint: Option<&str>) -> String {
    let first = format!("{ERROR}error{ERROR:#}: {}\n", indented(message, "  "));
    let because = causes.iter().map(|cause| format!("{QUIET}  because{QUIET:#}: {}\n", indented(cause, "    ")));
    let hint = hint.map(|hint| format!("{HINT}  hint{HINT:#}: {}\n", indented(hint, "    ")));
    std::iter::once(first).chain(because).chain(hint).collect()
}

/// Indents the second line and those after it, and takes out what could move a terminal's cursor: texts may come from files.
fn indented(text: &str, margin: &str) -> String {
    let lines = text.trim_end().lines().map(|line| line.replace(|c: char| c.is_control() && c != '\t', "\u{fffd}"));
    lines.collect::<Vec<_>>().join(&format!("\n{margin}"))
}

/// Gives problems as text with colours, each with its excerpt, and their number at the end.
pub fn annotated(problems: &[Problem]) -> String {
    let renderer = Renderer::styled();
    let mut text = String::new();
    for problem in problems {
        text.push_str(&renderer.render(&[group(problem)]));
        text.push_str("\n\n");
    }
    text.push_str(&summary(problems));
    text.push('\n');
    text
}

fn group(problem: &Problem) -> Group<'_> {
    let level = match problem.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Note => Level::NOTE,
    };
    let mut group = Group::with_title(level.primary_title(&*problem.message));
    if let Some(place) = &problem.place {
        let path = place.file.to_string_lossy();
        let line = usize::try_from(place.line).unwrap_or_default();
        group = match &problem.excerpt {
            Some(excerpt) if line > 0 => {
                let (start, end) = marked(excerpt, problem.columns);
                let snippet = Snippet::source(&**excerpt).line_start(line).path(path).fold(false);
                group.element(snippet.annotation(AnnotationKind::Primary.span(start..end)))
            }
            _ if line > 0 => group.element(Origin::path(path).line(line)),
            _ => group.element(Origin::path(path)),
        };
    }
    match &problem.remedy {
        Some(remedy) => group.element(Level::HELP.message(&**remedy)),
        None => group,
    }
}

/// Gives the columns to mark: those of the problem where they are within the excerpt, else the whole of it.
fn marked(excerpt: &str, columns: Option<(usize, usize)>) -> (usize, usize) {
    let whole = (excerpt.len() - excerpt.trim_start().len(), excerpt.trim_end().len());
    let fits = |(start, end): &(usize, usize)| start <= end && excerpt.is_char_boundary(*start) && excerpt.is_char_boundary(*end);
    let (start, end) = columns.filter(fits).unwrap_or(whole);
    (start, end.max(start))
}

/// Gives the number of problems: `2 errors, 1 note`.
fn summary(problems: &[Problem]) -> String {
    let counted = |severity: Severity, word: &str| match count(problems, severity) {
        0 => None,
        1 => Some(format!("1 {word}")),
        many => Some(format!("{many} {word}s")),
    };
    let parts = [(Severity::Error, "error"), (Severity::Warning, "warning"), (Severity::Note, "note")];
    let parts: Vec<String> = parts.into_iter().filter_map(|(severity, word)| counted(severity, word)).collect();
    if parts.is_empty() { "no problems".to_owned() } else { parts.join(", ") }
}

fn count(problems: &[Problem], severity: Severity) -> usize {
    problems.iter().filter(|problem| problem.severity == severity).count()
}

/// Problems for scripts.
#[derive(Serialize)]
struct Listed {
    problems: Vec<Problem>,
    errors: usize,
    warnings: usize,
    notes: usize,
}

/// Gives problems as one JSON object.
///
/// # Errors
/// Never in practice: every part is text or number.
pub fn as_json(problems: &[Problem]) -> serde_json::Result<String> {
    // A path that is no UTF-8 has no form in JSON; a lossy one still says which file.
    let shown = |place: &Place| Place { file: PathBuf::from(place.file.to_string_lossy().into_owned()), line: place.line };
    let listed = Listed {
        problems: problems.iter().map(|problem| Problem { place: problem.place.as_ref().map(shown), ..problem.clone() }).collect(),
        errors: count(problems, Severity::Error),
        warnings: count(problems, Severity::Warning),
        notes: count(problems, Severity::Note),
    };
    serde_json::to_string_pretty(&listed).map(|text| text + "\n")
}

/// Writes to standard error; when that fails there is nobody left to tell.
fn print_aside(text: &str) {
    let _nobody_left = write(anstream::stderr().lock(), text);
}

fn write(mut stream: impl Write, text: &str) -> io::Result<()> {
    match stream.write_all(text.as_bytes()).and_then(|()| stream.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[derive(Debug, thiserror::Error)]
    #[error("start shard www/3")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("exec /usr/sbin/php-fpm8.2: set CPU affinity")]
    struct Inner(#[source] io::Error);

    #[test]
    fn an_error_is_told_with_causes_and_hint() {
        let error = Outer(Inner(io::Error::from_raw_os_error(22)));
        let text = told(&error.to_string(), &causes(&error), Some("CPU 12 is not in this cgroup\nask the host"));
        insta::assert_snapshot!(plain(&text), @r#"
        error: start shard www/3
          because: exec /usr/sbin/php-fpm8.2: set CPU affinity
          because: Invalid argument (os error 22)
          hint: CPU 12 is not in this cgroup
            ask the host
        "#);
    }

    #[test]
    fn a_text_cannot_move_the_cursor() {
        let text = plain(&told("bad \u{1b}[2J name", &["line 1\nline 2\r\n".to_owned()], None));
        insta::assert_snapshot!(text, @r#"
        error: bad �[2J name
          because: line 1
            line 2
        "#);
    }

    fn samples() -> Vec<Problem> {
        vec![
            Problem::error("unknown key 'binray' in [php]")
                .at("/etc/polyfpm/x.toml", 12)
                .excerpt("binray = \"/usr/é\" # ä")
                .columns(0, 6)
                .remedy("write 'binary'"),
            Problem::error("not TOML: unclosed table").at("/etc/polyfpm/x.toml", 3).excerpt("[php").columns(4, 4),
            Problem::warning("columns that do not fit").at("/etc/polyfpm/x.toml", 3).excerpt("  é  ").columns(3, 99),
            Problem::warning("the pool's file is a link").at("/etc/php/pool.d/www.conf", 0).remedy("name the file"),
            Problem::error("a line that is not shown").at("/etc/polyfpm/x.toml", 7),
            Problem::note("accepted, has no effect yet: limits.memory_max"),
        ]
    }

    #[test]
    fn problems_are_told_with_the_line_and_the_fault_marked() {
        insta::assert_snapshot!(plain(&annotated(&samples())), @r#"
        error: unknown key 'binray' in [php]
          --> /etc/polyfpm/x.toml:12:1
           |
        12 | binray = "/usr/é" # ä
           | ^^^^^^
           |
           = help: write 'binary'

        error: not TOML: unclosed table
         --> /etc/polyfpm/x.toml:3:5
          |
        3 | [php
          |     ^

        warning: columns that do not fit
         --> /etc/polyfpm/x.toml:3:3
          |
        3 |   é  
          |   ^

        warning: the pool's file is a link
        --> /etc/php/pool.d/www.conf
         = help: name the file

        error: a line that is not shown
        --> /etc/polyfpm/x.toml:7

        note: accepted, has no effect yet: limits.memory_max

        3 errors, 2 warnings, 1 note
        "#);
        assert_eq!(plain(&annotated(&[])), "no problems\n");
    }

    #[test]
    fn problems_are_listed_for_scripts() {
        let problems = samples();
        let listed: serde_json::Value = serde_json::from_str(&as_json(&problems).unwrap()).unwrap();
        assert_eq!((&listed["errors"], &listed["warnings"], &listed["notes"]), (&3.into(), &2.into(), &1.into()));
        assert_eq!(serde_json::from_value::<Vec<Problem>>(listed["problems"].clone()).unwrap(), problems);
        assert_eq!(listed["problems"][0]["place"]["line"], 12);
    }

    struct Gone(io::ErrorKind);

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_went_away_is_no_error() {
        assert!(write(Gone(io::ErrorKind::BrokenPipe), "x").is_ok());
        assert!(write(Gone(io::ErrorKind::StorageFull), "x").is_err());
    }
}
