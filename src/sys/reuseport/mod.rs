//! Reuseport groups and the program that steers them.
//!
//! Owns our picture of the kernel's array of one group (P27, P29): which socket has which index, and the program that
//! sends each new connection to one of them by the CPU it arrives on. A socket that nothing points at gets no connection:
//! so a new master starts and warms up unseen, and an old one runs dry.
//!
//! # The kernel's array
//!
//! listen(2) appends a socket. One that leaves is replaced by the last one, so one other index changes. It leaves when the
//! last descriptor anywhere is closed (S7: a worker that is still dying holds one), or at once by shutdown(2). Members are
//! therefore always shut down, never just closed, and the moment is ours.
//!
//! # The order of leaving, so that nothing is lost
//!
//! 1. [`ReuseportGroup::point`] at others. From then on no new connection comes; one whose handshake was under way still may.
//! 2. Wait until its queue (`sock_diag::tcp_queue`) is 0 and stays 0, and no accepted connection of its generation is left.
//! 3. SIGQUIT its master. Workers still in a request keep their connections: these are sockets of their own.
//! 4. [`ReuseportGroup::retire`]. This refuses while something points at it or its queue is not empty.
//!
//! Between the removal and the next program the last member has a new index. So if the last one is pointed at, all its
//! CPUs are first pointed at another target, whose index does not change. Where there is no other target but there are
//! members that must not get connections, the removal is put off until the next `point` or `retire`: a dry socket that
//! nothing points at does no harm.
//!
//! Source: Linux `net/core/sock_reuseport.c`, `reuseport_add_sock`, `reuseport_detach_sock`; checked with 6.18 by the tests.
#![expect(unsafe_code, reason = "SO_ATTACH_REUSEPORT_CBPF: neither nix nor rustix offers the option")]

mod program;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use super::listener::{Joining, Listener, Place};
use super::sock_diag::tcp_queue;
use program::{Instruction, steer};

/// Says why a group was not changed.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    /// Nobody of that name is in the group, or it is retired.
    #[error("{key} is no member of the reuseport group")]
    NoMember {
        /// The name.
        key: String,
    },
    /// The name is taken.
    #[error("{key} is in the reuseport group already")]
    Twice {
        /// The name.
        key: String,
    },
    /// The listener is not a TCP socket.
    #[error("{name} cannot be in a reuseport group")]
    NotTcp {
        /// The listener's name.
        name: String,
    },
    /// Connections still go to the member.
    #[error("connections are still steered to {key}")]
    Pointed {
        /// The name.
        key: String,
    },
    /// Connections still wait for the member.
    #[error("{waiting} connections still wait for {key}")]
    Waiting {
        /// The name.
        key: String,
        /// How many.
        waiting: u32,
    },
    /// The table of CPUs is too fragmented for one program.
    #[error("the table of {cpus} CPUs is too long for a steering program")]
    TooLong {
        /// How many CPUs.
        cpus: usize,
    },
    /// The kernel refused.
    #[error("{step}")]
    Step {
        /// The step.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// What happens to connections that still wait for a member that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// The member stays while there are any.
    Keep,
    /// They are reset: nobody will serve them.
    Reset,
}

/// What became of a member that was to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retired {
    /// It is out of the kernel's array.
    Gone,
    /// It stays in the array, dry and unseen, until taking it out moves nobody.
    Later,
}

#[derive(Debug)]
struct Member<K> {
    key: K,
    socket: Arc<OwnedFd>,
    retired: bool,
}

/// Which member new connections go to.
#[derive(Debug, Clone)]
struct Pointing<K> {
    table: BTreeMap<u32, K>,
    defaults: Vec<K>,
}

/// The listeners on one TCP address, in the kernel's order.
#[derive(Debug)]
pub struct ReuseportGroup<K> {
    members: Vec<Member<K>>,
    pointing: Option<Pointing<K>>,
}

impl<K> Default for ReuseportGroup<K> {
    fn default() -> Self {
        Self { members: Vec::new(), pointing: None }
    }
}

impl<K: Clone + Eq + Debug> ReuseportGroup<K> {
    /// Gives a group without members.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives a group that an earlier supervisor made, from its members in the order of [`members`](Self::members), as
    /// remembered. One that left while that was being written down is recognised. Nobody but the last can be retired before
    /// the next [`point`](Self::point), as it is not known who is pointed at.
    pub fn restore(members: impl IntoIterator<Item = (K, Arc<OwnedFd>)>) -> Self {
        let mut members: Vec<_> = members.into_iter().map(|(key, socket)| Member { key, socket, retired: false }).collect();
        while let Some(gone) = members.iter().position(|member| tcp_queue(&member.socket).is_err()) {
            members.swap_remove(gone);
        }
        Self { members, pointing: None }
    }

    /// Tells how the next listener is to be bound.
    pub fn joining(&self) -> Joining {
        if self.members.is_empty() { Joining::First } else { Joining::Further }
    }

    /// Gives the members in the kernel's order; those that are still to leave are among them.
    pub fn members(&self) -> impl Iterator<Item = &K> {
        self.members.iter().map(|member| &member.key)
    }

    /// Tells whether new connections may go to a member.
    pub fn is_pointed_at(&self, key: &K) -> bool {
        self.pointing.as_ref().is_some_and(|pointing| points_at(pointing, key))
    }

    /// Enters a listener right after it was bound, before another one is. The first one gets all connections, a later one
    /// none until pointed at.
    ///
    /// # Errors
    /// When it is no TCP listener, the name is taken, or the kernel refuses the program.
    pub fn join(&mut self, key: K, listener: &Listener) -> Result<(), SteerError> {
        if !matches!(listener.place, Place::Tcp { .. }) {
            return Err(SteerError::NotTcp { name: listener.bound.clone() });
        }
        if self.members.iter().any(|member| member.key == key) {
            return Err(SteerError::Twice { key: format!("{key:?}") });
        }
        self.members.push(Member { key: key.clone(), socket: Arc::clone(&listener.fd), retired: false });
        if self.members.len() == 1 {
            let pointing = Pointing { table: BTreeMap::new(), defaults: vec![key] };
            self.attach(&pointing)?;
            self.pointing = Some(pointing);
        }
        Ok(())
    }

    /// Sends new connections that arrive on a CPU of `table` to its member, each other one to any of `defaults` at random.
    ///
    /// # Errors
    /// When a name is no member's, there is no default, the table is too long, or the kernel refuses; then all stays as it was.
    pub fn point(&mut self, table: &BTreeMap<u32, K>, defaults: &[K]) -> Result<(), SteerError> {
        let pointing = Pointing { table: table.clone(), defaults: defaults.to_vec() };
        self.attach(&pointing)?;
        self.pointing = Some(pointing);
        self.settle()
    }

    /// Takes a member out that nothing points at. Its socket is shut down, whoever else still holds it. The last member of
    /// all goes without further conditions but its queue.
    ///
    /// # Errors
    /// When there is no such member, connections are steered to it or wait for it, or the kernel refuses.
    pub fn retire(&mut self, key: &K, waiting: Waiting) -> Result<Retired, SteerError> {
        let last_of_all = self.members.iter().all(|member| member.retired || member.key == *key);
        // Not known: it may be.
        let pointed = self.pointing.as_ref().is_none_or(|pointing| points_at(pointing, key));
        let name = || format!("{key:?}");
        let member = self.members.iter_mut().find(|member| member.key == *key && !member.retired);
        let member = member.ok_or_else(|| SteerError::NoMember { key: name() })?;
        if pointed && !last_of_all {
            return Err(SteerError::Pointed { key: name() });
        }
        let queue = tcp_queue(&member.socket).map_or(0, |queue| queue.now);
        if waiting == Waiting::Keep && queue > 0 {
            return Err(SteerError::Waiting { key: name(), waiting: queue });
        }
        member.retired = true;
        if last_of_all {
            self.pointing = None;
        }
        self.settle()?;
        let stays = self.members.iter().any(|member| member.key == *key);
        Ok(if stays { Retired::Later } else { Retired::Gone })
    }

    /// Takes out all retired members that can go now.
    fn settle(&mut self) -> Result<(), SteerError> {
        while let Some((at, detour)) = self.removable() {
            if let Some(detour) = &detour {
                self.attach(detour)?;
            }
            self.remove(at)?;
            if let Some(pointing) = self.pointing.clone() {
                self.attach(&pointing)?;
            }
        }
        Ok(())
    }

    /// Finds a retired member whose removal misleads no connection, and what to point at meanwhile.
    fn removable(&self) -> Option<(usize, Option<Pointing<K>>)> {
        // The last first: nobody moves into its place.
        let mut retired = (0..self.members.len()).rev().filter(|at| self.members.get(*at).is_some_and(|member| member.retired));
        retired.find_map(|at| self.detour(at).map(|detour| (at, detour)))
    }

    /// Tells what to point at while the member at `at` leaves: `Some(None)` means as now, `None` that it must stay.
    fn detour(&self, at: usize) -> Option<Option<Pointing<K>>> {
        let (Some(pointing), Some(last)) = (&self.pointing, self.members.last()) else { return Some(None) };
        if at + 1 == self.members.len() || !points_at(pointing, &last.key) {
            return Some(None);
        }
        // The last one moves. Its connections go to another target meanwhile.
        let others = pointing.table.values().chain(&pointing.defaults);
        if let Some(other) = others.into_iter().find(|key| **key != last.key) {
            let replaced = |key: &K| if *key == last.key { other.clone() } else { key.clone() };
            let table = pointing.table.iter().map(|(cpu, key)| (*cpu, replaced(key))).collect();
            return Some(Some(Pointing { table, defaults: pointing.defaults.iter().map(replaced).collect() }));
        }
        // An index beyond the array makes the kernel choose any member: right if only the one target is left.
        (self.members.len() == 2).then_some(None)
    }

    fn remove(&mut self, at: usize) -> Result<(), SteerError> {
        let Some(member) = self.members.get(at) else { return Ok(()) };
        let shut = rustix::net::shutdown(&member.socket, rustix::net::Shutdown::Both);
        // Not connected: it listens no more, so it has left the array already.
        if let Err(error) = shut
            && error != rustix::io::Errno::NOTCONN
        {
            return Err(SteerError::Step { step: "shut a listener down", source: error.into() });
        }
        self.members.swap_remove(at);
        Ok(())
    }

    fn attach(&self, pointing: &Pointing<K>) -> Result<(), SteerError> {
        let table = pointing.table.iter().map(|(cpu, key)| Ok((*cpu, self.index(key)?))).collect::<Result<_, SteerError>>()?;
        let too_long = || SteerError::TooLong { cpus: pointing.table.len() };
        let defaults = pointing.defaults.iter().map(|key| self.index(key)).collect::<Result<Vec<_>, _>>()?;
        let program = steer(&table, &defaults).ok_or_else(too_long)?;
        let Some(member) = self.members.first() else { return Ok(()) };
        attach_program(&member.socket, &program).map_err(|source| SteerError::Step { step: "attach a steering program", source })
    }

    fn index(&self, key: &K) -> Result<u32, SteerError> {
        let at = self.members.iter().position(|member| member.key == *key && !member.retired);
        at.and_then(|at| u32::try_from(at).ok()).ok_or_else(|| SteerError::NoMember { key: format!("{key:?}") })
    }
}

fn points_at<K: Eq>(pointing: &Pointing<K>, key: &K) -> bool {
    pointing.defaults.contains(key) || pointing.table.values().any(|target| target == key)
}

/// The kernel's `struct sock_fprog`.
#[repr(C)]
struct Program {
    length: u16,
    instructions: *const Instruction,
}

/// Any member will do: the program belongs to the group. It replaces the one before without a gap.
fn attach_program(socket: &OwnedFd, instructions: &[Instruction]) -> io::Result<()> {
    let length = u16::try_from(instructions.len()).map_err(io::Error::other)?;
    let program = Program { length, instructions: instructions.as_ptr() };
    let size = libc::socklen_t::try_from(size_of::<Program>()).map_err(io::Error::other)?;
    // SAFETY: `program` has the layout of struct sock_fprog and points at `length` instructions with the layout of struct
    // sock_filter; both outlive the call, in which the kernel copies them.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast::<libc::c_void>(),
            size,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
