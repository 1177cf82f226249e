//! What polyfpm promises and what it builds on, shown with real php-fpm and real NGINX.
//!
//! Run as root, best with `cargo nextest run`: a process for each test.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails where it cannot go on")]
#![expect(clippy::indexing_slicing, reason = "a mistake fails the test")]
#![expect(clippy::print_stderr, reason = "what a failing test knows")]
#![expect(clippy::format_push_string, reason = "reports of failures are not hot")]
#![expect(dead_code, reason = "the support serves tests that are on their way")]

mod bench;
mod check;
mod contract;
mod demo;
mod fake;
mod faults;
mod honesty;
mod life;
mod nginx_include;
mod poolfiles;
mod promise;
mod reload;
mod support;
mod topology;
