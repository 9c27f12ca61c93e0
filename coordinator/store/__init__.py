"""What is kept: records behind one small port, in memory (tests, simulation) or in SQL (SQLite; PostgreSQL by URL)."""
