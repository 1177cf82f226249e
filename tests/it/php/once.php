<?php
// Writes down that the request ran: one line for each run of each POST, so that a request that ran twice shows.
function ran(string $id): void
{
    if ($_SERVER['REQUEST_METHOD'] === 'POST') {
        file_put_contents($_SERVER['COUNT_FILE'], $id . "\n", FILE_APPEND | LOCK_EX);
    }
}
