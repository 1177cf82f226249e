//! What limits this process can give its children.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Gives how many open files a child can be allowed: `wanted`, or fewer where that is above the hard limit and the kernel
/// does not let us raise it.
///
/// The hard limit is tried and not read alone: root may raise it up to `fs.nr_open`, but not in an unprivileged container,
/// where the capability is shown and does not count.
pub fn attainable_files(wanted: u64) -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return wanted };
    if wanted <= hard {
        return wanted;
    }
    if setrlimit(Resource::RLIMIT_NOFILE, soft, wanted).is_err() {
        return hard;
    }
    // Whoever may raise it may lower it again; a limit that stayed raised would hurt nobody.
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).ok();
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_promised_than_the_kernel_gives() {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(attainable_files(64), 64);
        assert_eq!(attainable_files(hard), hard);
        let beyond = attainable_files(u64::MAX / 2);
        assert!(beyond >= hard && beyond < u64::MAX / 2, "{beyond} of a hard limit of {hard}");
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (soft, hard), "the limits are as before");
    }
}
