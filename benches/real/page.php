<?php
header("Content-Type: text/plain");
echo str_repeat("x", 1000);
