"""What people see: messages, tables, and data on stdout."""
