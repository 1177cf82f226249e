<?php
echo 'hello ', $_GET['id'] ?? '', "\n";
