//! Progress of a job: bars on a terminal, plain lines elsewhere, JSON for scripts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::exit::Exit;
use super::report;
use super::status::printable;
use crate::model::ids::ShardId;
use crate::model::snapshot::JobView;
use crate::model::wire::{Progress, Reply, ShardRuns};

/// Fast enough to show life, slow enough for a remote terminal.
const TICK: Duration = Duration::from_millis(120);

/// In which form progress is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Bars that are drawn again.
    Terminal,
    /// A line for each step.
    Lines,
    /// Each reply as a line of JSON.
    Json,
}

/// Tells the progress of one job.
#[derive(Debug)]
pub struct Teller {
    form: Form,
    bars: Option<Bars>,
}

impl Teller {
    /// Starts with nothing told.
    pub const fn new(form: Form) -> Self {
        Self { form, bars: None }
    }

    /// Tells a reply. What cannot be printed is lost: the job goes on whoever listens, and the exit code tells its end.
    pub fn tell(&mut self, reply: &Reply) {
        if self.form == Form::Json {
            if let Ok(line) = serde_json::to_string(reply) {
                report::print(&(line + "\n")).ok();
            }
            return;
        }
        if let Reply::Progress(progress) = reply {
            if self.form == Form::Terminal {
                self.bars.get_or_insert_with(|| Bars::new(ProgressDrawTarget::stderr())).show(progress);
            } else {
                report::print(&step_line(progress)).ok();
            }
        }
    }

    /// Tells the end of the job and gives how the command ends.
    pub fn end(mut self, last: &Reply) -> Exit {
        if let Some(bars) = self.bars.take() {
            bars.end();
        }
        match last {
            Reply::Done { message, shards } => {
                if self.form != Form::Json {
                    report::print(&format!("{}\n{}", printable(message), runs(shards))).ok();
                }
                Exit::Done
            }
            Reply::Error { code, message, causes, hint, job, shards } => {
                if self.form != Form::Json {
                    let mut causes = causes.clone();
                    causes.extend(job.as_ref().map(job_line));
                    report::failure(message, &causes, hint.as_deref());
                    report::print(&runs(shards)).ok();
                }
                Exit::from(*code)
            }
            Reply::Progress(_) | Reply::Status(_) | Reply::Preview(_) => Exit::Bug,
        }
    }
}

/// Gives a job in a line: `job 3, restart: 1 of 2 shards done; default/2#5: waiting for readiness`.
pub fn job_line(job: &JobView) -> String {
    let step = if job.step.is_empty() { String::new() } else { format!("; {}", printable(&job.step)) };
    format!("job {}, {}: {} of {} shards done{step}", job.job, printable(&job.verb), job.done, job.total)
}

/// Gives a step in a line: `[0/2] default/1#8 warming (0.412 s)`.
fn step_line(progress: &Progress) -> String {
    let job = &progress.job;
    let seconds = Duration::from_millis(progress.at_ms).as_secs_f64();
    format!("[{}/{}] {} ({seconds:.3} s)\n", job.done, job.total, step_text(progress))
}

fn step_text(progress: &Progress) -> String {
    let who = match (&progress.shard, progress.generation) {
        (Some(shard), Some(generation)) => format!("{}#{generation} ", printable(&shard.to_string())),
        (Some(shard), None) => format!("{} ", printable(&shard.to_string())),
        (None, _) => String::new(),
    };
    format!("{who}{}", printable(&progress.step))
}

/// Gives which shard runs which generation, a line each.
fn runs(shards: &[ShardRuns]) -> String {
    let mut text = String::new();
    for ShardRuns { shard, generation, outcome } in shards {
        let runs = generation.map_or_else(|| "nothing".to_owned(), |generation| format!("generation {generation}"));
        // Writing to a String cannot fail.
        let _written = writeln!(text, "  {} runs {runs} ({})", printable(&shard.to_string()), printable(outcome));
    }
    text
}

/// A bar for the job and a line below it for each shard that has begun.
#[derive(Debug)]
struct Bars {
    screen: MultiProgress,
    job: ProgressBar,
    shards: BTreeMap<ShardId, ProgressBar>,
}

impl Bars {
    fn new(target: ProgressDrawTarget) -> Self {
        let screen = MultiProgress::with_draw_target(target);
        let job = screen.add(ProgressBar::new(0).with_style(style("{prefix:>10} [{bar:30}] {pos}/{len}  {elapsed}  {wide_msg}")));
        job.enable_steady_tick(TICK);
        Self { screen, job, shards: BTreeMap::new() }
    }

    fn show(&mut self, progress: &Progress) {
        let job = &progress.job;
        self.job.set_prefix(printable(&job.verb));
        self.job.set_length(u64::from(job.total));
        self.job.set_position(u64::from(job.done));
        let Some(shard) = &progress.shard else {
            self.job.set_message(step_text(progress));
            return;
        };
        let line = self.shards.entry(shard.clone()).or_insert_with(|| {
            let line = self.screen.add(ProgressBar::new_spinner().with_style(style("  {spinner} {wide_msg}")));
            line.enable_steady_tick(TICK);
            line
        });
        match progress.step.as_str() {
            "done" | "skipped" | "failed" => {
                let seconds = Duration::from_millis(progress.at_ms).as_secs_f64();
                line.finish_with_message(format!("{} at {seconds:.1} s", step_text(progress)));
            }
            _ => line.set_message(step_text(progress)),
        }
    }

    /// Leaves the lines of shards as they are and takes the bar away.
    fn end(self) {
        for line in self.shards.values().filter(|line| !line.is_finished()) {
            line.abandon();
        }
        self.job.finish_and_clear();
    }
}

/// A template with a fault in it would be a fault of this file; the plain style still shows progress.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::Generation;
    use crate::model::wire::ErrorCode;

    fn job() -> JobView {
        JobView { job: 3, verb: "restart".to_owned(), done: 1, total: 2, step: "default/2#5: waiting for readiness".to_owned() }
    }

    fn progress(step: &str) -> Progress {
        Progress {
            job: job(),
            shard: Some("default/2".parse().unwrap()),
            generation: Some(Generation(5)),
            step: step.to_owned(),
            at_ms: 1412,
        }
    }

    #[test]
    fn steps_and_jobs_are_one_line_each() {
        assert_eq!(step_line(&progress("warming")), "[1/2] default/2#5 warming (1.412 s)\n");
        let whole = Progress { shard: None, generation: None, ..progress("nginx") };
        assert_eq!(step_line(&whole), "[1/2] nginx (1.412 s)\n");
        assert_eq!(job_line(&job()), "job 3, restart: 1 of 2 shards done; default/2#5: waiting for readiness");
        assert_eq!(job_line(&JobView { step: String::new(), ..job() }), "job 3, restart: 1 of 2 shards done");
    }

    #[test]
    fn the_end_tells_which_shard_runs_which_generation() {
        let shards = [
            ShardRuns { shard: "default/1".parse().unwrap(), generation: Some(Generation(8)), outcome: "changed".to_owned() },
            ShardRuns { shard: "default/2".parse().unwrap(), generation: None, outcome: "failed".to_owned() },
        ];
        assert_eq!(runs(&shards), "  default/1 runs generation 8 (changed)\n  default/2 runs nothing (failed)\n");
    }

    #[test]
    fn the_exit_code_follows_the_last_reply() {
        let error =
            |code| Reply::Error { code, message: "x".to_owned(), causes: Vec::new(), hint: None, job: Some(job()), shards: Vec::new() };
        for (reply, exit) in [
            (Reply::Done { message: "done".to_owned(), shards: Vec::new() }, Exit::Done),
            (error(ErrorCode::Failed), Exit::NotAchieved),
            (error(ErrorCode::Busy), Exit::Busy),
            (error(ErrorCode::Denied), Exit::Denied),
            (error(ErrorCode::Config), Exit::Config),
            (error(ErrorCode::Usage), Exit::Usage),
        ] {
            assert_eq!(Teller::new(Form::Lines).end(&reply), exit);
        }
    }

    #[test]
    fn bars_take_any_order_of_steps() {
        let mut bars = Bars::new(ProgressDrawTarget::hidden());
        for step in ["starting", "done", "starting", "failed", "unheard of"] {
            bars.show(&progress(step));
        }
        bars.show(&Progress { shard: None, ..progress("nginx") });
        assert_eq!((bars.job.position(), bars.job.length(), bars.shards.len()), (1, Some(2), 1));
        bars.end();
    }
}
