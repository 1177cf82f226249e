//! NGINX's configuration: reading a dump, rendering the include.
