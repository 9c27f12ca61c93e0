"""What watches a coordinator: its metrics, and the rules, the dashboard, the page and the unit that are made for them."""
