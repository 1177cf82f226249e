//! How a command ends, as scripts see it. `docs/exit-codes.md` is checked against this list.

use crate::model::wire::ErrorCode;

/// How a command ended. The numbers are those of sysexits, as php-fpm uses them, and never change their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done as asked.
    Done,
    /// Tried, and what was asked for was not achieved.
    NotAchieved,
    /// The command line is wrong.
    Usage,
    /// No supervisor answers.
    Unavailable,
    /// A fault of polyfpm itself.
    Bug,
    /// A file, socket or directory could not be created.
    CannotCreate,
    /// Something else is under way; later it may succeed.
    Busy,
    /// The caller may not do this.
    Denied,
    /// The settings or what they name are wrong.
    Config,
}

impl Exit {
    /// Every way to end, in the order of the codes.
    pub const ALL: [Self; 9] = [
        Self::Done,
        Self::NotAchieved,
        Self::Usage,
        Self::Unavailable,
        Self::Bug,
        Self::CannotCreate,
        Self::Busy,
        Self::Denied,
        Self::Config,
    ];

    /// Gives the process's exit code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::NotAchieved => 1,
            Self::Usage => 64,
            Self::Unavailable => 69,
            Self::Bug => 70,
            Self::CannotCreate => 73,
            Self::Busy => 75,
            Self::Denied => 77,
            Self::Config => 78,
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

impl From<ErrorCode> for Exit {
    fn from(code: ErrorCode) -> Self {
        match code {
            ErrorCode::Usage => Self::Usage,
            ErrorCode::Busy | ErrorCode::Stopping => Self::Busy,
            ErrorCode::Denied => Self::Denied,
            ErrorCode::Failed => Self::NotAchieved,
            ErrorCode::Config => Self::Config,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_tells_every_code() {
        let page = include_str!("../../docs/exit-codes.md");
        let told: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()?.parse::<u8>().ok().map(|_| line)).collect();
        let codes: Vec<u8> = told.iter().filter_map(|line| line.split(' ').nth(1)?.parse().ok()).collect();
        assert_eq!(codes, Exit::ALL.map(Exit::code));
    }
}
