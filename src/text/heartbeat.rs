//! The texts php-fpm sends to its notify socket.
