<?php
require __DIR__ . '/once.php';
$until = hrtime(true) + (int) $_GET['ms'] * 1000000;
// A signal cuts usleep() short; the promise is the time, not the call.
while (($left = $until - hrtime(true)) > 0) {
    usleep((int) ceil($left / 1000));
}
ran($_GET['id']);
echo 'slept ', $_GET['ms'], ' ', $_GET['id'], ' pid ', getmypid(), "\n";
