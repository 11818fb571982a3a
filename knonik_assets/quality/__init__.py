"""Judging episodes and packed datasets: tables, expectations, pictures."""
