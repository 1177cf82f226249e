//! Executing ourselves again: descriptors and a message that come through an exec.
//!
//! What one program image hands to the next in the same process: descriptors under their numbers, and one sealed message
//! that says what they are. Descriptors are close-on-exec but for the moment of the exec itself, so that no program started
//! meanwhile inherits them. The message is in memory that nobody can change any more, and says which process it is for: a
//! number in an environment that was copied elsewhere leads to nothing.
//!
//! Signals are blocked over the exec. One sent meanwhile stays pending, and the next image hears it once it has handlers.
//!
//! Sources: execve(2), memfd_create(2), fcntl(2) on seals, signal(7) on what an exec keeps.
#![expect(unsafe_code, reason = "descriptors that come by number have no owner yet; close_range has no safe form")]

use std::collections::BTreeSet;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::FdFlags;

/// The first number that is no standard stream.
const FIRST: RawFd = 3;

/// The largest message: 100,000 descriptors take about 3 MB.
const LIMIT_BYTES: u64 = 64 * 1024 * 1024;

/// What nobody may do to a message.
const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// Numbers that have an owner: none is given twice.
static CLAIMED: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// Takes ownership of a descriptor that whoever executed this program left open. `None` when it is not open or was taken
/// before. It is close-on-exec afterwards.
///
/// Only for numbers that came with the program's start, before anything else opened descriptors.
pub fn claim(number: RawFd) -> Option<OwnedFd> {
    if number < FIRST || !CLAIMED.lock().unwrap_or_else(PoisonError::into_inner).insert(number) {
        return None;
    }
    // SAFETY: the number is only looked at: whether it is open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(borrowed, FdFlags::CLOEXEC).ok()?;
    // SAFETY: it is open and has no other owner: it came with the exec, and the table above gives it out once.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes every descriptor from 3 on but these, which have come with the program's start.
///
/// Only before anything else has opened descriptors: whoever owned one would lose it.
pub fn close_all_but(kept: &BTreeSet<RawFd>) {
    let close = |first: RawFd, last: RawFd| {
        let (Ok(first), Ok(last)) = (libc::c_uint::try_from(first), libc::c_uint::try_from(last)) else { return };
        if first <= last {
            // SAFETY: nothing in this program owns a descriptor yet but those that are kept, which are not in the range. Kernels
            // before 5.9 refuse the call: then what came unasked stays open, which harms nobody.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    };
    let mut first = FIRST;
    for number in kept.iter().copied().filter(|number| *number >= FIRST) {
        close(first, number - 1);
        first = number + 1;
    }
    close(first, RawFd::MAX);
}

/// Puts a message into memory that cannot be changed any more.
///
/// # Errors
/// There is no memory or descriptor left.
pub fn seal(message: &[u8]) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("polyfpm-handoff", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(fd);
    file.write_all(message)?;
    file.rewind()?;
    rustix::fs::fcntl_add_seals(&file, SEALS)?;
    Ok(file.into())
}

/// Reads a message.
///
/// # Errors
/// The descriptor is no sealed memory, so anybody may have written it; or it is longer than any message.
pub fn unseal(fd: OwnedFd) -> io::Result<Vec<u8>> {
    if !rustix::fs::fcntl_get_seals(&fd)?.contains(SEALS) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is not sealed"));
    }
    let mut file = File::from(fd);
    if file.metadata()?.len() > LIMIT_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
    }
    file.rewind()?;
    let mut message = Vec::new();
    file.read_to_end(&mut message)?;
    Ok(message)
}

/// All signals of this thread blocked until dropped. What is sent meanwhile is pending afterwards.
#[derive(Debug)]
pub struct Deaf(SigSet);

impl Deaf {
    /// Blocks them.
    ///
    /// # Errors
    /// Never in practice: the set and the operation are valid.
    pub fn now() -> io::Result<Self> {
        Ok(Self(SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?))
    }

    /// Blocks them in this thread until it ends.
    pub fn for_ever() {
        // Cannot fail: the set and the operation are valid.
        let _unfailing = SigSet::all().thread_set_mask();
    }
}

impl Drop for Deaf {
    fn drop(&mut self) {
        // Cannot fail: the set and the operation are valid.
        let _unfailing = self.0.thread_set_mask();
    }
}

/// The program to go on as.
#[derive(Debug, Clone)]
pub struct Image {
    /// Its path.
    pub program: PathBuf,
    /// Its arguments, its name first.
    pub arguments: Vec<OsString>,
    /// Its whole environment.
    pub environment: Vec<(OsString, OsString)>,
}

impl Image {
    /// Becomes this program, these descriptors left open in it under their numbers, signals blocked as they are. Gives the
    /// reason why not: then everything is as before.
    pub fn become_it(&self, kept: &[BorrowedFd<'_>], _deaf: &Deaf) -> io::Error {
        match self.execute(kept) {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    fn execute(&self, kept: &[BorrowedFd<'_>]) -> io::Result<std::convert::Infallible> {
        let c_string = |bytes: &[u8]| CString::new(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error));
        let program = c_string(self.program.as_os_str().as_bytes())?;
        let arguments = self.arguments.iter().map(|argument| c_string(argument.as_bytes())).collect::<io::Result<Vec<_>>>()?;
        let variable = |(name, value): &(OsString, OsString)| c_string(&[name.as_bytes(), b"=", value.as_bytes()].concat());
        let environment = self.environment.iter().map(variable).collect::<io::Result<Vec<_>>>()?;
        let opened = kept.iter().try_for_each(|fd| rustix::io::fcntl_setfd(fd, FdFlags::empty()));
        let failed = match opened {
            Ok(()) => nix::unistd::execve(&program, &arguments, &environment).map_err(io::Error::from),
            Err(errno) => Err(errno.into()),
        };
        for fd in kept {
            // The descriptor was valid a moment ago.
            rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC).ok();
        }
        failed
    }
}

/// Gives the descriptor's number for a message.
pub fn number_of(fd: &impl AsFd) -> RawFd {
    fd.as_fd().as_raw_fd()
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd as _;

    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_sealed_and_only_when_it_was() {
        let fd = seal(b"who and what").unwrap();
        assert!(File::from(fd.try_clone().unwrap()).write_all(b"else").is_err(), "nobody can change it");
        assert_eq!(unseal(fd).unwrap(), b"who and what");
        let file = tempfile::tempfile().unwrap();
        assert!(unseal(file.into()).is_err(), "a file of anybody's");
        let open = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert_eq!(unseal(open).unwrap_err().to_string(), "the message is not sealed");
    }

    #[test]
    fn a_number_is_given_out_once_and_only_if_it_is_open() {
        let number = tempfile::tempfile().unwrap().into_raw_fd();
        let claimed = claim(number).unwrap();
        assert!(rustix::io::fcntl_getfd(&claimed).unwrap().contains(FdFlags::CLOEXEC));
        assert!(claim(number).is_none());
        assert!(claim(1).is_none(), "a standard stream has its owner");
        assert!(claim(1_000_000).is_none(), "not open");
    }

    #[test]
    fn a_program_that_cannot_be_executed_leaves_everything_as_it_was() {
        let file = tempfile::tempfile().unwrap();
        let before = SigSet::thread_get_mask().unwrap();
        let image = |program: &str| Image { program: program.into(), arguments: vec!["x".into()], environment: Vec::new() };
        let deaf = Deaf::now().unwrap();
        assert_eq!(image("/dev/null").become_it(&[file.as_fd()], &deaf).kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(image("/nowhere").become_it(&[file.as_fd()], &deaf).kind(), io::ErrorKind::NotFound);
        drop(deaf);
        assert!(rustix::io::fcntl_getfd(&file).unwrap().contains(FdFlags::CLOEXEC));
        assert_eq!(SigSet::thread_get_mask().unwrap(), before);
    }
}
