"""Jobs from document to quote to funding, and their history."""
