//! Divides workers: never more of them in all shards together than the operator wrote.
//!
//! Source of php-fpm's rules: php-src `fpm_conf.c`, `fpm_conf_process_all_pools`; guarded by the contract tests.

use crate::model::pool::{ProcessManager, WorkerNumbers};

/// Gives what php-fpm finds wrong with a pool's numbers, if anything.
pub(super) fn refusal(pm: ProcessManager, numbers: &WorkerNumbers) -> Option<String> {
    let most = numbers.max_children;
    if most == 0 {
        return Some("pm.max_children must be at least 1".to_owned());
    }
    if pm != ProcessManager::Dynamic {
        return None;
    }
    let (least_spare, most_spare) = (numbers.min_spare_servers.unwrap_or(0), numbers.max_spare_servers.unwrap_or(0));
    if least_spare == 0 || most_spare == 0 {
        let key = if least_spare == 0 { "pm.min_spare_servers" } else { "pm.max_spare_servers" };
        return Some(format!("{key} must be at least 1 with pm = dynamic"));
    }
    if least_spare > most || most_spare > most {
        return Some(format!(
            "pm.min_spare_servers {least_spare} and pm.max_spare_servers {most_spare} may not exceed pm.max_children {most}"
        ));
    }
    if most_spare < least_spare {
        return Some(format!("pm.max_spare_servers {most_spare} is below pm.min_spare_servers {least_spare}"));
    }
    let start = numbers.start_servers.filter(|start| *start > 0)?;
    (start < least_spare || start > most_spare).then(|| {
        format!("pm.start_servers {start} is not between pm.min_spare_servers {least_spare} and pm.max_spare_servers {most_spare}")
    })
}

/// Divides a pool's numbers over `parts` shards, each of which gets at least one worker when there are enough.
///
/// `pm.max_children` keeps its total exactly. The spare limits keep theirs as far as each shard may have at least 1.
pub(super) fn divide(pm: ProcessManager, whole: &WorkerNumbers, parts: u32) -> Vec<WorkerNumbers> {
    if parts <= 1 {
        return vec![*whole];
    }
    (0..parts).map(|part| one_share(pm, whole, (part, parts))).collect()
}

fn one_share(pm: ProcessManager, whole: &WorkerNumbers, of: (u32, u32)) -> WorkerNumbers {
    let max_children = share(whole.max_children, of);
    // php-fpm reads the spare limits with pm = dynamic alone.
    if pm != ProcessManager::Dynamic {
        return WorkerNumbers { max_children, ..WorkerNumbers::default() };
    }
    let least = whole.min_spare_servers.map_or(1, |total| share(total, of)).clamp(1, max_children.max(1));
    let most = whole.max_spare_servers.map_or(least, |total| share(total, of)).clamp(least, max_children.max(least));
    let start = whole.start_servers.filter(|start| *start > 0).map(|total| share(total, of).clamp(least, most));
    WorkerNumbers { max_children, start_servers: start, min_spare_servers: Some(least), max_spare_servers: Some(most) }
}

/// Gives part `of.0` (from 0) of `total` cut into `of.1` nearly equal parts; the first ones are the bigger ones.
///
/// A bigger total never has a smaller share in any part, so that shares of numbers in order are in order.
pub(super) fn share(total: u32, of: (u32, u32)) -> u32 {
    let (part, parts) = (of.0, of.1.max(1));
    total / parts + u32::from(part < total % parts)
}

/// Cuts `total` by `weights`, each part at least 1; the sum is `total` unless there are more parts than that.
pub(super) fn in_proportion(total: u32, weights: &[u64]) -> Vec<u32> {
    let count = u32::try_from(weights.len()).unwrap_or(u32::MAX);
    // One each first: no master may be left with 0, which means no limit at all.
    let rest = u128::from(total.saturating_sub(count));
    let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum::<u128>().max(1);
    let mut given = 0;
    let mut before: u128 = 0;
    weights
        .iter()
        .map(|weight| {
            before += u128::from(*weight);
            let upto = u32::try_from(rest * before / sum).unwrap_or(u32::MAX);
            let part = upto.saturating_sub(given);
            given = upto;
            part.saturating_add(1)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers(max_children: u32, start: u32, least: u32, most: u32) -> WorkerNumbers {
        let some = |number| (number > 0).then_some(number);
        WorkerNumbers { max_children, start_servers: some(start), min_spare_servers: some(least), max_spare_servers: some(most) }
    }

    #[test]
    fn what_php_fpm_refuses_is_named() {
        use ProcessManager::{Dynamic, Ondemand, Static};
        for (pm, given, wanted) in [
            (Static, numbers(0, 0, 0, 0), Some("pm.max_children must be at least 1")),
            (Static, numbers(4, 9, 9, 9), None),
            (Ondemand, numbers(4, 0, 0, 0), None),
            (Dynamic, numbers(4, 0, 0, 3), Some("pm.min_spare_servers must be at least 1 with pm = dynamic")),
            (Dynamic, numbers(4, 0, 1, 0), Some("pm.max_spare_servers must be at least 1 with pm = dynamic")),
            (Dynamic, numbers(4, 0, 1, 5), Some("pm.min_spare_servers 1 and pm.max_spare_servers 5 may not exceed pm.max_children 4")),
            (Dynamic, numbers(4, 0, 3, 2), Some("pm.max_spare_servers 2 is below pm.min_spare_servers 3")),
            (Dynamic, numbers(4, 4, 1, 3), Some("pm.start_servers 4 is not between pm.min_spare_servers 1 and pm.max_spare_servers 3")),
            (Dynamic, numbers(4, 0, 1, 3), None),
            (Dynamic, numbers(4, 2, 1, 3), None),
        ] {
            assert_eq!(refusal(pm, &given).as_deref(), wanted);
        }
    }

    #[test]
    fn dynamic_pools_divide_all_their_numbers() {
        let shares = divide(ProcessManager::Dynamic, &numbers(21, 8, 4, 10), 4);
        assert_eq!(shares, [numbers(6, 2, 1, 3), numbers(5, 2, 1, 3), numbers(5, 2, 1, 2), numbers(5, 2, 1, 2)]);
    }

    #[test]
    fn other_pools_divide_max_children_alone() {
        let shares = divide(ProcessManager::Ondemand, &numbers(5, 0, 1, 5), 2);
        assert_eq!(shares, [numbers(3, 0, 0, 0), numbers(2, 0, 0, 0)]);
    }

    #[test]
    fn a_pool_on_one_shard_keeps_its_numbers() {
        assert_eq!(divide(ProcessManager::Ondemand, &numbers(5, 0, 1, 5), 1), [numbers(5, 0, 1, 5)]);
    }

    fn any_pm() -> impl Strategy<Value = ProcessManager> {
        prop_oneof![Just(ProcessManager::Static), Just(ProcessManager::Dynamic), Just(ProcessManager::Ondemand)]
    }

    proptest! {
        #[test]
        fn totals_hold_and_every_share_is_valid(
            pm in any_pm(), max in 1_u32..5000, cuts in (1_u32..=1000, 1_u32..=1000, 0_u32..=1000), parts in 1_u32..64,
        ) {
            let most = (max * cuts.0 / 1000).max(1);
            let least = (most * cuts.1 / 1000).max(1);
            let start = if cuts.2 == 0 { 0 } else { least + (most - least) * cuts.2 / 1000 };
            let given = numbers(max, start, least, most);
            prop_assert_eq!(refusal(pm, &given), None);
            let parts = parts.min(max);
            let shares = divide(pm, &given, parts);
            prop_assert_eq!(shares.len(), parts as usize);
            prop_assert_eq!(shares.iter().map(|share| share.max_children).sum::<u32>(), max);
            for share in &shares {
                prop_assert_eq!(refusal(pm, share), None, "{:?}", share);
            }
        }

        #[test]
        fn spare_totals_hold_where_each_shard_may_have_one(parts in 1_u32..16, least in 16_u32..40, more in 0_u32..40, start in 0_u32..40) {
            let given = numbers(200, least + start.min(more), least, least + more);
            let shares = divide(ProcessManager::Dynamic, &given, parts);
            let sum = |of: fn(&WorkerNumbers) -> Option<u32>| shares.iter().filter_map(of).sum::<u32>();
            prop_assert_eq!(Some(sum(|share| share.start_servers)), given.start_servers);
            prop_assert_eq!(Some(sum(|share| share.min_spare_servers)), given.min_spare_servers);
            prop_assert_eq!(Some(sum(|share| share.max_spare_servers)), given.max_spare_servers);
        }

        #[test]
        fn proportions_keep_the_total_and_leave_none_out(total in 1_u32.., weights in prop::collection::vec(1_u64..1_000_000, 1..40)) {
            let parts = in_proportion(total, &weights);
            prop_assert_eq!(parts.len(), weights.len());
            prop_assert!(parts.iter().all(|part| *part >= 1));
            let sum: u64 = parts.iter().map(|part| u64::from(*part)).sum();
            prop_assert_eq!(sum, u64::from(total).max(weights.len() as u64));
        }
    }
}
