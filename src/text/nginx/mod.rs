//! NGINX's configuration: reading a dump, rendering the include.
//!
//! [`Config`] is what `nginx -T` printed, as files of directives; [`Config::reading`] gives the clients of php-fpm in it, and
//! [`Config::references`] tells where a name is still used (S11). [`render_include`] writes the generated include, and
//! [`Build`] says what an NGINX binary can do. Nothing here reads a file or runs a program: `edge::nginx` does.
//!
//! Sources: nginx `ngx_conf_file.c` (grammar, dump), `ngx_inet.c` (addresses), `ngx_parse.c` (times); checked with 1.22.1.

mod address;
mod build;
mod dump;
mod failure;
mod glob;
mod include;
mod keepalive;
mod read;
mod references;
mod syntax;
mod workers;

pub use build::Build;
pub use dump::{Config, ConfigFile};
pub use failure::TestFailure;
pub use include::{
    IncludeInput, IncludeUpstream, KeptUpstream, RefusedUpstream, Rendered, UnwritableError, generated_for, kept_upstream, render_include,
    upstreams_of, with_kept,
};
pub use keepalive::keepalive_for;
pub use read::{Layout, Reading};
pub use syntax::{Directive, SyntaxError, Word, parse};
