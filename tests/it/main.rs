//! Tests.

mod nginx_include;
