//! Files that an earlier supervisor left when it was killed: sockets under temporary names.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;

use crate::model::plan::Plan;
use crate::sys::listener;

/// Removes the stale temporary sockets beside every public path of the plan, one pass a directory.
///
/// Only called with the instance's lock held and before anything is bound: whatever has such a name then is nobody's.
pub(super) fn sweep(plan: &Plan) {
    let mut directories: BTreeMap<&Path, BTreeSet<&OsStr>> = BTreeMap::new();
    let paths = plan.shards.iter().flat_map(|shard| &shard.placements).filter_map(|placement| placement.listener.endpoint.path());
    for path in paths {
        if let (Some(directory), Some(name)) = (path.parent(), path.file_name()) {
            directories.entry(directory).or_default().insert(name);
        }
    }
    for (directory, names) in directories {
        remove(directory, |name| is_temporary(name, &names));
    }
}

/// Removes every stale socket from the directory of the shards' own sockets, which nobody else uses: a pool that was removed while
/// NGINX still named it may have left one behind with a supervisor that was killed.
pub(super) fn sweep_own(directory: &Path) {
    remove(directory, |_| true);
}

fn remove(directory: &Path, is_ours: impl Fn(&str) -> bool) {
    match listener::sweep(directory, is_ours) {
        Ok(0) => {}
        Ok(removed) => tracing::info!(directory = %directory.display(), removed, "leftover sockets removed"),
        Err(error) => tracing::debug!(directory = %directory.display(), error = %error, "leftover sockets were not looked for"),
    }
}

/// Tells whether a name is a public one with a generation after it, or a shard and a generation, as [`super::sockets`] gives them.
fn is_temporary(name: &str, public: &BTreeSet<&OsStr>) -> bool {
    let Some((stem, generation)) = name.rsplit_once('.') else { return false };
    let generation = match generation.split_once('-') {
        Some((shard, generation)) if !shard.is_empty() && shard.bytes().all(|byte| byte.is_ascii_digit()) => generation,
        Some(_) => return false,
        None => generation,
    };
    let is_generation = !generation.is_empty() && generation.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_generation && public.contains(OsStr::new(stem)) && !public.contains(OsStr::new(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_after_a_public_name_is_temporary() {
        let public: BTreeSet<&OsStr> = ["www.sock", "www.sock.2"].into_iter().map(OsStr::new).collect();
        for (name, temporary) in [
            ("www.sock.1f", true),
            ("www.sock.2", false),
            ("www.sock", false),
            ("www.sock.x", false),
            ("blog.sock.1", false),
            ("www.sock.", false),
            ("www.sock.12-1f", true),
            ("www.sock.-1f", false),
            ("www.sock.1f-", false),
            ("www.sock.1-2-3", false),
        ] {
            assert_eq!(is_temporary(name, &public), temporary, "{name}");
        }
    }
}
