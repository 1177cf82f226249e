//! On which shards of its group each pool lives.
//!
//! Pools stay where the previous plan has them, because a move restarts two shards. What is left is dealt out by weight,
//! heaviest first, each to the shard with the fewest workers. Only when the group has got more shards do whole pools move,
//! and no more of them than fill the new shards.

use std::cmp::Reverse;

use crate::model::ids::PoolName;

use super::division::share;

/// A pool to be placed.
pub(super) struct Item<'a> {
    pub(super) name: &'a PoolName,
    pub(super) workers: u32,
    /// On how many shards; 1 for a whole pool.
    pub(super) parts: u16,
    /// Where it was, if it was in this group.
    pub(super) before: Option<&'a Seat>,
}

/// Where a pool lives: numbers of shards, from 1, ascending.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Seat {
    pub(super) shards: Vec<u16>,
    /// The shard that holds the pool's own path.
    pub(super) first: u16,
}

/// Places `items` on `count` shards; `before` is how many the group had, 0 when it is new.
pub(super) fn seat(items: &[Item<'_>], count: u16, before: u16) -> Vec<Seat> {
    let mut loads = Loads(vec![0; usize::from(count)]);
    let mut seats = vec![Seat::default(); items.len()];
    let mut order: Vec<(usize, &Item<'_>)> = items.iter().enumerate().collect();
    order.sort_by_key(|(_, item)| (Reverse(item.workers), item.name));
    let (spread, whole): (Vec<_>, Vec<_>) = order.into_iter().partition(|(_, item)| item.parts > 1);
    for (at, item) in spread {
        let shards = loads.choose(item, count);
        let first = item.before.map(|seat| seat.first).filter(|first| shards.contains(first)).or(shards.first().copied()).unwrap_or(1);
        for (part, shard) in (0..).zip(&shards) {
            loads.add(*shard, share(item.workers, (part, u32::from(item.parts))));
        }
        put(&mut seats, at, Seat { shards, first });
    }
    let mut open = Vec::new();
    let mut kept = Vec::new();
    for (at, item) in whole {
        match item.before.map(|seat| seat.first).filter(|first| (1..=count).contains(first)) {
            Some(shard) => {
                loads.add(shard, item.workers);
                kept.push((at, item, shard));
            }
            None => open.push((at, item)),
        }
    }
    let total = open.iter().fold(loads.total(), |sum, (_, item)| sum + u64::from(item.workers));
    let target = if (1..count).contains(&before) { total / u64::from(count.max(1)) } else { u64::MAX };
    for (at, item, shard) in kept {
        if loads.of(shard).saturating_sub(u64::from(item.workers)) >= target {
            loads.remove(shard, item.workers);
            open.push((at, item));
        } else {
            put(&mut seats, at, Seat { shards: vec![shard], first: shard });
        }
    }
    open.sort_by_key(|(_, item)| (Reverse(item.workers), item.name));
    for (at, item) in open {
        let shard = loads.least(&[]).unwrap_or(1);
        loads.add(shard, item.workers);
        put(&mut seats, at, Seat { shards: vec![shard], first: shard });
    }
    seats
}

fn put(seats: &mut [Seat], at: usize, seat: Seat) {
    if let Some(place) = seats.get_mut(at) {
        *place = seat;
    }
}

/// The workers on each shard.
struct Loads(Vec<u64>);

impl Loads {
    /// Chooses the shards of a spread pool: those it has, then the emptiest.
    fn choose(&self, item: &Item<'_>, count: u16) -> Vec<u16> {
        let parts = usize::from(item.parts.min(count));
        if item.parts >= count {
            return (1..=count).collect();
        }
        let mut shards: Vec<u16> = Vec::with_capacity(parts);
        if let Some(before) = item.before {
            let others = before.shards.iter().copied().filter(|shard| *shard != before.first);
            shards.extend(std::iter::once(before.first).chain(others).filter(|shard| (1..=count).contains(shard)).take(parts));
        }
        while shards.len() < parts {
            let Some(shard) = self.least(&shards) else { break };
            shards.push(shard);
        }
        shards.sort_unstable();
        shards
    }

    /// Gives the shard with the fewest workers that is not in `taken`, the first of equals.
    fn least(&self, taken: &[u16]) -> Option<u16> {
        (1..).zip(&self.0).filter(|(shard, _)| !taken.contains(shard)).min_by_key(|(_, load)| **load).map(|(shard, _)| shard)
    }

    fn of(&self, shard: u16) -> u64 {
        self.0.get(usize::from(shard.saturating_sub(1))).copied().unwrap_or(0)
    }

    fn add(&mut self, shard: u16, workers: u32) {
        if let Some(load) = self.0.get_mut(usize::from(shard.saturating_sub(1))) {
            *load += u64::from(workers);
        }
    }

    fn remove(&mut self, shard: u16, workers: u32) {
        if let Some(load) = self.0.get_mut(usize::from(shard.saturating_sub(1))) {
            *load = load.saturating_sub(u64::from(workers));
        }
    }

    fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
