"""What people see and type on a terminal."""
