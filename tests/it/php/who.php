<?php
// Field 39 of the stat file is the CPU; the name in field 2 may hold blanks, so counting begins after it.
$stat = file_get_contents('/proc/self/stat');
$fields = explode(' ', substr($stat, strrpos($stat, ')') + 2));
header('Content-Type: application/json');
echo json_encode([
    'pool' => $_SERVER['POOL'] ?? '',
    'pid' => getmypid(),
    'master' => (int) $fields[1],
    'cpu' => (int) $fields[36],
    'user' => posix_geteuid(),
    'fpm_sockets' => getenv('FPM_SOCKETS'),
    'notify_socket' => getenv('NOTIFY_SOCKET'),
]), "\n";
