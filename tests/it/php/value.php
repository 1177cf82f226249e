<?php
// The release is a link that a deployment swaps.
require $_SERVER['RELEASE'] . '/version.php';
echo ini_get('user_agent'), ' ', RELEASE_VERSION, ' ', getmypid(), "\n";
