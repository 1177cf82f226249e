//! `[limits]`: what a master is started with, and whether it and its workers have it.

use nix::unistd::Pid;

use super::master::Master;
use crate::model::settings::{Limit as SettingsLimit, Limits};
use crate::sys::proc::Proc;
use crate::sys::spawn::{Command, Limit, Resource};

/// A resource, the kernel's name of it in `/proc/PID/limits`, and the limit wanted. Source: proc_pid_limits(5).
type Wanted = (Resource, &'static str, u64);

fn wanted(limits: &Limits) -> impl Iterator<Item = Wanted> {
    let value = |limit: SettingsLimit| match limit {
        SettingsLimit::Unlimited => Limit::UNLIMITED,
        SettingsLimit::At(value) => value,
    };
    let all = [
        (Resource::RLIMIT_NOFILE, "Max open files", limits.nofile),
        (Resource::RLIMIT_CORE, "Max core file size", limits.core.map(value)),
        (Resource::RLIMIT_NPROC, "Max processes", limits.nproc),
        (Resource::RLIMIT_MEMLOCK, "Max locked memory", limits.memlock.map(value)),
    ];
    all.into_iter().filter_map(|(resource, name, value)| Some((resource, name, value?)))
}

/// Gives the command with the limits on it.
pub(super) fn applied(mut command: Command, limits: &Limits) -> Command {
    for (resource, _, value) in wanted(limits) {
        command = command.limit(resource, Limit::both(value));
    }
    if let Some(nice) = limits.nice {
        command = command.nice(nice);
    }
    if let Some(adjustment) = limits.oom_score_adjust {
        command = command.oom_score_adj(adjustment);
    }
    command
}

/// Looks whether a master that serves, and one of its workers, have the limits of the settings, and says so where they have not:
/// `rlimit_files` or `rlimit_core` in php-fpm's `[global]` change the master after us. In a pool they are its workers' own matter.
pub(super) fn verify(master: &Master, limits: &Limits) {
    let Some(pid) = master.pid else { return };
    let proc = Proc::default();
    let worker = proc.children_of(pid).unwrap_or_default().into_iter().next();
    let of_worker = Limits { nofile: None, core: None, ..limits.clone() };
    let told = [differences(&proc, pid, limits), worker.map(|worker| differences(&proc, worker, &of_worker)).unwrap_or_default()];
    let (shard, generation) = (master.id.shard.to_string(), master.id.generation.0);
    for (whose, told) in ["master", "worker"].into_iter().zip(told) {
        for difference in told {
            tracing::warn!(shard, gen = generation, pid = pid.as_raw(), whose, difference, "limits are not as the settings want them");
        }
    }
}

/// Gives what a running process has otherwise than wanted: `Max open files is 1024 and not 65536`. Nothing of one that is gone.
fn differences(proc: &Proc, pid: Pid, limits: &Limits) -> Vec<String> {
    let Ok(found) = proc.limits(pid) else { return Vec::new() };
    let shown = |value: u64| if value == Limit::UNLIMITED { "unlimited".to_owned() } else { value.to_string() };
    wanted(limits)
        .filter_map(|(_, name, value)| {
            let soft = found.get(name)?.soft;
            (soft != value).then(|| format!("{name} is {} and not {}", shown(soft), shown(value)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_has_is_compared_with_what_it_should_have() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("7")).unwrap();
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max core file size        0                    unlimited            bytes     \n\
                    Max processes             unlimited            unlimited            processes \n\
                    Max open files            1024                 65536                files     \n";
        std::fs::write(directory.path().join("7/limits"), text).unwrap();
        let limits = Limits {
            nofile: Some(65_536),
            core: Some(SettingsLimit::At(0)),
            nproc: Some(100),
            memlock: None,
            nice: None,
            oom_score_adjust: None,
            memory_max: None,
            cpu_weight: None,
        };
        let proc = Proc::at(directory.path());
        let told = differences(&proc, Pid::from_raw(7), &limits);
        assert_eq!(told, ["Max open files is 1024 and not 65536", "Max processes is unlimited and not 100"]);
        assert!(differences(&proc, Pid::from_raw(8), &limits).is_empty());
    }
}
