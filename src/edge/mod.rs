//! Floor 2: one adapter per outside thing.

pub mod control;
pub mod fastcgi;
pub mod fpm;
pub mod log;
pub mod nginx;
pub mod service;
pub mod settings;
pub mod units;
