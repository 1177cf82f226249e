//! What a reload would do: everything is read as for a reload, compared with what runs, and left alone.

use std::collections::BTreeSet;

use super::apply::refusal;
use super::blueprint::Blueprint;
use super::calls::busy;
use super::draft::{self, Draft, DraftResult, ReadingInput};
use super::events::Event;
use super::supervisor::{Phase, Supervisor};
use crate::core::plan::{Make, pool_differences, shard_difference};
use crate::core::shard::Wanted;
use crate::edge::control::replies::ReplySink;
use crate::model::ids::{MasterId, PoolName, ShardId};
use crate::model::preview::{Preview, ShardChange, ShardFate};
use crate::model::wire::{ErrorCode, Reply};

impl Supervisor {
    /// Reads everything as a reload does, and tells what would come of it.
    pub(super) fn preview(&mut self, replies: ReplySink) {
        // What moves now cannot be compared with anything.
        if let Some(job) = self.job_view() {
            replies.finish(busy(&job));
            return;
        }
        let input = ReadingInput { barred: Vec::new(), ..self.reading_input() };
        let (children, events) = (self.children.clone(), self.events.clone());
        drop(tokio::task::spawn_local(async move {
            let result = draft::read(&children, &input).await;
            super::tell(&events, Event::Previewed(Box::new((result, replies)))).await;
        }));
    }

    /// Compares what was read with what runs.
    pub(super) fn previewed(&self, result: DraftResult, replies: ReplySink) {
        if self.phase == Phase::Stopping {
            replies.refuse(ErrorCode::Stopping, "the supervisor is stopping");
            return;
        }
        replies.finish(match (self.job_view(), result) {
            (Some(job), _) => busy(&job),
            (None, Ok(draft)) => Reply::Preview(Box::new(self.preview_of(&draft))),
            (None, Err(unread)) => refusal(&unread),
        });
    }

    fn preview_of(&self, draft: &Draft) -> Preview {
        let (changed, retire) = self.differing(draft);
        let mut rewritten = BTreeSet::new();
        let mut shards: Vec<ShardChange> = changed.into_iter().map(|id| self.change_of(id, draft, &mut rewritten)).collect();
        let gone = |shard| ShardChange { shard, change: ShardFate::Retire, reasons: vec!["no pool of the plan is on it".to_owned()] };
        shards.extend(retire.into_iter().map(gone));
        Preview { shards, pools: pool_differences(&self.draft.plan, &draft.plan, &rewritten) }
    }

    fn change_of(&self, id: ShardId, draft: &Draft, rewritten: &mut BTreeSet<PoolName>) -> ShardChange {
        let shard = self.fleet.shard(&id);
        let serving = shard.and_then(crate::core::shard::Shard::serving).and_then(|(generation, _)| {
            let master = self.masters.get(&MasterId::new(&id, generation))?;
            Some((&master.blueprint, draft.blueprints.get(&id)?))
        });
        if let Some((old, new)) = serving {
            let (reasons, lines) = shard_difference(make_of(old), make_of(new));
            rewritten.extend(lines);
            return ShardChange { shard: id, change: ShardFate::Handover, reasons };
        }
        let parked = shard.is_some_and(|shard| shard.wanted() == Wanted::Parked);
        let change = if parked { ShardFate::Parked } else { ShardFate::Start };
        ShardChange { shard: id, change, reasons: vec!["no master serves it".to_owned()] }
    }
}

fn make_of(blueprint: &Blueprint) -> Make<'_> {
    Make { plan: &blueprint.plan, config: &blueprint.config, parts: &blueprint.parts }
}
