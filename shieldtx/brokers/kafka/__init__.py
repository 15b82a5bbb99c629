"""Apache Kafka as a broker: the only place with a Kafka client."""

import warnings
from contextlib import suppress

# kafka-python loads its schemas by functions that Python 3.11 deprecated and 3.13 undeprecated: an
# application's tests may treat warnings as errors. Without kafka-python, the modules here raise.
with warnings.catch_warnings(), suppress(ImportError):
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401  loaded now, while its warnings are ignored
