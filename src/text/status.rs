//! php-fpm's status page in JSON.
