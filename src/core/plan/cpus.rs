//! How many shards a group has and on which CPUs.

use crate::model::cpus::CpuSet;
use crate::model::problem::Problem;
use crate::model::settings::{CpuChoice, GroupSettings, Settings, ShardCount};

/// Up to so many CPUs each gets a shard of its own.
const SHARD_PER_CPU_UP_TO: usize = 4;

/// At most so many shards are chosen unasked: each has an opcache of its own (P43).
const SHARDS_AT_MOST: usize = 8;

/// Gives the number of shards of `group` on a host with `available` CPUs.
pub(super) fn count(group: &GroupSettings, available: &CpuSet) -> u16 {
    match group.count {
        ShardCount::Fixed(count) => count.max(1),
        ShardCount::Auto => {
            let cpus = available.len();
            let shards = if cpus <= SHARD_PER_CPU_UP_TO { cpus.max(1) } else { (cpus / 4).clamp(SHARD_PER_CPU_UP_TO, SHARDS_AT_MOST) };
            u16::try_from(shards).unwrap_or(u16::MAX)
        }
    }
}

/// Gives the CPUs of each of `count` shards.
pub(super) fn sets(group: &GroupSettings, count: u16, available: &CpuSet) -> Vec<Option<CpuSet>> {
    let count = usize::from(count);
    match &group.cpus {
        CpuChoice::Off => vec![None; count],
        CpuChoice::Auto | CpuChoice::Nginx => in_turn(&ranges(available, count), count),
        // A CPU that is not there is reported; the shard runs on the others.
        CpuChoice::Sets(sets) => {
            let present: Vec<CpuSet> = sets.iter().map(|set| set.iter().filter(|cpu| available.contains(*cpu)).collect()).collect();
            in_turn(&present, count)
        }
    }
}

/// Reports CPUs that the settings name and the supervisor may not use.
pub(super) fn absent(settings: &Settings, group: &GroupSettings, available: &CpuSet) -> Option<Problem> {
    let CpuChoice::Sets(sets) = &group.cpus else { return None };
    let absent = sets.iter().flat_map(CpuSet::iter).collect::<CpuSet>().without(available);
    if absent.is_empty() {
        return None;
    }
    let message = format!("cpus of group '{}': CPU {absent} is not among the CPUs that polyfpm may use, {available}", group.name);
    let problem = Problem::error(message).remedy(format!("name CPUs out of {available}, or set cpus = \"auto\""));
    Some(settings.point(&settings.group_key(&group.name, "cpus"), problem))
}

/// Cuts `available` into at most `parts` contiguous sets whose sizes differ by at most one.
fn ranges(available: &CpuSet, parts: usize) -> Vec<CpuSet> {
    let parts = parts.min(available.len());
    let mut cpus = available.iter();
    (0..parts)
        .map(|part| {
            let size = available.len() / parts + usize::from(part < available.len() % parts);
            cpus.by_ref().take(size).collect()
        })
        .collect()
}

/// Deals `sets` to `count` shards, from the start again when there are more shards than sets.
fn in_turn(sets: &[CpuSet], count: usize) -> Vec<Option<CpuSet>> {
    if sets.is_empty() {
        return vec![None; count];
    }
    sets.iter().cycle().take(count).map(|set| (!set.is_empty()).then(|| set.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::GroupName;

    fn group(count: ShardCount, cpus: CpuChoice) -> GroupSettings {
        GroupSettings { name: GroupName::new("default"), pools: Vec::new(), count, cpus, min_workers: 8 }
    }

    fn shown(cpus: CpuChoice, count: u16, available: &str) -> Vec<String> {
        let sets = sets(&group(ShardCount::Auto, cpus), count, &available.parse().unwrap());
        sets.iter().map(|set| set.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)).collect()
    }

    #[test]
    fn auto_counts_cpus_up_to_four_and_then_grows_slowly() {
        for (available, wanted) in [("", 1), ("0", 1), ("0-1", 2), ("0-3", 4), ("0-4", 4), ("0-15", 4), ("0-23", 6), ("0-127", 8)] {
            assert_eq!(count(&group(ShardCount::Auto, CpuChoice::Off), &available.parse().unwrap()), wanted, "{available}");
        }
        assert_eq!(count(&group(ShardCount::Fixed(3), CpuChoice::Off), &"0".parse().unwrap()), 3);
    }

    #[test]
    fn cpus_are_cut_into_contiguous_nearly_equal_sets() {
        assert_eq!(shown(CpuChoice::Auto, 2, "0-3"), ["0-1", "2-3"]);
        assert_eq!(shown(CpuChoice::Nginx, 3, "0-7"), ["0-2", "3-5", "6-7"]);
        assert_eq!(shown(CpuChoice::Auto, 2, "0,2,8-9"), ["0,2", "8-9"]);
        assert_eq!(shown(CpuChoice::Auto, 4, "0,2"), ["0", "2", "0", "2"]);
        assert_eq!(shown(CpuChoice::Auto, 2, ""), ["-", "-"]);
        assert_eq!(shown(CpuChoice::Off, 2, "0-3"), ["-", "-"]);
    }

    #[test]
    fn given_sets_are_used_in_turn_without_absent_cpus() {
        let sets = ["0-1", "2,9", "9"].map(|set| set.parse().unwrap());
        assert_eq!(shown(CpuChoice::Sets(sets.to_vec()), 4, "0-3"), ["0-1", "2", "-", "0-1"]);
    }
}
