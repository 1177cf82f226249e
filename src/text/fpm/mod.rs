//! php-fpm's configuration language: reading pool files, rendering shard configurations.
