<?php
require __DIR__ . '/once.php';
ran($_GET['id']);
$in = fopen('php://input', 'rb');
$hash = hash_init('sha256');
$length = hash_update_stream($hash, $in);
echo $_GET['id'], ' ', $length, ' ', hash_final($hash), "\n";
