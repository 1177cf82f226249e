//! Where log lines go, and in which form.
//!
//! Under systemd lines go to the journal with their fields, elsewhere to standard error as text or JSON. Only this crate's
//! own lines are logged, from the level of the settings up. A panic is logged with a backtrace, then ends the process:
//! masters go on serving without a supervisor, and one that went on with half a state might harm them.
//!
//! Nothing here may bring the supervisor down: standard error may be a pipe whose reader is gone, so failed writes are
//! dropped without a word.

use std::backtrace::Backtrace;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::panic::PanicHookInfo;

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry};

use crate::model::settings::{Log, LogFormat, LogLevel};

/// The crate whose lines are logged: all of its modules begin with it.
const OWN_TARGET: &str = "polyfpm";

/// What fields are called in the journal: `POLYFPM_SHARD`.
const JOURNAL_PREFIX: &str = "POLYFPM";

/// Says why logging could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("set up the log")]
pub struct LogError(#[source] tracing::subscriber::SetGlobalDefaultError);

/// The form that was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Text on standard error, with colours.
    ColouredText,
    /// Text on standard error.
    Text,
    /// JSON lines on standard error.
    Json,
    /// The journal.
    Journal,
}

/// Starts logging for the whole process and gives the form it takes.
///
/// Without a journal to talk to, lines go to standard error as text, and a line says so when the journal was asked for by name.
///
/// # Errors
/// When logging was started before.
pub fn start(log: Log) -> Result<Form, LogError> {
    let level = filter(log.level);
    let mut form = form(log.format, &Surroundings::here());
    let mut unreachable = None;
    if form == Form::Journal {
        match journal() {
            Ok(layer) => {
                let subscriber = Registry::default().with(layer.with_filter(own_lines(level)));
                tracing::subscriber::set_global_default(subscriber).map_err(LogError)?;
                return Ok(form);
            }
            Err(error) => unreachable = Some(error),
        }
        form = Form::Text;
    }
    tracing::subscriber::set_global_default(on_stream(form, level, io::stderr)).map_err(LogError)?;
    if let Some(error) = unreachable {
        tracing::warn!(why = %error, "journal was not reachable");
    }
    Ok(form)
}

/// Has every panic logged and then end the process.
pub fn end_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        tell_panic(panic);
        std::process::abort();
    }));
}

fn tell_panic(panic: &PanicHookInfo<'_>) {
    let why = panic.payload_as_str().unwrap_or("a value that is no text");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let backtrace = Backtrace::force_capture();
    if tracing::dispatcher::has_been_set() {
        tracing::error!(why, place, %backtrace, "polyfpm panicked");
    } else {
        let _nobody_left = writeln!(io::stderr(), "polyfpm panicked: {why}, {place}\n{backtrace}");
    }
}

/// What the choice of the form hangs on.
#[derive(Debug, Clone, Copy)]
struct Surroundings {
    /// Standard error leads to the journal.
    journal: bool,
    /// Standard error is a terminal that shows colours.
    coloured: bool,
}

impl Surroundings {
    fn here() -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let stderr = std::fs::metadata("/proc/self/fd/2").map(|stderr| (stderr.dev(), stderr.ino())).ok();
        let stream = std::env::var("JOURNAL_STREAM").ok();
        Self { journal: is_journal(stream.as_deref(), stderr), coloured: io::stderr().is_terminal() && !plain }
    }
}

/// Tells whether standard error is the stream that `JOURNAL_STREAM` names, as `DEVICE:INODE`.
///
/// The variable alone says nothing: it is inherited by what has its standard error elsewhere. Source: systemd.exec(5).
fn is_journal(stream: Option<&str>, stderr: Option<(u64, u64)>) -> bool {
    let named =
        stream.and_then(|stream| stream.split_once(':')).and_then(|(device, inode)| Some((device.parse().ok()?, inode.parse().ok()?)));
    named.is_some() && named == stderr
}

fn form(format: LogFormat, around: &Surroundings) -> Form {
    match format {
        LogFormat::Json => Form::Json,
        LogFormat::Journal => Form::Journal,
        LogFormat::Auto if around.journal => Form::Journal,
        LogFormat::Auto | LogFormat::Text if around.coloured => Form::ColouredText,
        LogFormat::Auto | LogFormat::Text => Form::Text,
    }
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

fn own_lines(level: LevelFilter) -> Targets {
    Targets::new().with_target(OWN_TARGET, level)
}

fn journal() -> io::Result<tracing_journald::Layer> {
    // Info is what is normal: journalctl shows "notice" in bold.
    let priorities = PriorityMappings { info: Priority::Informational, debug: Priority::Debug, ..PriorityMappings::new() };
    Ok(tracing_journald::layer()?.with_field_prefix(Some(JOURNAL_PREFIX.to_owned())).with_priority_mappings(priorities))
}

fn on_stream<W>(form: Form, level: LevelFilter, writer: W) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // Complaints about a failed write would go to standard error by a macro that panics when that fails too.
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_target(false).log_internal_errors(false);
    match form {
        Form::Json => {
            let lines = lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
            Box::new(Registry::default().with(lines.with_filter(own_lines(level))))
        }
        Form::ColouredText | Form::Text | Form::Journal => {
            Box::new(Registry::default().with(lines.with_ansi(form == Form::ColouredText).with_filter(own_lines(level))))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(form: Form, level: LogLevel) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber = on_stream(form, filter(level), move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(shard = "default/1", generation = 7, "shard served");
            tracing::debug!("event ignored");
            tracing::info!(target: "other_crate", "somebody else's line");
        });
        String::from_utf8(kept.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn only_our_lines_from_the_level_up_are_logged() {
        let text = logged(Form::Text, LogLevel::Info);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.ends_with(" INFO shard served shard=\"default/1\" generation=7\n"), "{text}");
        assert_eq!(logged(Form::Text, LogLevel::Debug).lines().count(), 2);
        assert_eq!(logged(Form::Text, LogLevel::Warn), "");
        assert!(logged(Form::ColouredText, LogLevel::Info).contains('\u{1b}'));
    }

    #[test]
    fn a_json_line_has_its_fields_at_the_top() {
        let line: serde_json::Value = serde_json::from_str(&logged(Form::Json, LogLevel::Info)).unwrap();
        assert_eq!((&line["level"], &line["message"]), (&"INFO".into(), &"shard served".into()));
        assert_eq!((&line["shard"], &line["generation"]), (&"default/1".into(), &7.into()));
        assert!(line["timestamp"].is_string());
    }

    #[test]
    fn the_form_follows_settings_and_surroundings() {
        let around = |journal, coloured| Surroundings { journal, coloured };
        assert_eq!(form(LogFormat::Auto, &around(true, false)), Form::Journal);
        assert_eq!(form(LogFormat::Auto, &around(false, true)), Form::ColouredText);
        assert_eq!(form(LogFormat::Auto, &around(false, false)), Form::Text);
        assert_eq!(form(LogFormat::Text, &around(true, false)), Form::Text);
        assert_eq!(form(LogFormat::Json, &around(true, true)), Form::Json);
        assert_eq!(form(LogFormat::Journal, &around(false, true)), Form::Journal);
    }

    #[test]
    fn the_journal_is_known_by_its_stream() {
        assert!(is_journal(Some("8:1234"), Some((8, 1234))));
        for (stream, stderr) in
            [(Some("8:1234"), Some((8, 1235))), (Some("8"), Some((8, 0))), (None, Some((8, 1234))), (Some("x:y"), None), (None, None)]
        {
            assert!(!is_journal(stream, stderr), "{stream:?}");
        }
    }

    /// The part of `a_panic_is_logged_and_ends_the_process` that runs in a process of its own.
    #[test]
    #[ignore = "panics: run by a_panic_is_logged_and_ends_the_process"]
    fn panic_in_a_process_of_its_own() {
        let format = if std::env::var_os("POLYFPM_TEST_JOURNAL").is_some() { LogFormat::Journal } else { LogFormat::Json };
        start(Log { level: LogLevel::Info, format }).unwrap();
        assert!(start(Log { level: LogLevel::Info, format }).is_err(), "logging starts once");
        end_on_panic();
        panic!("broken invariant");
    }

    /// The part of `a_reader_that_went_away_does_no_harm` that runs in a process of its own.
    #[test]
    #[ignore = "its standard error must be broken: run by a_reader_that_went_away_does_no_harm"]
    fn log_in_a_process_of_its_own() {
        start(Log { level: LogLevel::Info, format: LogFormat::Text }).unwrap();
        end_on_panic();
        tracing::info!("line that nobody reads");
    }

    #[test]
    fn a_reader_that_went_away_does_no_harm() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "edge::log::tests::log_in_a_process_of_its_own", "--ignored", "--nocapture"]);
        let output = command.stdout(Stdio::piped()).stderr(writer).spawn().unwrap().wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    }

    fn run_the_panic(set: &[(&str, &str)]) -> std::process::Output {
        let name = "edge::log::tests::panic_in_a_process_of_its_own";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--ignored", "--nocapture"]).envs(set.iter().copied());
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
    }

    #[test]
    fn a_panic_is_logged_and_ends_the_process() {
        let output = run_the_panic(&[]);
        assert_eq!(output.status.signal(), Some(6), "SIGABRT: {output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        let line: serde_json::Value = text.lines().find_map(|line| serde_json::from_str(line).ok()).unwrap();
        assert_eq!(
            (&line["level"], &line["message"], &line["why"]),
            (&"ERROR".into(), &"polyfpm panicked".into(), &"broken invariant".into())
        );
        assert!(line["place"].as_str().unwrap().contains("log.rs"));
        assert!(line["backtrace"].as_str().unwrap().contains("panic_in_a_process_of_its_own"));
    }

    #[test]
    fn without_a_journal_lines_go_to_standard_error() {
        let output = run_the_panic(&[("POLYFPM_TEST_JOURNAL", "1")]);
        let text = String::from_utf8(output.stderr).unwrap();
        if std::path::Path::new("/run/systemd/journal/socket").exists() {
            assert!(!text.contains("journal was not reachable"), "the journal took them: {text}");
            return;
        }
        assert!(text.contains("WARN journal was not reachable"), "{text}");
        assert!(text.contains("ERROR polyfpm panicked why=\"broken invariant\""), "{text}");
    }
}
