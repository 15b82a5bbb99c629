"""The comparison of the rows of two sides: DataFrame in, DataFrame out."""
