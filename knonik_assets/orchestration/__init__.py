"""The Dagster side, and the only package that imports Dagster."""
