<?php
// Writes down that the request ran: one line for each run of each POST, so that a request that ran twice shows.
function ran(string $id): void
{
    // Without a lock: SIGQUIT, by which a worker learns that it shall leave, would interrupt the wait for it and PHP gives up.
    // A short line in append mode is written in one piece.
    if ($_SERVER['REQUEST_METHOD'] === 'POST') {
        file_put_contents($_SERVER['COUNT_FILE'], $id . "\n", FILE_APPEND);
    }
}
