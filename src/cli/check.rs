//! `polyfpm check`: every problem of settings, pool files and NGINX at once.

use std::io;

use super::exit::Exit;
use super::report::{self, Format};
use crate::model::problem::{Problem, Severity};

/// Prints the problems found to standard output, as the data that was asked for, and gives how the command ends.
///
/// # Errors
/// When standard output cannot be written.
pub fn print(problems: &[Problem], format: Format) -> io::Result<Exit> {
    let text = match format {
        Format::Text => report::annotated(problems),
        Format::Json => report::as_json(problems)?,
    };
    report::print(&text)?;
    Ok(outcome(problems))
}

/// Gives how a command ends that found these problems: warnings and notes alone are no failure.
pub fn outcome(problems: &[Problem]) -> Exit {
    let wrong = problems.iter().any(|problem| problem.severity == Severity::Error);
    if wrong { Exit::Config } else { Exit::Done }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_alone_make_it_fail() {
        assert_eq!(outcome(&[]), Exit::Done);
        assert_eq!(outcome(&[Problem::warning("x"), Problem::note("y")]), Exit::Done);
        assert_eq!(outcome(&[Problem::note("y"), Problem::error("x")]), Exit::Config);
    }
}
