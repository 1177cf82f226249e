<?php
require __DIR__ . '/once.php';
$id = $_GET['id'];
$body = file_get_contents('php://input');
ran($id);
echo $id, ' ', hash('sha256', $body), "\n";
