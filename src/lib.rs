//! polyfpm runs one PHP installation as several pinned php-fpm masters and restarts them without losing a request.
//!
//! Read [`model`] for the words, `core` for the decisions, `runtime` for the one loop in which decisions meet effects.
//! The floors and what each may use are described in `docs/design.md` and enforced by `tests/floors`.

pub mod cli;
pub mod core;
pub mod edge;
pub mod model;
pub mod runtime;
pub mod sys;
pub mod text;
