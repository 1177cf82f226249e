//! What limits this process can give its children.

use std::fs::File;
use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// For how many descriptors there is room from the start: 32 kB of kernel memory.
const ROOM: u64 = 4096;

/// Raises the limit of open files of this process as far as the hard limit allows, and has the kernel make room for some
/// thousand of them.
///
/// To be called while the process has one thread: a table of descriptors that grows while threads share it is not replaced
/// before every CPU has been through the scheduler (`expand_fdtable` in Linux' fs/file.c), which takes about 10 ms at each
/// doubling, 50 ms until a thousand listeners are there.
///
/// # Errors
/// The limit cannot be raised. Room is made within the limit there is.
pub fn make_room_for_files() -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let raised = if soft < hard { setrlimit(Resource::RLIMIT_NOFILE, hard, hard) } else { Ok(()) };
    let limit = if raised.is_ok() { hard } else { soft };
    let highest = i32::try_from(ROOM.min(limit)).unwrap_or(i32::MAX).saturating_sub(1);
    // Only time is lost where this is refused.
    if let Ok(file) = File::open("/dev/null")
        && let Ok(far) = rustix::io::fcntl_dupfd_cloexec(&file, highest)
    {
        drop(far);
    }
    Ok(raised?)
}

/// Gives how much of a resource a child can be allowed, in the resource's unit: `wanted`, or less where that is above the hard
/// limit and the kernel does not let us raise it.
///
/// The hard limit is tried and not read alone: root may raise it (open files up to `fs.nr_open`), but not in an unprivileged
/// container, where the capability is shown and does not count.
pub fn attainable(resource: Resource, wanted: u64) -> u64 {
    let Ok((soft, hard)) = getrlimit(resource) else { return wanted };
    if wanted <= hard {
        return wanted;
    }
    if setrlimit(resource, soft, wanted).is_err() {
        return hard;
    }
    // Whoever may raise it may lower it again; a limit that stayed raised would hurt nobody.
    setrlimit(resource, soft, hard).ok();
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_files_is_made_within_the_hard_limit() {
        make_room_for_files().unwrap();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(soft, hard);
        // "FDSize" is how many descriptors the table has room for.
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let room: u64 = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap().trim().parse().unwrap();
        assert!(room >= ROOM.min(hard), "{room} of {hard}");
    }

    #[test]
    fn no_more_is_promised_than_the_kernel_gives() {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(attainable(Resource::RLIMIT_NOFILE, 64), 64);
        assert_eq!(attainable(Resource::RLIMIT_NOFILE, hard), hard);
        let beyond = attainable(Resource::RLIMIT_NOFILE, u64::MAX / 2);
        assert!(beyond >= hard && beyond < u64::MAX / 2, "{beyond} of a hard limit of {hard}");
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (soft, hard), "the limits are as before");
    }
}
