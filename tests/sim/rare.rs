//! Situations that are hard to come by: a simulation that never meets them proves nothing about them.

/// One such situation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rare {
    /// The serving master died while its successor was on its way.
    DeathDuringHandover,
    /// A successor failed and the old master served on.
    FailedHandover,
    /// Workers of a dead master were let go after a successor served.
    OrphansReleased,
    /// The budget of failed starts was spent.
    Halted,
    /// The last configuration that served was launched.
    LastGood,
    /// A launch was answered after it had been given up.
    LateLaunch,
    /// The end of a group was reported before the death of its master.
    GoneBeforeDeath,
    /// A start that was under way was let finish, then rolled.
    RolledLate,
    /// A turn ended while only something outside held an old generation.
    TurnPastDetained,
    /// A turn ended though its old generation had not fallen quiet in time.
    TurnPastPatience,
    /// The ladder came to SIGKILL.
    Killed,
    /// A master served long enough for its failures to be forgotten, and then died.
    StableDeath,
    /// A job was refused because another was under way.
    Busy,
    /// A job failed and NGINX was brought up to date all the same.
    NginxAfterFailure,
    /// The supervisor stopped while a shard handed over.
    StopDuringHandover,
    /// A shard that had left for good came back.
    CameBack,
    /// The supervisor stopped in the middle of a job.
    StopDuringJob,
    /// Several shards were handed over together.
    CameTogether,
    /// A new master was called off because another that was to come in with it failed.
    CalledOff,
    /// A serving master died while its successor waited for others.
    DeathWhileGathered,
    /// A rescue master was started.
    Rescue,
    /// A rescue master was still there when the shard served again.
    RescueOutlasted,
    /// The sockets of a halted shard were closed.
    Closed,
}

/// All of them.
pub(crate) const ALL: [Rare; 23] = [
    Rare::DeathDuringHandover,
    Rare::FailedHandover,
    Rare::OrphansReleased,
    Rare::Halted,
    Rare::LastGood,
    Rare::LateLaunch,
    Rare::GoneBeforeDeath,
    Rare::RolledLate,
    Rare::TurnPastDetained,
    Rare::TurnPastPatience,
    Rare::Killed,
    Rare::StableDeath,
    Rare::Busy,
    Rare::NginxAfterFailure,
    Rare::StopDuringHandover,
    Rare::CameBack,
    Rare::StopDuringJob,
    Rare::CameTogether,
    Rare::CalledOff,
    Rare::DeathWhileGathered,
    Rare::Rescue,
    Rare::RescueOutlasted,
    Rare::Closed,
];
