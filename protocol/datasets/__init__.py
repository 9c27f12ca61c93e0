"""What a dataset's file is: its packing, encoding, format, fields and quotes. Free of torch, and of files."""
