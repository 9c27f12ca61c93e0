"""Programs as their users have them: size, starts, pages, streams, games, and kills."""
