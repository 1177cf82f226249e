//! Moving running processes to other CPUs.
//!
//! Source: sched_setaffinity(2): the mask is a thread's own, and what a thread starts later inherits it.
#![expect(unsafe_code, reason = "nix sets an affinity mask of at most 1024 CPUs")]

use std::io;

use nix::errno::Errno;
use nix::unistd::Pid;

use super::proc::Proc;
use super::spawn::kernel_mask;
use crate::model::cpus::CpuSet;

/// Lets every thread of a process run on `cpus` and nowhere else.
///
/// # Errors
/// The process is gone (ESRCH), none of the CPUs is there for it (EINVAL), or it is not ours to move (EPERM).
pub fn move_process(proc: &Proc, pid: Pid, cpus: &CpuSet) -> io::Result<()> {
    let mask = kernel_mask(cpus);
    // Its first thread starts the others, so it moves first; one that ends meanwhile needs no move.
    set(pid, &mask)?;
    for thread in proc.threads_of(pid).unwrap_or_default() {
        match set(thread, &mask) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn set(thread: Pid, mask: &[libc::c_ulong]) -> Result<(), Errno> {
    // SAFETY: the kernel reads exactly the bytes of the slice, which lives through the call.
    let result = unsafe { libc::sched_setaffinity(thread.as_raw(), size_of_val(mask), mask.as_ptr().cast()) };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::children::{Children, Subreaper};
    use crate::sys::proc::available_cpus;
    use crate::sys::spawn::Command;

    #[tokio::test]
    async fn a_process_moves_with_its_threads() {
        let children = Children::start(Subreaper::Yes).unwrap();
        let child = children.spawn(&Command::new("/bin/sleep").args([std::ffi::OsString::from("60")])).unwrap();
        let (proc, last) = (Proc::default(), available_cpus().unwrap().iter().last().unwrap());
        let wanted: CpuSet = [last].into_iter().collect();
        move_process(&proc, child.pid(), &wanted).unwrap();
        assert_eq!(proc.cpus_allowed(child.pid()).unwrap(), wanted);
        let nowhere: CpuSet = [60_000].into_iter().collect();
        assert_eq!(move_process(&proc, child.pid(), &nowhere).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        children.signal(child.pid(), nix::sys::signal::Signal::SIGKILL).unwrap();
    }
}
