<?php
// ?reset: empties the cache. Otherwise tells whether a script is in it, and a number that this master alone counts.
if (isset($_GET['reset'])) {
    opcache_reset();
}
header('Content-Type: application/json');
$status = opcache_get_status(true);
$scripts = array_map('basename', array_keys($status['scripts'] ?? []));
echo json_encode(['scripts' => $scripts, 'start' => $status['opcache_statistics']['start_time'] ?? 0]), "\n";
