//! The facts about php-fpm that polyfpm rests on, each shown against the php-fpm named by `PHP_FPM`.
//!
//! The numbers are those of `docs/php-fpm.md`. A new PHP version that breaks one fails a test here, and not a customer.

mod handover;
mod life;
mod sockets;
mod status;

use std::time::Duration;

/// 5 s: php-fpm leaves within milliseconds when nothing is under way.
const SOON: Duration = Duration::from_secs(5);
