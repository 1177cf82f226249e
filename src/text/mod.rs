//! Floor 1: codecs, pure. Bytes in, values out, and back.

pub mod fastcgi;
pub mod fpm;
pub mod heartbeat;
pub mod nginx;
pub mod quantity;
pub mod status;
