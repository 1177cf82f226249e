//! Draws the map of CPUs: runs of CPUs that have the same node, cache, NGINX workers and shards are one row.

use super::table::table;
use crate::model::cpus::CpuSet;
use crate::model::plan::{CpuMap, CpuRow};

/// More rows than this say nothing at a look.
const ROWS_APART: usize = 16;

/// Gives the map, and why the shards are where they are.
pub(super) fn render(map: &CpuMap, width: Option<u16>) -> String {
    if map.cpus.is_empty() {
        return String::new();
    }
    let mut table = table(["CPUS", "NODE", "CACHE", "NGINX WORKERS", "SHARDS"], width);
    for rows in runs(&map.cpus) {
        let Some(first) = rows.first() else { continue };
        let cpus: CpuSet = rows.iter().map(|row| row.cpu).collect();
        let workers: CpuSet = rows.iter().flat_map(|row| row.nginx_workers.iter().copied()).collect();
        let names: Vec<String> = first.shards.iter().map(ToString::to_string).collect();
        let shards = if first.usable { names.join(" ") } else { "not ours to use".to_owned() };
        table.add_row([cpus.to_string(), first.node.to_string(), first.cache.to_string(), workers.to_string(), shards]);
    }
    let mut lines = vec![table.trim_fmt()];
    if map.unpinned_nginx_workers > 0 {
        lines.push(format!("NGINX workers on any CPU: {}", map.unpinned_nginx_workers));
    }
    lines.extend(map.reasons.iter().map(|(group, reason)| format!("{group}: {reason}")));
    lines.join("\n")
}

/// Gives rows that belong together. On a small machine each CPU is one; on a larger one neighbours whose NGINX workers differ
/// are put together too, as their numbers tell the same.
fn runs(rows: &[CpuRow]) -> Vec<Vec<&CpuRow>> {
    let many = rows.len() > ROWS_APART;
    let mut sorted: Vec<&CpuRow> = rows.iter().collect();
    // Siblings of a core are neighbours here, whatever their numbers.
    sorted.sort_by_key(|row| (row.node, row.cache, !row.usable, row.shards.clone(), row.core, row.cpu));
    let mut runs: Vec<Vec<&CpuRow>> = Vec::new();
    for row in sorted {
        let joins = |last: &&CpuRow| {
            let place = (last.node, last.cache, &last.shards, last.usable) == (row.node, row.cache, &row.shards, row.usable);
            place && (many || last.nginx_workers == row.nginx_workers) && (many || last.core == row.core)
        };
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(joins) => run.push(row),
            _ => runs.push(vec![row]),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::{GroupName, ShardId};

    fn row(cpu: u32, cache: u32, worker: Option<u32>, shard: u16) -> CpuRow {
        let shards = vec![ShardId::new(&GroupName::new("default"), shard)];
        CpuRow { cpu, node: 0, cache, core: cpu, usable: true, nginx_workers: worker.into_iter().collect(), shards }
    }

    #[test]
    fn a_small_machine_is_drawn_cpu_by_cpu() {
        let map = CpuMap {
            cpus: vec![row(0, 0, Some(0), 1), row(1, 0, Some(1), 2)],
            unpinned_nginx_workers: 0,
            reasons: vec![(GroupName::new("default"), "2 shards for 2 CPUs".to_owned())],
        };
        insta::assert_snapshot!(render(&map, None), @r#"
        CPUS  NODE  CACHE  NGINX WORKERS  SHARDS
        0     0     0      0              default/1
        1     0     0      1              default/2
        default: 2 shards for 2 CPUs
        "#);
    }

    #[test]
    fn a_large_one_is_drawn_by_what_belongs_together() {
        let mut cpus: Vec<CpuRow> = (0..32).map(|cpu| row(cpu, cpu / 8 * 8, Some(cpu), u16::try_from(cpu / 16 + 1).unwrap())).collect();
        cpus.push(CpuRow { usable: false, shards: Vec::new(), ..row(40, 0, Some(32), 1) });
        let map = CpuMap { cpus, unpinned_nginx_workers: 1, reasons: Vec::new() };
        insta::assert_snapshot!(render(&map, None), @r#"
        CPUS   NODE  CACHE  NGINX WORKERS  SHARDS
        0-7    0     0      0-7            default/1
        40     0     0      32             not ours to use
        8-15   0     8      8-15           default/1
        16-23  0     16     16-23          default/2
        24-31  0     24     24-31          default/2
        NGINX workers on any CPU: 1
        "#);
    }
}
