"""What runs compiled programs. It never imports the compiler, so a finished artifact loads light."""
