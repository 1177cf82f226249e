//! Time as the decisions see it.

use std::ops::Sub;
use std::time::Duration;

/// A point on the supervisor's monotonic clock, counted from its start. Only the runtime makes them from the real clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(Duration);

impl Moment {
    /// The supervisor's start.
    pub const START: Self = Self(Duration::ZERO);

    /// Gives the moment `since_start` after the supervisor's start.
    pub const fn at(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// Gives the time since the supervisor's start.
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// Gives the moment `span` later; never overflows.
    #[must_use]
    pub const fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }

    /// Gives the time from `earlier` to this moment, zero when `earlier` is in fact later.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Sub for Moment {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}
