<?php
header('X-Accel-Buffering: no');
header('Content-Type: text/plain');
while (ob_get_level() > 0) {
    ob_end_flush();
}
for ($i = 0; $i < (int) $_GET['chunks']; $i++) {
    echo 'chunk ', $i, ' ', $_GET['id'], "\n";
    flush();
    usleep((int) $_GET['ms'] * 1000);
}
echo "end\n";
