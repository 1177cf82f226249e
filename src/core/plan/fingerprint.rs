//! What of a shard's plan a running master cannot change.

use std::fmt::Write as _;

use crate::model::plan::{Placement, ShardPlan};

/// Gives a text that differs when, and only when, a master made from `shard` has to be replaced: numbers of workers,
/// endpoints, how they change hands, who may connect, queue lengths, aliases. The shard's name is not part of it, nor are its CPUs: a running master
/// is moved.
pub fn placement_fingerprint_text(shard: &ShardPlan) -> String {
    let mut text = String::new();
    line(&mut text, format_args!("process.max {:?}", shard.process_max));
    for Placement { pool, workers, listener } in &shard.placements {
        line(&mut text, format_args!("pool {:?}", pool.as_str()));
        let spare = (workers.start_servers, workers.min_spare_servers, workers.max_spare_servers);
        line(&mut text, format_args!("workers {} {spare:?}", workers.max_children));
        let (endpoint, alias) = (listener.endpoint.to_string(), &listener.alias);
        line(&mut text, format_args!("listen {endpoint:?} {:?} {alias:?} {}", listener.handover, listener.backlog_connections));
        let access = &listener.access;
        let acl = (&access.acl_uids, &access.acl_gids);
        line(&mut text, format_args!("access {:?} {:?} {:o} {acl:?}", access.uid, access.gid, access.mode));
    }
    text
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _written = text.write_fmt(arguments);
    text.push('\n');
}
