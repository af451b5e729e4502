"""The paper's tables again, from whatever data and weights there are.

`tables.py` says what each table takes, `tasks.py` runs it, `report.py` puts what was found beside what is printed.
"""

from polynext.extras import require

require("train")

from polynext.reproduction.report import reproduce
from polynext.reproduction.tables import TABLES, Cell, Setup
from polynext.reproduction.tasks import Task

__all__ = ["TABLES", "Cell", "Setup", "Task", "reproduce"]
