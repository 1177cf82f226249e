//! `polyfpm status`: the snapshot as tables, as JSON, and as lines that tell what changed.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

use comfy_table::Table;

use super::table::table;
use crate::model::cpus::CpuSet;
use crate::model::ids::Generation;
use crate::model::snapshot::{LeavingView, ListenerView, PoolView, QueueDepth, ShardView, Snapshot, Verdict};

/// More pools than this are told as a number: one screen full.
const POOLS_SHOWN: usize = 20;

/// The header over verdicts, by which they are found for colouring.
const VERDICT: &str = "VERDICT";

/// Gives the snapshot as tables with colours. `width` is the terminal's; without it no line is wrapped.
pub fn render(snapshot: &Snapshot, width: Option<u16>) -> String {
    let mut parts = vec![headline(snapshot)];
    if !snapshot.shards.is_empty() {
        parts.push(coloured(&shards(snapshot, width)));
    }
    if !snapshot.pools.is_empty() {
        parts.push(pools(snapshot, width));
    }
    let faults = paths(snapshot, width);
    if !faults.is_empty() {
        parts.push(faults);
    }
    if !snapshot.quarantined.is_empty() {
        parts.push(quarantined(snapshot, width));
    }
    if let Some(nginx) = nginx(snapshot) {
        parts.push(nginx);
    }
    parts.extend(limits(snapshot));
    if let Some(job) = &snapshot.job {
        parts.push(super::progress::job_line(job));
    }
    parts.join("\n\n") + "\n"
}

/// Gives the snapshot as one line of JSON.
///
/// # Errors
/// Never in practice: it came as JSON.
pub fn json_line(snapshot: &Snapshot) -> serde_json::Result<String> {
    serde_json::to_string(snapshot).map(|text| text + "\n")
}

/// Gives the snapshot as JSON for people and scripts.
///
/// # Errors
/// Never in practice: it came as JSON.
pub fn json_page(snapshot: &Snapshot) -> serde_json::Result<String> {
    serde_json::to_string_pretty(snapshot).map(|text| text + "\n")
}

fn headline(snapshot: &Snapshot) -> String {
    let health = if snapshot.healthy { ("healthy", good()) } else { ("not healthy", bad()) };
    let (word, style) = health;
    let Snapshot { instance, version, pid, uptime_seconds, .. } = snapshot;
    let up = span(*uptime_seconds);
    format!("{} {style}{word}{style:#}  polyfpm {version}, pid {pid}, up {up}", printable(instance.as_str()))
}

fn shards(snapshot: &Snapshot, width: Option<u16>) -> String {
    let mut table = table(["SHARD", "GEN", "PID", "CPUS", VERDICT, "BUSY", "QUEUE", "REQ/S", "UP", "WHY"], width);
    for shard in &snapshot.shards {
        table.add_row(shard_row(shard));
        for leaving in &shard.leaving {
            table.add_row(leaving_row(leaving));
        }
    }
    table.trim_fmt()
}

fn shard_row(shard: &ShardView) -> [String; 10] {
    let busy = shard.workers_busy.map_or_else(|| "?".to_owned(), |busy| busy.to_string());
    let runs = !matches!(shard.verdict, Verdict::Empty | Verdict::Parked);
    [
        printable(&shard.shard.to_string()),
        if shard.generation.0 == 0 { "-".to_owned() } else { shard.generation.to_string() },
        shard.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
        shard.cpus.as_ref().map_or_else(|| "any".to_owned(), CpuSet::to_string),
        shard.verdict.word().to_owned(),
        if runs { format!("{busy}/{}", shard.workers_total) } else { format!("-/{}", shard.workers_total) },
        queue(shard.queue),
        shard.requests_per_second.map_or_else(|| "-".to_owned(), per_second),
        shard.uptime_seconds.map_or_else(|| "-".to_owned(), span),
        shard.reason.as_deref().map(printable).unwrap_or_default(),
    ]
}

fn leaving_row(leaving: &LeavingView) -> [String; 10] {
    let pid = leaving.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
    let blank = String::new;
    let why = format!("waits for {}", printable(&leaving.step));
    let up = span(leaving.seconds);
    [blank(), leaving.generation.to_string(), pid, blank(), "leaving".to_owned(), blank(), blank(), blank(), up, why]
}

fn pools(snapshot: &Snapshot, width: Option<u16>) -> String {
    if snapshot.pools.len() > POOLS_SHOWN {
        return format!("{} pools: see --json", snapshot.pools.len());
    }
    let mut table = table(["POOL", "ROUTING", "WORKERS", "LISTENER", "SHARDS", "QUEUE"], width);
    for pool in snapshot.pools.iter() {
        add_pool(&mut table, pool);
    }
    table.trim_fmt()
}

fn add_pool(table: &mut Table, pool: &PoolView) {
    // The pool is named once; what follows belongs to it.
    let mut first = [printable(pool.pool.as_str()), pool.routing.to_string(), pool.workers.to_string()];
    for listener in &pool.listeners {
        let [name, routing, workers] = std::mem::take(&mut first);
        let shards = listener.shards.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        table.add_row([name, routing, workers, printable(&listener.endpoint.to_string()), printable(&shards), queue(listener.queue)]);
    }
}

/// Gives the paths that do not lead to their listeners, and those that were made again; nothing where all is well.
fn paths(snapshot: &Snapshot, width: Option<u16>) -> String {
    let listeners = || snapshot.pools.iter().flat_map(|pool| &pool.listeners);
    let mut table = table(["PATH", "WHAT HAPPENED"], width);
    let (mut rows, mut more) = (0, 0);
    // What is wrong now comes first.
    for listener in listeners().filter(|one| one.fault.is_some()).chain(listeners().filter(|one| one.fault.is_none())) {
        let Some(what) = path_words(listener) else { continue };
        if rows < POOLS_SHOWN {
            table.add_row([listener.endpoint.to_string(), what].map(|text| printable(&text)));
            rows += 1;
        } else {
            more += 1;
        }
    }
    match (rows, more) {
        (0, _) => String::new(),
        (_, 0) => table.trim_fmt(),
        _ => format!("{}\nand {more} more: see --json", table.trim_fmt()),
    }
}

fn path_words(listener: &ListenerView) -> Option<String> {
    let again = match listener.made_again {
        0 => None,
        1 => Some("was gone and was made again".to_owned()),
        times => Some(format!("was gone and was made again, {times} times")),
    };
    listener.fault.as_ref().map(|fault| format!("no way to its listener: {fault}")).or(again)
}

fn quarantined(snapshot: &Snapshot, width: Option<u16>) -> String {
    let mut table = table(["QUARANTINED", "WHERE", "WHY"], width);
    for kept_out in &snapshot.quarantined {
        let place = kept_out.problem.place.as_ref().map(ToString::to_string).unwrap_or_default();
        table.add_row([kept_out.pool.as_str(), &place, &kept_out.problem.message].map(printable));
    }
    table.trim_fmt()
}

/// NGINX is worth a line only when something is to be known of it.
fn nginx(snapshot: &Snapshot) -> Option<String> {
    let nginx = &snapshot.nginx;
    if matches!(nginx.state.as_str(), "off" | "current") && nginx.detail.is_none() {
        return None;
    }
    let detail = nginx.detail.as_deref().map(|detail| format!(": {}", printable(detail))).unwrap_or_default();
    Some(format!("nginx include {}{detail}", printable(&nginx.state)))
}

/// Limits are worth lines only where one that was asked for is not held.
fn limits(snapshot: &Snapshot) -> Option<String> {
    let groups = snapshot.cgroups.as_ref().filter(|groups| groups.limits && !groups.lacks.is_empty())?;
    let lines: Vec<String> = groups.lacks.iter().map(|why| format!("limit not held: {}", printable(why))).collect();
    Some(lines.join("\n"))
}

const fn good() -> Style {
    AnsiColor::Green.on_default()
}

const fn doubtful() -> Style {
    AnsiColor::Yellow.on_default()
}

const fn bad() -> Style {
    AnsiColor::BrightRed.on_default().bold()
}

fn style_of(word: &str) -> Option<Style> {
    let dim = Style::new().dimmed();
    Some(match word {
        "ready" => good(),
        "busy" | "starting" | "flapping" => doubtful(),
        "saturated" | "hung" | "halted" => bad(),
        "empty" | "parked" | "leaving" => dim,
        _ => return None,
    })
}

/// Puts colours on the verdicts of a finished table: within it they would count as width.
fn coloured(table: &str) -> String {
    let Some(column) = table.lines().next().and_then(|header| header.find(VERDICT)) else { return table.to_owned() };
    let lines: Vec<String> = table.lines().map(|line| coloured_line(line, column)).collect();
    lines.join("\n")
}

fn coloured_line(line: &str, column: usize) -> String {
    // Cells before the verdict are one byte a character in all but odd group names, which then stay without colour.
    let Some((before, rest)) = line.split_at_checked(column) else { return line.to_owned() };
    let word = rest.split(' ').next().unwrap_or_default();
    match style_of(word).zip(rest.strip_prefix(word)) {
        Some((style, after)) => format!("{before}{style}{word}{style:#}{after}"),
        None => line.to_owned(),
    }
}

fn queue(depth: Option<QueueDepth>) -> String {
    depth.map_or_else(|| "-".to_owned(), |depth| format!("{}/{}", depth.now, depth.max))
}

fn per_second(rate: f64) -> String {
    if rate >= 100.0 { format!("{rate:.0}") } else { format!("{rate:.1}") }
}

/// Gives a span of time by its two largest units.
pub(super) fn span(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {}m", minutes % 60),
        _ => format!("{days}d {}h", hours % 24),
    }
}

/// Gives a text from outside without anything that would steer the terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter }).collect()
}

/// Gives what a watcher without a terminal is told: a line for each shard that is new or changed its state, and the job's steps.
/// Numbers that always move make no line.
pub fn changes(before: Option<&Snapshot>, now: &Snapshot) -> String {
    let mut text = String::new();
    for shard in &now.shards {
        let old = before.and_then(|before| before.shards.iter().find(|old| old.shard == shard.shard));
        if old.map(state) != Some(state(shard)) {
            text += &state_line(shard);
        }
    }
    for gone in before.iter().flat_map(|before| &before.shards).filter(|old| now.shards.iter().all(|shard| shard.shard != old.shard)) {
        // Writing to a String cannot fail.
        let _written = writeln!(text, "{}: gone", printable(&gone.shard.to_string()));
    }
    for listener in now.pools.iter().flat_map(|pool| &pool.listeners) {
        let Some(words) = path_words(listener) else { continue };
        let olds = before.iter().flat_map(|before| before.pools.iter()).flat_map(|pool| &pool.listeners);
        let old = olds.into_iter().find(|old| old.endpoint == listener.endpoint).and_then(path_words);
        if old.as_ref() != Some(&words) {
            let _written = writeln!(text, "{}: {}", printable(&listener.endpoint.to_string()), printable(&words));
        }
    }
    let job = now.job.as_ref().map(super::progress::job_line);
    if job != before.and_then(|before| before.job.as_ref()).map(super::progress::job_line) {
        text += &job.map_or_else(|| "no job under way\n".to_owned(), |line| line + "\n");
    }
    text
}

/// Gives what makes a line when it changes. The reason is not in it: it may tell numbers.
fn state(shard: &ShardView) -> (Generation, Verdict, u32, Vec<Generation>) {
    let leaving = shard.leaving.iter().map(|leaving| leaving.generation).collect();
    (shard.generation, shard.verdict, shard.failures, leaving)
}

fn state_line(shard: &ShardView) -> String {
    let leaving: Vec<String> = shard.leaving.iter().map(|leaving| leaving.generation.to_string()).collect();
    let leaving = if leaving.is_empty() { String::new() } else { format!(", leaving {}", leaving.join(" ")) };
    let reason = shard.reason.as_deref().map(|reason| format!(": {}", printable(reason))).unwrap_or_default();
    let (name, verdict) = (printable(&shard.shard.to_string()), shard.verdict.word());
    format!("{name}: generation {}, {verdict}{leaving}{reason}\n", shard.generation)
}

#[cfg(test)]
mod tests;
