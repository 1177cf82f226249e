//! `polyfpm plan --diff`: what a reload would change against what runs.

use super::exit::Exit;
use super::report::{self, Format};
use super::status::printable;
use super::table::table;
use crate::model::preview::Preview;

/// More rows than this are told as a number: two screens full.
const ROWS_SHOWN: usize = 40;

/// Prints what would change.
pub(super) fn print(preview: &Preview, format: Format, width: Option<u16>) -> Exit {
    let text = match format {
        Format::Json => serde_json::to_string_pretty(preview).map(|text| text + "\n").map_err(std::io::Error::other),
        Format::Text => Ok(render(preview, width)),
    };
    match text.and_then(|text| report::print(&text)) {
        Ok(()) => Exit::Done,
        Err(_) => Exit::NotAchieved,
    }
}

fn render(preview: &Preview, width: Option<u16>) -> String {
    if preview.is_empty() {
        return "nothing would change\n".to_owned();
    }
    let mut parts = Vec::new();
    if !preview.shards.is_empty() {
        let rows = preview.shards.iter().map(|shard| (shard.shard.to_string(), shard.change.word(), shard.reasons.as_slice()));
        parts.push(listed(["SHARD", "WOULD BE", "WHY"], rows, width));
    }
    if !preview.pools.is_empty() {
        let rows = preview.pools.iter().map(|pool| (pool.pool.to_string(), pool.change.word(), pool.details.as_slice()));
        parts.push(listed(["POOL", "WOULD BE", "WHAT DIFFERS"], rows, width));
    }
    parts.join("\n\n") + "\n"
}

/// Lists each thing with what belongs to it, a line each.
fn listed<'a>(header: [&str; 3], things: impl Iterator<Item = (String, &'static str, &'a [String])>, width: Option<u16>) -> String {
    let mut table = table(header, width);
    let (mut shown, mut more) = (0, 0);
    for (name, word, lines) in things {
        // What is named once is not named again in the lines that belong to it.
        let mut first = [printable(&name), word.to_owned()];
        let blank = [String::new()];
        for line in if lines.is_empty() { &blank } else { lines } {
            if shown == ROWS_SHOWN {
                more += 1;
                continue;
            }
            let [name, word] = std::mem::take(&mut first);
            table.add_row([name, word, printable(line)]);
            shown += 1;
        }
    }
    let rest = if more == 0 { String::new() } else { format!("\nand {more} more: see --json") };
    table.trim_fmt() + &rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::{GroupName, PoolName, ShardId};
    use crate::model::preview::{PoolChange, PoolFate, ShardChange, ShardFate};

    fn preview(reasons: usize) -> Preview {
        let shard = ShardId::new(&GroupName::new("default"), 2);
        let reasons = (1..=reasons).map(|n| format!("workers of pool p{n}: 4 → 6")).collect();
        Preview {
            shards: vec![ShardChange { shard, change: ShardFate::Handover, reasons }],
            pools: vec![
                PoolChange { pool: PoolName::new("p1"), change: PoolFate::Changed, details: vec!["workers: 8 → 12".to_owned()] },
                PoolChange { pool: PoolName::new("old"), change: PoolFate::Removed, details: Vec::new() },
            ],
        }
    }

    #[test]
    fn what_would_change_is_a_table() {
        insta::assert_snapshot!(render(&preview(2), None), @r"
        SHARD      WOULD BE  WHY
        default/2  handover  workers of pool p1: 4 → 6
                             workers of pool p2: 4 → 6

        POOL  WOULD BE  WHAT DIFFERS
        p1    changed   workers: 8 → 12
        old   removed
        ");
        assert_eq!(render(&Preview::default(), None), "nothing would change\n");
        assert!(render(&preview(90), None).contains("and 50 more: see --json"));
    }
}
