//! The way of answers from the loop to one client.
//!
//! The loop never waits for a client: progress that a slow client has not taken is left out, and the one final reply has a
//! place of its own, so that it always arrives. A client that is gone changes nothing for the loop.

use tokio::sync::{mpsc, oneshot};

use crate::model::wire::{ErrorCode, Progress, Reply, ShardRuns};

/// Steps that may wait for a slow client; a job over a few shards fits whole.
const PROGRESS_WAITING: usize = 64;

/// The loop's end: progress as often as wanted, then one final reply, which ends it.
#[derive(Debug)]
pub struct ReplySink {
    progress: mpsc::Sender<Progress>,
    last: oneshot::Sender<Reply>,
}

/// The client's end.
#[derive(Debug)]
pub struct Replies {
    progress: mpsc::Receiver<Progress>,
    last: Option<oneshot::Receiver<Reply>>,
}

impl ReplySink {
    /// Makes both ends.
    pub fn pair() -> (Self, Replies) {
        let (progress, progress_taken) = mpsc::channel(PROGRESS_WAITING);
        let (last, last_taken) = oneshot::channel();
        (Self { progress, last }, Replies { progress: progress_taken, last: Some(last_taken) })
    }

    /// Tells a step, if the client keeps up.
    pub fn progress(&self, step: Progress) {
        // Left out where the client is gone or slow: the next step and the final reply tell as much.
        self.progress.try_send(step).ok();
    }

    /// Tells whether the client has gone, so that nobody waits for the final reply.
    pub fn is_gone(&self) -> bool {
        self.last.is_closed()
    }

    /// Answers that it is done.
    pub fn done(self, message: impl Into<String>, shards: Vec<ShardRuns>) {
        self.finish(Reply::Done { message: message.into(), shards });
    }

    /// Answers that it is not done, with nothing but a code and a message.
    pub fn refuse(self, code: ErrorCode, message: impl Into<String>) {
        self.finish(error(code, message));
    }

    /// Answers.
    pub fn finish(self, reply: Reply) {
        // A client that is gone needs no answer.
        self.last.send(reply).ok();
    }
}

impl Replies {
    /// Gives the next reply: progress, then the final one, then nothing. A sink that was dropped without a final reply has
    /// lost its job, which the client must be told.
    ///
    /// # Cancel safety
    /// Safe: nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Reply> {
        // The sink is consumed by its final reply, so progress ends exactly when that is there.
        if let Some(step) = self.progress.recv().await {
            return Some(Reply::Progress(step));
        }
        let last = self.last.as_mut()?;
        let reply = last.await.unwrap_or_else(|_| error(ErrorCode::Failed, "the supervisor gave up the request without an answer"));
        self.last = None;
        Some(reply)
    }
}

/// Makes an error reply with nothing but a code and a message.
pub fn error(code: ErrorCode, message: impl Into<String>) -> Reply {
    Reply::Error { code, message: message.into(), causes: Vec::new(), hint: None, job: None, shards: Vec::new() }
}
