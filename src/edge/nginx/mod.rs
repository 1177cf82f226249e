//! NGINX on this host: its configuration, the include as a transaction, verified reloads.
//!
//! [`probe`] looks: the binary, its configuration, the running master. [`apply_include`] makes the include hold a text, tested,
//! reloaded and verified, or puts back what was there. [`wait_old_workers`] tells when nothing uses the former configuration any
//! more. NGINX that is absent, stopped or broken is a value here and never an error: PHP runs without it.
//!
//! It decides nothing about upstreams (`text::nginx` writes them) and keeps no state. The caller makes one call at a time.
//!
//! Sources: nginx `nginx.c` (dump, test), `ngx_process_cycle.c` (reload); checked with 1.22.1.

mod apply;
mod command;
mod file;
mod processes;
mod reload;
mod state;
mod workers;

pub use apply::{Applied, IncludeOutcome, KeptName, NotReloaded, Wanted, apply_include};
pub use file::FileError;
pub use file::{Standing, standing};
pub use processes::Process;
pub use reload::{RELOAD_TIME, wait_old_workers};
pub use state::{NginxState, Running, page_bytes, probe};
