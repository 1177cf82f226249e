//! POSIX access control lists of socket files.
//!
//! php-fpm grants `listen.acl_users` and `listen.acl_groups` read and write on the socket beside what `listen.mode`
//! says, and then ignores `listen.owner` and `listen.group`. The list is written as the extended attribute in which the
//! kernel keeps it, so no library is needed.
//!
//! Source: Linux `include/uapi/linux/posix_acl_xattr.h`; acl(5), "Access check algorithm"; php-src `fpm_unix.c`,
//! `fpm_unix_set_socket_permissions`.

/// The attribute that holds a file's access list.
pub(super) const ATTRIBUTE: &str = "system.posix_acl_access";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;
/// Connecting needs write; php-fpm grants read with it.
const READ_WRITE: u16 = 0o6;

/// Gives the value of [`ATTRIBUTE`] for a socket with permission bits `mode` on which `uids` and `gids` may read and write besides.
pub(super) fn encode(mode: u32, uids: &[u32], gids: &[u32]) -> Vec<u8> {
    let mut value = VERSION.to_le_bytes().to_vec();
    let mut entry = |tag: u16, permissions: u16, id: u32| {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    };
    // The kernel wants this order of tags; ids in order and once, as acl_valid(3) asks.
    entry(USER_OBJ, bits(mode, 6), NO_ID);
    for id in sorted(uids) {
        entry(USER, READ_WRITE, id);
    }
    entry(GROUP_OBJ, bits(mode, 3), NO_ID);
    for id in sorted(gids) {
        entry(GROUP, READ_WRITE, id);
    }
    // The mask caps all but owner and other; the union of what it caps takes nothing away, as acl_calc_mask(3) computes it.
    entry(MASK, bits(mode, 3) | READ_WRITE, NO_ID);
    entry(OTHER, bits(mode, 0), NO_ID);
    value
}

fn bits(mode: u32, shift: u32) -> u16 {
    u16::try_from((mode >> shift) & 0o7).unwrap_or_default()
}

fn sorted(ids: &[u32]) -> Vec<u32> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sys::children::{Children, Subreaper};
    use crate::sys::spawn::Command;
    use std::path::Path;
    use std::time::Duration;

    /// Gives the lines of a file's list as getfacl(1) reads it, with numbers.
    pub(in crate::sys) async fn getfacl(file: &Path) -> String {
        let children = Children::start(Subreaper::Yes).unwrap();
        let command = Command::new("/usr/bin/getfacl").arg("-cnpE").arg(file);
        let finished = children.run(command, Duration::from_secs(20), 65_536).await.unwrap();
        assert!(finished.exit.success(), "{finished:?}");
        String::from_utf8(finished.stdout).unwrap().trim_end().to_owned()
    }

    #[tokio::test]
    async fn the_kernel_takes_the_list_and_getfacl_reads_it_back() {
        let file = tempfile::NamedTempFile::new_in("/tmp").unwrap();
        let value = encode(0o640, &[65_534, 33, 33], &[100]);
        rustix::fs::setxattr(file.path(), ATTRIBUTE, &value, rustix::fs::XattrFlags::empty()).unwrap();
        let lines = ["user::rw-", "user:33:rw-", "user:65534:rw-", "group::r--", "group:100:rw-", "mask::rw-", "other::---"];
        assert_eq!(getfacl(file.path()).await, lines.join("\n"));
    }
}
