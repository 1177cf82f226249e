//! What the service manager is told of the instance.

use super::supervisor::{Phase, Supervisor};
use crate::edge::service::ServiceError;

impl Supervisor {
    /// Tells the service manager that the instance serves, and how many shards of it do.
    pub(super) fn tell_ready(&mut self) {
        self.status_told = self.status_text();
        told(self.service.ready(&self.status_told));
    }

    /// Tells the service manager that the reload it was told of is over, once what was read serves or was refused.
    pub(super) fn tell_reloaded(&mut self) {
        if std::mem::take(&mut self.reload_told) {
            self.tell_ready();
        }
    }

    /// Tells the service manager when the number of serving shards is another one.
    pub(super) fn tell_status(&mut self) {
        if self.phase != Phase::Running {
            return;
        }
        let text = self.status_text();
        if text != self.status_told {
            told(self.service.status(&text));
            self.status_told = text;
        }
    }

    fn status_text(&self) -> String {
        let total = self.draft.blueprints.len();
        let serving = self.fleet.shards().filter(|shard| shard.serving().is_some()).count();
        let kept_out = self.draft.plan.quarantined.len();
        let bad = if kept_out == 0 { String::new() } else { format!(", {kept_out} pools kept out") };
        format!("{serving} of {total} shards serve{bad}")
    }
}

/// A service manager that cannot be told is no reason to stop.
pub(super) fn told(result: Result<(), ServiceError>) {
    if let Err(error) = result {
        tracing::warn!(error = %super::chain(&error), "service manager was not told");
    }
}
