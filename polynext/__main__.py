import sys

from polynext.cli import main

sys.exit(main())
