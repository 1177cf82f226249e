//! Limits that control groups hold: whether they can be held here, and whether the machine has what they add up to.
//!
//! Whether the service manager delegates a group only a supervisor in it can tell: `status` does.

use crate::model::problem::Problem;
use crate::model::settings::Settings;
use crate::runtime::draft::Made;
use crate::sys::cgroup;
use crate::sys::topology::Roots;

/// Gives what is wrong with `limits.memory_max` and `limits.cpu_weight`.
pub(super) fn of_limits(settings: &Settings, made: &Made) -> Vec<Problem> {
    of_limits_at(
        &Roots::default(),
        settings,
        made.plan.shards.iter().filter(|shard| !shard.placements.is_empty()).count(),
        made.host.memory_bytes,
    )
}

fn of_limits_at(roots: &Roots, settings: &Settings, shards: usize, memory_bytes: Option<u64>) -> Vec<Problem> {
    let limits = &settings.limits;
    let asked = [("memory_max", "memory", limits.memory_max.is_some()), ("cpu_weight", "cpu", limits.cpu_weight.is_some())];
    let mut problems = Vec::new();
    for (key, controller, _) in asked.into_iter().filter(|(.., asked)| *asked) {
        if let Err(error) = cgroup::offered(roots, controller) {
            let key = format!("limits.{key}");
            let problem = Problem::warning(format!("{key} has no effect on this host: {error}"));
            problems.push(
                settings.point(
                    &key,
                    problem.remedy(format!("boot with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1), or remove {key}")),
                ),
            );
        }
    }
    let sum = limits.memory_max.and_then(|bytes| bytes.checked_mul(u64::try_from(shards).ok()?));
    if let (Some(bytes), Some(sum), Some(memory)) = (limits.memory_max, sum, memory_bytes)
        && sum > memory
    {
        let message = format!("limits.memory_max of {shards} shards adds up to {} MB, and there are {} MB", sum >> 20, memory >> 20);
        let share = (memory / u64::try_from(shards).unwrap_or(1).max(1)) >> 20;
        let remedy = format!("write at most \"{share}M\" instead of {} MB; a handover needs one shard's more for a while", bytes >> 20);
        problems.push(settings.point("limits.memory_max", Problem::warning(message).remedy(remedy)));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_compared_with_kernel_and_memory() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let roots = Roots { sys: at("sys"), proc: at("proc"), cgroup: at("cgroup") };
        std::fs::create_dir(at("cgroup")).unwrap();
        std::fs::write(at("cgroup/cgroup.controllers"), "cpu io\n").unwrap();
        std::fs::write(at("web.toml"), "[php]\nbinary = \"/f\"\nconfig = \"/c\"\n[limits]\nmemory_max = \"2G\"\ncpu_weight = 50\n")
            .unwrap();
        let settings = crate::edge::settings::load(&at("web.toml")).unwrap().settings;
        let told =
            |shards, memory| of_limits_at(&roots, &settings, shards, memory).iter().map(|one| one.message.clone()).collect::<Vec<_>>();
        let lacks = format!("limits.memory_max has no effect on this host: there is no memory controller in {}", at("cgroup").display());
        assert_eq!(told(2, Some(4 << 30)), [lacks]);
        std::fs::write(at("cgroup/cgroup.controllers"), "cpu memory\n").unwrap();
        assert_eq!(told(3, Some(4 << 30)), ["limits.memory_max of 3 shards adds up to 6144 MB, and there are 4096 MB"]);
        assert!(told(3, None).is_empty());
    }
}
