//! What each step of a take-over does, in words for `--dry-run` and for those who watch.

use super::foreign::{Foreign, Way, backlog_for};
use super::steps::Step;
use crate::edge::units::Unit;
use crate::model::settings::Settings;

/// How many names a line lists before it counts the rest.
const LISTED: usize = 5;

/// Gives every step with its words.
pub(super) fn all(foreign: &Foreign, settings: &Settings) -> Vec<(Step, String)> {
    Step::all(foreign.unit.is_some(), foreign.way).into_iter().map(|at| (at, step(at, foreign, settings))).collect()
}

/// Gives the words of one step.
pub(super) fn step(step: Step, foreign: &Foreign, settings: &Settings) -> String {
    let (pid, unit) = (foreign.process.pid, foreign.unit.as_ref().map(Unit::name).unwrap_or_default());
    match (step, foreign.way) {
        (Step::Fetch, Way::Same) => format!("take copies of its sockets and raise their queues: {}", sockets(foreign, settings)),
        (Step::Fetch, Way::Rename) => {
            format!(
                "its sockets cannot be had (no pidfd_getfd, or no right to it): bind new ones beside them: {}",
                sockets(foreign, settings)
            )
        }
        (Step::Start, Way::Same) => format!("start masters for {} on the same sockets; from then on both answer", pools(foreign)),
        (Step::Start, Way::Rename) => format!("start masters for {} on the new sockets", pools(foreign)),
        (Step::Disarm, _) => format!("keep {unit} from starting again (Restart=no) and from removing its runtime directory"),
        (Step::Rename, _) => "rename the new sockets over the paths, and wait until nobody waits at the old ones".to_owned(),
        (Step::Hold, _) => format!("stop master {pid} (SIGSTOP), so that it starts no workers and removes no socket files"),
        (Step::Drain, _) => format!("let its workers finish what they have (SIGQUIT), for at most {:?}", settings.restart.drain_timeout),
        (Step::Kill, _) => format!("kill master {pid} (SIGKILL): from here on nothing is taken back"),
        (Step::Settle, _) if foreign.unit.is_some() => format!("clear the failure of {unit}, disable it, restore links that it removed"),
        (Step::Settle, _) => "restore links to the sockets that are gone".to_owned(),
    }
}

/// Gives what taking a step back does.
pub(super) fn undo(step: Step) -> &'static str {
    match step {
        Step::Fetch => "the copies are closed; the raised queues stay, which harms nobody",
        Step::Start => "our masters leave; the socket files are left to the other master",
        Step::Disarm => "its unit is as it was",
        Step::Rename => "its sockets have their paths again",
        Step::Hold => "the other master goes on (SIGCONT)",
        Step::Drain => "the other master starts workers again by itself",
        Step::Kill | Step::Settle => "not possible",
    }
}

fn sockets(foreign: &Foreign, settings: &Settings) -> String {
    let each = foreign.sockets.iter().map(|taken| {
        let to = backlog_for(settings, taken);
        let queue = taken.queue.map(|queue| format!(" ({queue} -> {to})")).unwrap_or_default();
        format!("{}{queue}", taken.endpoint)
    });
    listed(each, foreign.sockets.len())
}

fn pools(foreign: &Foreign) -> String {
    let many = if foreign.sockets.len() == 1 { "pool" } else { "pools" };
    format!("{many} {}", listed(foreign.sockets.iter().map(|taken| taken.pool.to_string()), foreign.sockets.len()))
}

fn listed(items: impl Iterator<Item = String>, count: usize) -> String {
    let shown: Vec<String> = items.take(LISTED).collect();
    let more = count.saturating_sub(LISTED);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_counted() {
        let names = |count: usize| listed((1..=count).map(|number| number.to_string()), count);
        assert_eq!(names(2), "1, 2");
        assert_eq!(names(7), "1, 2, 3, 4, 5 and 2 more");
    }
}
