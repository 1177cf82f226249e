//! How much memory is there, and how much a process has for itself.

use nix::unistd::Pid;

use super::{Proc, ProcError, text, unknown};

/// Gives the unit of the kernel's counts.
fn page_bytes() -> u64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().and_then(|size| u64::try_from(size).ok()).unwrap_or(4096)
}

impl Proc {
    /// Gives the memory that new processes may still take without anything being swapped out, in bytes: the host's, or what is
    /// left below the limit of our control group or of one above it, where that is less.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn memory_available(&self) -> Result<u64, ProcError> {
        let host = self.meminfo("MemAvailable:")?;
        Ok(self.group_memory(u64::saturating_sub).map_or(host, |limited| limited.min(host)))
    }

    /// Gives the memory of the machine, or the limit of our control group or of one above it, where that is less; in bytes.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn memory_total(&self) -> Result<u64, ProcError> {
        let host = self.meminfo("MemTotal:")?;
        Ok(self.group_memory(|limit, _| limit).map_or(host, |limited| limited.min(host)))
    }

    fn meminfo(&self, key: &str) -> Result<u64, ProcError> {
        let path = self.root.join("meminfo");
        let told = text(&path)?;
        let kib = told.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        kib.and_then(|kib| kib.checked_mul(1024)).ok_or_else(|| unknown(path))
    }

    /// Gives what is least of the limits of the control groups (v2) around us and what is used of them. `None` where there is no limit.
    fn group_memory(&self, of: impl Fn(u64, u64) -> u64) -> Option<u64> {
        let told = text(&self.root.join("self/cgroup")).ok()?;
        let own = told.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let root = std::path::Path::new("/sys/fs/cgroup");
        let leaf = root.join(own);
        let number = |path: std::path::PathBuf| text(&path).ok()?.trim().parse::<u64>().ok();
        let left = |group: &std::path::Path| Some(of(number(group.join("memory.max"))?, number(group.join("memory.current"))?));
        leaf.ancestors().take_while(|group| group.starts_with(root)).filter_map(left).min()
    }

    /// Gives the memory a process has in RAM, in bytes: all of it, and the part that comes from files or is shared with others.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn memory_resident(&self, pid: Pid) -> Result<(u64, u64), ProcError> {
        let path = self.file(pid, "statm");
        let told = text(&path)?;
        let mut pages = told.split_ascii_whitespace().skip(1).map(|number| number.parse::<u64>().ok());
        let bytes = |pages: Option<Option<u64>>| pages.flatten().and_then(|pages| pages.checked_mul(page_bytes()));
        bytes(pages.next()).zip(bytes(pages.next())).ok_or_else(|| unknown(path))
    }
}
