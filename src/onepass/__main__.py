"""`python -m onepass`: the command `onepass`, where it is not on the path."""

import sys

from onepass.cli.main import main

sys.exit(main())
