from .entries import Entry as Entry
from .experiments import Experiment as Experiment
from .experiments import Results as Results
from .setup import Setup as Setup
from .tables import PAPER_TABLES as PAPER_TABLES
from .tables import reproduce as reproduce
