//! Commands carried out by the running supervisor: asks, shows what comes back, gives how the command ends.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::exit::Exit;
use super::preview;
use super::progress::{Form, Teller};
use super::report::{self, Format};
use super::status;
use crate::edge::control::client::{ClientError, call};
use crate::model::snapshot::Snapshot;
use crate::model::wire::{Command, ErrorCode, Reply};

/// Home and "clear to the end of the screen": drawn over, a picture does not flicker.
const REDRAW: &str = "\x1b[H\x1b[J";

/// A minute, about, is waited for a reload under way: longer than it takes with a thousand pools.
const RELOAD_LOOKS: u32 = 300;
const RELOAD_PAUSE: Duration = Duration::from_millis(200);

/// Has the supervisor at `socket` carry out `command` and prints what comes of it.
pub fn run(socket: &Path, command: Command, format: Format) -> Exit {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            report::error(&error, None);
            return Exit::Bug;
        }
    };
    runtime.block_on(ask(socket, command, format))
}

async fn ask(socket: &Path, command: Command, format: Format) -> Exit {
    if let Command::Status { watch } = command {
        let mut screen = Screen::new(Look::choose(watch, format));
        let answer = call(socket, command, |reply| screen.show(reply)).await;
        return answer.map_or_else(|error| unanswered(&error), |last| screen.end(&last));
    }
    let form = match format {
        Format::Json => Form::Json,
        Format::Text if io::stderr().is_terminal() => Form::Terminal,
        Format::Text => Form::Lines,
    };
    if command == Command::Preview {
        let answer = call(socket, command, |_| ControlFlow::Continue(())).await;
        return answer.map_or_else(|error| unanswered(&error), |last| previewed(&last, form, format));
    }
    let mut teller = Teller::new(form);
    // A start is told as ready before what it kept out has been tried once more: a take-over that follows at once is to find its turn.
    let mut looks = if matches!(command, Command::Takeover { dry_run: false, .. }) { RELOAD_LOOKS } else { 0 };
    loop {
        let tell = |reply: &Reply| {
            if looks == 0 || !is_reloading(reply) {
                teller.tell(reply);
            }
            ControlFlow::Continue(())
        };
        match call(socket, command.clone(), tell).await {
            Ok(last) if looks > 0 && is_reloading(&last) => tokio::time::sleep(RELOAD_PAUSE).await,
            Ok(last) => return teller.end(&last),
            Err(error) => return unanswered(&error),
        }
        looks -= 1;
    }
}

/// Tells whether the command was refused because of a reload under way.
fn is_reloading(reply: &Reply) -> bool {
    matches!(reply, Reply::Error { code: ErrorCode::Busy, job: Some(job), .. } if job.verb == "reload")
}

fn previewed(last: &Reply, form: Form, format: Format) -> Exit {
    let Reply::Preview(preview) = last else {
        let mut teller = Teller::new(form);
        teller.tell(last);
        return teller.end(last);
    };
    let width = terminal_size::terminal_size().filter(|_| io::stdout().is_terminal()).map(|(width, _)| width.0);
    preview::print(preview, format, width)
}

fn unanswered(error: &ClientError) -> Exit {
    report::error(error, error.hint());
    match error {
        ClientError::NoSupervisor { .. } | ClientError::Broken { .. } | ClientError::Closed { .. } | ClientError::Silent { .. } => {
            Exit::Unavailable
        }
        ClientError::Denied { .. } => Exit::Denied,
        ClientError::Full { .. } => Exit::Busy,
        ClientError::Unreadable { .. } => Exit::Bug,
    }
}

/// How snapshots are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Once, as tables.
    Tables,
    /// Once, as JSON.
    Page,
    /// Again and again in the same place.
    Redrawn,
    /// A line for each change.
    Changes,
    /// A line of JSON for each snapshot.
    JsonLines,
}

impl Look {
    fn choose(watch: bool, format: Format) -> Self {
        match (watch, format) {
            (false, Format::Text) => Self::Tables,
            (false, Format::Json) => Self::Page,
            (true, Format::Json) => Self::JsonLines,
            (true, Format::Text) if io::stdout().is_terminal() => Self::Redrawn,
            (true, Format::Text) => Self::Changes,
        }
    }
}

/// Shows snapshots on standard output.
struct Screen {
    look: Look,
    before: Option<Snapshot>,
    failed: Option<io::Error>,
}

impl Screen {
    const fn new(look: Look) -> Self {
        Self { look, before: None, failed: None }
    }

    fn show(&mut self, reply: &Reply) -> ControlFlow<()> {
        let Reply::Status(snapshot) = reply else { return ControlFlow::Continue(()) };
        let size = terminal_size::terminal_size().filter(|_| io::stdout().is_terminal());
        let width = size.map(|(width, _)| width.0);
        let text = match self.look {
            Look::Tables => Ok(status::render(snapshot, width)),
            Look::Page => status::json_page(snapshot),
            Look::JsonLines => status::json_line(snapshot),
            Look::Changes => Ok(status::changes(self.before.as_ref(), snapshot)),
            Look::Redrawn => Ok(redrawn(&status::render(snapshot, width), size.map(|(_, height)| height.0))),
        };
        if self.look == Look::Changes {
            self.before = Some(Snapshot::clone(snapshot));
        }
        // A change that is not shown writes nothing, and only a write would tell that the reader went away.
        if reader_is_gone() {
            self.failed = Some(io::ErrorKind::BrokenPipe.into());
            return ControlFlow::Break(());
        }
        let mut out = anstream::stdout().lock();
        match text.map_err(io::Error::from).and_then(|text| out.write_all(text.as_bytes())).and_then(|()| out.flush()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    fn end(self, last: &Reply) -> Exit {
        match (self.failed, last) {
            // A reader that has seen enough is no fault.
            (Some(error), _) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
            (Some(error), _) => {
                report::error(&error, None);
                Exit::NotAchieved
            }
            (None, Reply::Error { code, message, causes, hint, .. }) => {
                report::failure(message, causes, hint.as_deref());
                Exit::from(*code)
            }
            (None, Reply::Done { .. } | Reply::Status(_) | Reply::Progress(_) | Reply::Preview(_)) => Exit::Done,
        }
    }
}

/// Tells whether standard output is a pipe that nobody reads any more.
fn reader_is_gone() -> bool {
    let out = io::stdout();
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    rustix::event::poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        && polled.iter().any(|polled| polled.revents().contains(PollFlags::ERR))
}

/// Gives a picture that is drawn over the one before. What does not fit the screen is left out: it would scroll the rest away.
fn redrawn(text: &str, height: Option<u16>) -> String {
    let most = height.map_or(usize::MAX, |height| usize::from(height).saturating_sub(1));
    let lines: Vec<&str> = text.lines().take(most).collect();
    format!("{REDRAW}{}\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_supervisor_is_told_with_its_own_code() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        assert_eq!(run(&socket, Command::Status { watch: false }, Format::Text), Exit::Unavailable);
        assert_eq!(run(&socket, Command::Reload, Format::Json), Exit::Unavailable);
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        assert_eq!(run(&socket, Command::Reload, Format::Text), Exit::Unavailable, "a stale socket");
    }

    #[test]
    fn a_supervisor_that_dies_in_the_middle_is_no_success() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let dying = std::thread::spawn(move || drop(listener.accept().unwrap()));
        assert_eq!(run(&socket, Command::Reload, Format::Text), Exit::Unavailable);
        dying.join().unwrap();
    }

    #[test]
    fn an_answer_decides_the_exit_code() {
        for (line, exit) in [
            (r#"{"reply":"done","message":"m"}"#, Exit::Done),
            (r#"{"reply":"error","code":"busy","message":"m"}"#, Exit::Busy),
            (r#"{"reply":"error","code":"failed","message":"m","causes":["a"]}"#, Exit::NotAchieved),
            ("nonsense", Exit::Bug),
        ] {
            for command in [Command::Reload, Command::Status { watch: false }] {
                let directory = tempfile::tempdir().unwrap();
                let socket = directory.path().join("control.sock");
                let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
                let answering = std::thread::spawn(move || {
                    let (mut stream, _) = listener.accept().unwrap();
                    io::BufRead::read_line(&mut io::BufReader::new(&stream), &mut String::new()).unwrap();
                    stream.write_all(format!("{line}\n").as_bytes()).unwrap();
                });
                assert_eq!(run(&socket, command, Format::Text), exit, "{line}");
                answering.join().unwrap();
            }
        }
    }

    #[test]
    fn a_picture_stays_within_the_screen() {
        assert_eq!(redrawn("a\nb\nc\n", Some(3)), format!("{REDRAW}a\nb\n"));
        assert_eq!(redrawn("a\nb\n", None), format!("{REDRAW}a\nb\n"));
    }

    #[test]
    fn scripts_get_json_and_pipes_get_lines() {
        assert_eq!(Look::choose(true, Format::Json), Look::JsonLines);
        assert_eq!(Look::choose(false, Format::Json), Look::Page);
        assert_eq!(Look::choose(false, Format::Text), Look::Tables);
    }
}
