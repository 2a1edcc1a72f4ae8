"""The file for `spark-submit`; it takes the arguments of `rocketshim spark`.

::

    spark-submit --py-files rocketshim-0.1.0-py3-none-any.whl submit.py failures --lake s3a://lake/shim
"""

import sys

from rocketshim_spark.cli import main

if __name__ == "__main__":
    sys.exit(main())
