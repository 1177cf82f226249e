//! The honest count: what clients saw, what NGINX hid, what PHP did twice.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use super::{Ground, within};

/// 5 s: NGINX writes its log line after the client has the answer.
const LOGGED_WITHIN: Duration = Duration::from_secs(5);

/// What a request was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Get,
    Post,
    Upload,
    Stream,
    Long,
}

/// One request as its client saw it.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// When it began, counted from the load's start.
    pub(crate) at: Duration,
    /// How long it took.
    pub(crate) took: Duration,
    /// What it was.
    pub(crate) kind: Kind,
    /// Its name, which PHP writes down.
    pub(crate) id: String,
    /// What went wrong.
    pub(crate) fault: Option<String>,
}

/// Where the logs stood when the load began.
pub(crate) struct Logs {
    access: usize,
    errors: usize,
    route: String,
    run: String,
}

impl Logs {
    /// Notes where they stand now.
    pub(crate) fn here(ground: &Ground, route: &str, run: &str) -> Self {
        let (access, errors) = (ground.read("log/access").len(), ground.read("log/nginx.error").len());
        Self { access, errors, route: route.to_owned(), run: run.to_owned() }
    }

    fn access_lines(&self, ground: &Ground) -> Vec<String> {
        let mark = format!("id={}-", self.run);
        let log = ground.read("log/access");
        log.get(self.access..).unwrap_or_default().lines().filter(|line| line.contains(&mark)).map(str::to_owned).collect()
    }

    fn error_lines(&self, ground: &Ground) -> Vec<String> {
        let log = ground.read("log/nginx.error");
        let bad = |line: &&str| ["[error]", "[crit]", "[alert]", "[emerg]"].iter().any(|level| line.contains(level));
        log.get(self.errors..).unwrap_or_default().lines().filter(bad).map(str::to_owned).collect()
    }
}

/// What a load came to.
#[derive(Debug)]
pub(crate) struct Report {
    /// Every request.
    pub(crate) samples: Vec<Sample>,
    /// Requests a client saw fail.
    pub(crate) failed: Vec<Sample>,
    /// Lines of the access log with another status than 200, or more than one attempt: a retry hides a fault.
    pub(crate) hidden: Vec<String>,
    /// NGINX's errors.
    pub(crate) errors: Vec<String>,
    /// POSTs that did not run exactly once.
    pub(crate) miscounted: Vec<String>,
    /// Kept client connections that ended while idle.
    pub(crate) dropped: u32,
    /// Requests NGINX logged.
    pub(crate) logged: usize,
    /// How long the load lasted.
    pub(crate) lasted: Duration,
}

/// Puts together what clients, NGINX and PHP tell.
pub(crate) fn judge(ground: &Ground, logs: &Logs, samples: Vec<Sample>, dropped: u32, lasted: Duration) -> Report {
    within(LOGGED_WITHIN, || (logs.access_lines(ground).len() >= samples.len()).then_some(()));
    let lines = logs.access_lines(ground);
    let hidden = lines.iter().filter(|line| !is_plain_success(line, &logs.route)).cloned().collect();
    let failed = samples.iter().filter(|sample| sample.fault.is_some()).cloned().collect();
    let miscounted = miscounted(&ground.runs(), &samples, &logs.run);
    Report { samples, failed, hidden, errors: logs.error_lines(ground), miscounted, dropped, logged: lines.len(), lasted }
}

/// Tells whether a line of the access log shows status 200 from one attempt that also had status 200.
fn is_plain_success(line: &str, route: &str) -> bool {
    let fields: Vec<&str> = line.split("\\t").flat_map(|part| part.split('\t')).collect();
    matches!(fields.as_slice(), ["200", "200", address, .., uri] if !address.contains(", ") && uri.starts_with(&format!("/{route}/")))
}

fn miscounted(runs: &BTreeMap<String, u32>, samples: &[Sample], run: &str) -> Vec<String> {
    let posts = samples.iter().filter(|s| matches!(s.kind, Kind::Post | Kind::Upload | Kind::Long));
    let sent: BTreeSet<&str> = posts.map(|sample| sample.id.as_str()).collect();
    let mut wrong = Vec::new();
    for id in &sent {
        match runs.get(*id) {
            Some(1) => {}
            times => wrong.push(format!("{id} ran {} times", times.unwrap_or(&0))),
        }
    }
    let prefix = format!("{run}-");
    let unknown = runs.keys().filter(|id| id.starts_with(&prefix) && !sent.contains(id.as_str()));
    wrong.extend(unknown.map(|id| format!("{id} ran and was never sent")));
    wrong
}

impl Report {
    /// Fails unless every request was answered rightly, at once, and every POST ran exactly once; and unless there were `at_least` so many.
    #[track_caller]
    pub(crate) fn assert_nothing_lost(&self, at_least: usize) {
        assert!(self.is_clean(), "requests were lost\n{}", self.faults());
        assert_eq!(self.logged, self.samples.len(), "NGINX logged other requests than the clients made");
        assert!(self.samples.len() >= at_least, "only {} requests, {at_least} were expected", self.samples.len());
    }

    /// Fails unless, besides, no client's kept connection was ended: for tests that leave NGINX alone.
    #[track_caller]
    pub(crate) fn assert_nothing_reset(&self) {
        assert_eq!(self.dropped, 0, "kept client connections were ended");
    }

    /// Tells whether nothing was lost.
    pub(crate) fn is_clean(&self) -> bool {
        self.failed.is_empty() && self.hidden.is_empty() && self.errors.is_empty() && self.miscounted.is_empty()
    }

    /// Gives how many requests of a kind there were.
    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.samples.iter().filter(|sample| sample.kind == kind).count()
    }

    /// Gives the latency that a part `q` (0.99) of the short requests did not exceed.
    pub(crate) fn quantile(&self, q: f64) -> Duration {
        self.quantile_within(q, &(Duration::ZERO..Duration::MAX))
    }

    /// Gives the same for requests that began within `span` of the load's start.
    pub(crate) fn quantile_within(&self, q: f64, span: &Range<Duration>) -> Duration {
        let short = self.samples.iter().filter(|s| matches!(s.kind, Kind::Get | Kind::Post) && span.contains(&s.at));
        let mut took: Vec<Duration> = short.map(|sample| sample.took).collect();
        took.sort_unstable();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place in a list")]
        let place = (took.len() as f64 * q) as usize;
        took.get(place.min(took.len().saturating_sub(1))).copied().unwrap_or_default()
    }

    /// Gives one line of figures.
    pub(crate) fn line(&self) -> String {
        let (p50, p99) = (self.quantile(0.5), self.quantile(0.99));
        let rate = self.samples.len() as u64 * 1000 / u64::try_from(self.lasted.as_millis()).unwrap_or(1).max(1);
        format!("{} requests, {rate}/s, {} failed, p50 {p50:?}, p99 {p99:?}", self.samples.len(), self.failed.len())
    }

    /// Gives what went wrong, in a few lines.
    pub(crate) fn faults(&self) -> String {
        let mut text = format!("{}\n", self.line());
        let failed: Vec<String> =
            self.failed.iter().map(|s| format!("{:?} {} at {:?}: {}", s.kind, s.id, s.at, s.fault.as_deref().unwrap_or(""))).collect();
        let parts: [(&str, &[String]); 4] = [
            ("clients saw fail", &failed),
            ("NGINX's access log", &self.hidden),
            ("NGINX's error log", &self.errors),
            ("POSTs not run exactly once", &self.miscounted),
        ];
        for (what, lines) in parts {
            text.push_str(&format!("{what}: {}\n", lines.len()));
            text.extend(lines.iter().take(8).map(|line| format!("  {line}\n")));
        }
        text
    }
}
