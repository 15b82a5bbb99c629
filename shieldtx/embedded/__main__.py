"""The former command of `shieldtx dev`, which it names."""

import sys

if __name__ == "__main__":
    sys.exit("error: this command is `shieldtx dev DATABASE... --env-file servers.env` now")
