<?php
// Names the shard, its master and the CPU this request ran on.
$stat = fn (string $pid): array => explode(' ', preg_replace('/^.*\) /', '', file_get_contents("/proc/$pid/stat")));
$worker = getmypid();
$fields = $stat((string) $worker);
[$master, $cpu] = [$fields[1], $fields[36]];
preg_match('/Cpus_allowed_list:\s*(\S+)/', file_get_contents('/proc/self/status'), $allowed);
$title = @file_get_contents("/proc/$master/cmdline") ?: '';
preg_match('{/m/([^/]+)\.(\d+)\.(\d+)/}', $title, $shard);
$name = $shard ? "$shard[1]/$shard[2] (generation $shard[3])" : 'unknown';
header('Content-Type: text/plain');
echo "polyfpm demo\n";
echo "shard:  $name\n";
echo "master: $master\n";
echo "worker: $worker\n";
echo "cpu:    $cpu, pinned to $allowed[1]\n";
