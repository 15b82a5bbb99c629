"""How the rows of two sides are compared: DataFrame in, DataFrame out."""
