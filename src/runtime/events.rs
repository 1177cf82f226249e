//! What the loop hears from its tasks.

use crate::core::health::Sample;
use crate::edge::control::replies::ReplySink;
use crate::model::ids::MasterId;
use crate::sys::children::Exit;

use super::draft::DraftResult;
use super::nginx::NginxReport;

/// One thing that happened outside the loop. Each carries whose it is, so that stale ones are recognised.
#[derive(Debug)]
pub(super) enum Event {
    /// A master process ended.
    Exited {
        /// Which one.
        master: MasterId,
        /// How.
        exit: Exit,
    },
    /// No process of a master's group is left.
    GroupGone {
        /// Which one.
        master: MasterId,
    },
    /// A master told that it is ready.
    Ready {
        /// Which one.
        master: MasterId,
    },
    /// A master sent a heartbeat (P30).
    Heartbeat {
        /// Which one.
        master: MasterId,
        /// The text after `STATUS=`.
        text: String,
    },
    /// A master was verified and warmed up, or not.
    Proven {
        /// Which one.
        master: MasterId,
        /// Why not; else the installation as it is now, where that was asked.
        result: Result<Option<Box<crate::edge::fpm::Installation>>, String>,
    },
    /// A look at a serving shard has ended.
    Sampled {
        /// Which master was looked at.
        master: MasterId,
        /// What was seen.
        sample: Box<Sample>,
    },
    /// Settings, pool files and NGINX were read again.
    Drafted(Box<DraftResult>),
    /// The same, only to be told what would come of it.
    Previewed(Box<(DraftResult, ReplySink)>),
    /// The NGINX step has ended.
    Nginx(Box<NginxReport>),
    /// The NGINX workers from before a reload are gone.
    NginxSettled {
        /// Which reload, counted from 1.
        reload: u64,
    },
    /// How long connections of each pool's clients may be used again, as NGINX's configuration says now.
    Kept {
        /// The job for which NGINX was asked.
        job: u64,
        /// The answer.
        waits: std::collections::BTreeMap<crate::model::ids::PoolName, std::time::Duration>,
    },
    /// A php-fpm that is to be taken over was looked for.
    Found(Box<Result<super::takeover::Foreign, super::takeover::FindError>>),
    /// A step of a hand-back has ended; it may have started the php-fpm that goes on.
    Handed(Result<Option<super::handback::Started>, String>),
    /// A step of a take-over has ended.
    Passed(Result<(), String>),
    /// A binary that is to take over was examined.
    Examined(Box<Result<super::successor::Fit, super::successor::Unfit>>),
    /// Files that are watched have changed.
    Changed(Vec<std::path::PathBuf>),
}
