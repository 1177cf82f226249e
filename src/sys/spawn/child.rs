//! The child's side of a start, between fork and exec: system calls alone, on values prepared before.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::SigSet;
use nix::sys::stat::{Mode, umask};
use nix::unistd::{chdir, setsid, write};

use super::{Command, Limit, Session};
use crate::model::cpus::CpuSet;

/// The highest signal number of Linux.
const LAST_SIGNAL: libc::c_int = 64;

pub(super) const SESSION: u8 = 1;
pub(super) const OOM_SCORE: u8 = 2;
pub(super) const AFFINITY: u8 = 3;
pub(super) const LIMIT: u8 = 4;
pub(super) const NICE: u8 = 5;
pub(super) const DIRECTORY: u8 = 6;
pub(super) const KEEP: u8 = 7;
pub(super) const EXEC: u8 = 8;
pub(super) const CGROUP: u8 = 9;

/// A step's number, its index where it has several, and what went wrong.
type Failure = (u8, u8, Errno);

/// Everything the child needs, in the form its system calls take.
pub(super) struct ChildSide {
    report_to: OwnedFd,
    session: Session,
    /// The group's `cgroup.procs`.
    cgroup: Option<CString>,
    oom_score_adj: Option<Vec<u8>>,
    cpu_mask: Option<Vec<libc::c_ulong>>,
    limits: Vec<(Resource, Limit)>,
    nice: Option<i32>,
    directory: CString,
    keep: Vec<Arc<OwnedFd>>,
}

impl ChildSide {
    pub(super) fn new(command: &Command, report_to: OwnedFd) -> io::Result<Self> {
        let fits = u8::try_from(command.limits.len()).is_ok();
        if !fits {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self {
            report_to,
            session: command.session,
            cgroup: command.cgroup.as_ref().map(|group| c_string(group.join("cgroup.procs").as_os_str())).transpose()?,
            oom_score_adj: command.oom_score_adj.map(|adjustment| adjustment.to_string().into_bytes()),
            cpu_mask: command.cpus.as_ref().map(kernel_mask),
            limits: command.limits.clone(),
            nice: command.nice,
            directory: c_string(command.directory.as_os_str())?,
            keep: command.keep.clone(),
        })
    }

    pub(super) fn run(&self) -> io::Result<()> {
        let outcome = self.steps();
        let (step, index) = outcome.map_or_else(|(step, index, _)| (step, index), |()| (EXEC, 0));
        write(&self.report_to, &[step, index])?;
        outcome.map_err(|(_, _, errno)| errno.into())
    }

    fn steps(&self) -> Result<(), Failure> {
        reset_signals();
        umask(Mode::S_IWGRP | Mode::S_IWOTH);
        if self.session == Session::New {
            setsid().map_err(|e| (SESSION, 0, e))?;
        }
        // First of what is shared with others: memory is charged to the group from here on.
        if let Some(processes) = &self.cgroup {
            write_file(processes, b"0").map_err(|e| (CGROUP, 0, e))?;
        }
        if let Some(adjustment) = &self.oom_score_adj {
            write_file(c"/proc/self/oom_score_adj", adjustment).map_err(|e| (OOM_SCORE, 0, e))?;
        }
        if let Some(mask) = &self.cpu_mask {
            set_affinity(mask).map_err(|e| (AFFINITY, 0, e))?;
        }
        for ((resource, limit), index) in self.limits.iter().zip(0_u8..) {
            setrlimit(*resource, limit.soft, limit.hard).map_err(|e| (LIMIT, index, e))?;
        }
        if let Some(nice) = self.nice {
            rustix::process::setpriority_process(None, nice).map_err(|e| (NICE, 0, Errno::from_raw(e.raw_os_error())))?;
        }
        chdir(self.directory.as_c_str()).map_err(|e| (DIRECTORY, 0, e))?;
        // First all others, in case something handed us a descriptor without FD_CLOEXEC.
        close_others_on_exec();
        for fd in &self.keep {
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty())).map_err(|e| (KEEP, 0, e))?;
        }
        Ok(())
    }
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
}

/// Gives the set as the kernel's bit mask, as long as its highest CPU needs: `cpu_set_t` ends at 1024 CPUs.
pub(in crate::sys) fn kernel_mask(cpus: &CpuSet) -> Vec<libc::c_ulong> {
    let mut mask = Vec::new();
    for cpu in cpus.iter() {
        let (word, bit) = (cpu / libc::c_ulong::BITS, cpu % libc::c_ulong::BITS);
        let word = word as usize;
        if mask.len() <= word {
            mask.resize(word + 1, 0);
        }
        if let Some(word) = mask.get_mut(word) {
            *word |= 1 << bit;
        }
    }
    mask
}

/// A program expects signals as a login gives them: none ignored, none blocked. An ignored one survives exec.
fn reset_signals() {
    for signal in 1..=LAST_SIGNAL {
        // SAFETY: SIG_DFL is no function, so there is nothing that could be called wrongly. KILL, STOP and the library's own
        // signals are refused, which is as it should be.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // Cannot fail: the set and the operation are valid.
    let _unfailing = SigSet::empty().thread_set_mask();
}

fn write_file(path: &CStr, text: &[u8]) -> Result<(), Errno> {
    let file = nix::fcntl::open(path, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    write(&file, text)?;
    Ok(())
}

fn set_affinity(mask: &[libc::c_ulong]) -> Result<(), Errno> {
    // SAFETY: the kernel reads exactly the bytes of the slice, which lives through the call.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(mask), mask.as_ptr().cast()) };
    Errno::result(result).map(drop)
}

fn close_others_on_exec() {
    // SAFETY: only flags of descriptors of this process, which is about to execute a program, are changed. The call is made by
    // number because older C libraries have no function for it; kernels before 5.11 refuse it, and we go on: our own
    // descriptors all have the flag already.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}
