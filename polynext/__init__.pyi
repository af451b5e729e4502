from . import acceleration as acceleration
from . import circuit as circuit
from . import data as data
from . import encrypted as encrypted
from . import evaluation as evaluation
from . import experiments as experiments
from . import export as export
from . import models as models
from . import nn as nn
from . import recipes as recipes
from . import segmentation as segmentation
from . import service as service
from . import training as training
from .acceleration import accelerate as accelerate
from .acceleration import compile as compile
from .acceleration import fold as fold
from .acceleration import save_memory as save_memory
from .errors import PolyNeXtError as PolyNeXtError
from .models import create_model as create_model
from .models import from_published as from_published
from .models import list_models as list_models
from .models import load_weights as load_weights
from .models import replace_mixers as replace_mixers
from .preprocessing import Preprocessing as Preprocessing
from .runs import Run as Run
from .runs import load_run as load_run

__version__: str
