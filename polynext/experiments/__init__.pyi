from .report import Report as Report
from .sweep import Sweep as Sweep
from .sweep import Trial as Trial
from .sweep import run_sweep as run_sweep
