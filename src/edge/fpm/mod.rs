//! php-fpm on this host: build, pool files, configuration tests, fingerprints.
