"""Great Expectations over a data frame, in a context that nothing is left of."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["gx_expectations", "gx_validate"]


def gx_expectations() -> Any:  # noqa: ANN401 - a module
    """Great Expectations' module of expectations; importing it takes seconds."""
    # must be set before the import: Great Expectations otherwise reports its use to its makers
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    from great_expectations import expectations

    return expectations


def gx_validate(name: str, table: pd.DataFrame, expectations: Sequence[Any], index: list[str]) -> Any:  # noqa: ANN401 - GX's result object
    """Hold a table against a suite.

    Args:
        name: of suite and table.
        table: the data.
        expectations: Great Expectations' own.
        index: columns that name an offending row.

    Returns:
        Great Expectations' result, every offending row in it.

    Raises:
        RuntimeError: Great Expectations itself failed.
    """
    import great_expectations as gx

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    source = context.data_sources.add_pandas(name).add_dataframe_asset("table")
    batch = source.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": table})
    result = batch.validate(
        gx.ExpectationSuite(name, expectations=list(expectations)),
        result_format={"result_format": "COMPLETE", "unexpected_index_column_names": index},
    )
    for each in result.results:
        if "element_count" not in each.result:
            column = each.expectation_config.kwargs["column"]
            raise RuntimeError(f"Great Expectations failed on {column}: {each.exception_info}")
    return result
