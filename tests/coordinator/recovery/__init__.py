"""What a restored coordinator asks its nodes."""
